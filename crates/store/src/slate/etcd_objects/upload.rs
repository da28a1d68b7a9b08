//! Objects that come in parts.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Attributes, MultipartUpload, PutMode, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use super::format::{Record, UploadId};
use super::write::Body;
use super::{EtcdObjects, generic};

/// An upload under way. If it is neither completed nor aborted, its chunks are collected as garbage.
#[derive(Debug)]
pub(super) struct Upload {
    objects: EtcdObjects,
    path: Path,
    id: UploadId,
    attributes: Attributes,
    /// Sizes of the parts in order; `None` until one has arrived.
    parts: Arc<Mutex<Vec<Option<u64>>>>,
}

impl Upload {
    pub async fn begin(
        objects: &EtcdObjects,
        path: &Path,
        attributes: Attributes,
    ) -> Result<Upload> {
        let id = UploadId::draw();
        objects.begin_upload(id, path).await?;
        let (objects, path) = (objects.clone(), path.clone());
        Ok(Upload { objects, path, id, attributes, parts: Arc::default() })
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let number = {
            let mut parts = self.parts.lock();
            parts.push(None);
            parts.len() - 1
        };
        let (objects, id, parts) = (self.objects.clone(), self.id, Arc::clone(&self.parts));
        Box::pin(async move {
            let bytes = Bytes::from(data);
            let size = bytes.len() as u64;
            let part = u32::try_from(number).map_err(generic)?;
            objects.put_chunks(id, part, bytes).await?;
            parts.lock()[number] = Some(size);
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let parts: Option<Vec<u64>> = self.parts.lock().iter().copied().collect();
        let parts = parts.ok_or_else(|| generic(format!("a part of {} is missing", self.path)))?;
        let size = parts.iter().sum();
        if size == 0 {
            // Nothing was uploaded, so the upload has no chunk.
            self.objects.give_up(self.id).await?;
            let record = Record::new(self.id, 0, Vec::new(), &self.attributes)?;
            let body = Body::Inline(Bytes::new());
            return self.objects.publish(&self.path, &record, &body, PutMode::Overwrite).await;
        }
        let record = Record::new(self.id, size, parts, &self.attributes)?;
        self.objects.publish(&self.path, &record, &Body::Uploaded, PutMode::Overwrite).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.objects.give_up(self.id).await
    }
}

//! Reading objects and parts of them.

use std::ops::Range;

use bytes::Bytes;
use forebay_etcd::{Change, Keys, Op, Pair, Txn};
use futures::stream::{self, StreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, GetResultPayload, Result};

use super::format::Record;
use super::{CHUNKS_AT_ONCE, EtcdObjects, generic, not_found};

impl EtcdObjects {
    pub(super) async fn read(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            let source = "objects in etcd have no versions".into();
            return Err(object_store::Error::NotSupported { source });
        }
        let (record, inline) = self.look_up(path, !options.head).await?;
        let decoded = Record::decode(&record.value, path)?;
        let meta = decoded.meta(path, record.mod_revision);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range.as_range(decoded.size).map_err(generic)?,
            None => 0..decoded.size,
        };
        let attributes = decoded.attributes();
        let stream = if options.head {
            stream::empty().boxed()
        } else if decoded.is_chunked() {
            self.clone().chunks(path.clone(), &decoded, range.clone())
        } else {
            let bytes = inline.map(|pair| Bytes::from(pair.value));
            let bytes = bytes.filter(|bytes| bytes.len() as u64 == decoded.size);
            let bytes = bytes
                .ok_or_else(|| generic(format!("object {path} has lost its bytes in etcd")))?;
            stream::iter([Ok(bytes.slice(range.start as usize..range.end as usize))]).boxed()
        };
        let payload = GetResultPayload::Stream(stream);
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    /// The record of an object, and its bytes if they are in one value, both of one revision.
    async fn look_up(&self, path: &Path, with_bytes: bool) -> Result<(Pair, Option<Pair>)> {
        let mut then = vec![Op::Get(Keys::One(self.key('m', path.as_ref())))];
        if with_bytes {
            then.push(Op::Get(Keys::One(self.key('i', path.as_ref()))));
        }
        let outcome = self.connection.txn(Txn { then, ..Txn::default() }).await;
        let changes = outcome.map_err(|error| self.failed(error))?.changes;
        let mut found = changes.into_iter().map(|change| match change {
            Change::Found(found) => found.pairs.into_iter().next(),
            Change::Put | Change::Deleted(_) => None,
        });
        let record = found.next().flatten().ok_or_else(|| not_found(path))?;
        Ok((record, found.next().flatten()))
    }

    /// The bytes of `range`, chunk by chunk. Ends with "not found" if the object is replaced meanwhile.
    fn chunks(
        self,
        path: Path,
        record: &Record,
        range: Range<u64>,
    ) -> stream::BoxStream<'static, Result<Bytes>> {
        let id = record.id;
        let wanted: Vec<(String, Range<u64>)> = record
            .chunks()
            .filter(|(_, start, length)| *start < range.end && start + length > range.start)
            .map(|(name, start, length)| {
                let from = range.start.saturating_sub(start);
                let to = (range.end - start).min(length);
                (name, from..to)
            })
            .collect();
        let fetch = move |(name, part): (String, Range<u64>)| {
            let (objects, path) = (self.clone(), path.clone());
            async move {
                let key = objects.key('c', &format!("{id}/{name}"));
                let pair =
                    objects.connection.get(key).await.map_err(|error| objects.failed(error))?;
                let bytes = Bytes::from(pair.ok_or_else(|| not_found(&path))?.value);
                if (bytes.len() as u64) < part.end {
                    return Err(generic(format!("a chunk of object {path} is too short")));
                }
                Ok(bytes.slice(part.start as usize..part.end as usize))
            }
        };
        stream::iter(wanted).map(fetch).buffered(CHUNKS_AT_ONCE).boxed()
    }
}

//! Making, replacing and removing objects.

use bytes::Bytes;
use forebay_etcd::{Change, Compare, Keys, Op, Pair, Txn, TxnOutcome};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{PutMode, PutOptions, PutPayload, PutResult, Result};
use tokio::time::sleep;

use super::format::{Record, UploadId, chunk_name, chunks_of_part};
use super::{
    ATTEMPTS_MAX, CHUNKS_AT_ONCE, EtcdObjects, RETRY_PAUSE, VALUE_BYTES_MAX, generic, passing,
};

/// Where the bytes of a new object are.
pub(crate) enum Body {
    /// Here: they fit into one value.
    Inline(Bytes),
    /// In the chunks of the upload.
    Uploaded,
}

impl EtcdObjects {
    pub(super) async fn put(
        &self,
        path: &Path,
        payload: &PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let size = payload.content_length();
        let id = UploadId::draw();
        let bytes = Bytes::from(payload.clone());
        if size <= VALUE_BYTES_MAX {
            let record = Record::new(id, size as u64, Vec::new(), &options.attributes)?;
            return self.publish(path, &record, &Body::Inline(bytes), options.mode).await;
        }
        let record = Record::new(id, size as u64, vec![size as u64], &options.attributes)?;
        self.begin_upload(id, path).await?;
        let published = match self.put_chunks(id, 0, bytes).await {
            Ok(()) => self.publish(path, &record, &Body::Uploaded, options.mode).await,
            Err(error) => Err(error),
        };
        if published.is_err() {
            // What is left of it is garbage with a name, and is collected.
            let _ = self.give_up(id).await;
        }
        published
    }

    /// Notes an upload, before its first chunk.
    pub(super) async fn begin_upload(&self, id: UploadId, path: &Path) -> Result<()> {
        let note = self.key('u', &id.to_string());
        // Of an upload that was published, a late request must not bring back the note: it would be garbage with the chunks
        // of an object.
        let when =
            vec![Compare::Absent(note.clone()), Compare::Absent(self.key('p', &id.to_string()))];
        let then = vec![Op::put(note, path.as_ref())];
        self.settled(&Txn { when, then, otherwise: Vec::new() }).await.map(drop)
    }

    /// Uploads the chunks of one part.
    pub(super) async fn put_chunks(&self, id: UploadId, part: u32, bytes: Bytes) -> Result<()> {
        let chunks = chunks_of_part(bytes.len() as u64).zip(0_u32..);
        let put = chunks.map(|((start, length), chunk)| {
            let bytes = bytes.slice(start as usize..(start + length) as usize);
            let key = self.key('c', &format!("{id}/{}", chunk_name(part, chunk)));
            async move {
                let written = bytes.len();
                let txn = Txn {
                    when: vec![Compare::Present(self.key('u', &id.to_string()))],
                    then: vec![Op::put(key, bytes)],
                    otherwise: Vec::new(),
                };
                if !self.settled(&txn).await?.held {
                    return Err(generic(format!("upload {id} took too long and was given up")));
                }
                self.written.wrote(written);
                Ok(())
            }
        });
        stream::iter(put).buffer_unordered(CHUNKS_AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
    }

    /// Removes an upload with its chunks. One that was published or is gone is left as it is.
    pub(super) async fn give_up(&self, id: UploadId) -> Result<()> {
        let note = self.key('u', &id.to_string());
        let txn = Txn {
            when: vec![Compare::Present(note.clone())],
            then: vec![
                Op::Delete(Keys::One(note)),
                Op::Delete(Keys::Prefix(self.key('c', &format!("{id}/")))),
            ],
            otherwise: Vec::new(),
        };
        self.settled(&txn).await.map(drop)
    }

    /// Makes the object appear, if `mode` allows it: the deciding transaction.
    pub(super) async fn publish(
        &self,
        path: &Path,
        record: &Record,
        body: &Body,
        mode: PutMode,
    ) -> Result<PutResult> {
        let mut replaced = match &mode {
            // For an overwriting put that is only likely.
            PutMode::Create | PutMode::Overwrite => Replaced::NOTHING,
            PutMode::Update(version) => self.demanded(path, version.e_tag.as_deref()).await?,
        };
        loop {
            let outcome = self.settled(&self.deciding(path, record, body, &replaced)).await?;
            if outcome.held {
                if let Body::Inline(bytes) = body {
                    self.written.wrote(bytes.len());
                }
                return Ok(put_result(outcome.revision));
            }
            let now = found(&outcome).map(|pair| Replaced::of(&pair, path)).transpose()?;
            match (&mode, now) {
                // An earlier request of these was carried out after all.
                (_, Some(now)) if now.id == record.id => return Ok(put_result(now.revision)),
                (PutMode::Overwrite, now) => {
                    let now = now.unwrap_or(Replaced::NOTHING);
                    if now == replaced {
                        return Err(generic(format!(
                            "upload of {path} took too long and was given up"
                        )));
                    }
                    replaced = now;
                }
                (PutMode::Create, Some(_)) => {
                    let source = "etcd already has an object with this name".into();
                    return Err(object_store::Error::AlreadyExists {
                        path: path.to_string(),
                        source,
                    });
                }
                (PutMode::Create, None) => {
                    return Err(generic(format!(
                        "upload of {path} took too long and was given up"
                    )));
                }
                (PutMode::Update(_), _) => return Err(changed(path)),
            }
        }
    }

    /// The object that an update demands to replace, by its entity tag.
    async fn demanded(&self, path: &Path, tag: Option<&str>) -> Result<Replaced> {
        let meta = self.key('m', path.as_ref());
        let pair = self.connection.get(meta).await.map_err(|error| self.failed(error))?;
        match pair {
            Some(pair) if tag == Some(pair.mod_revision.to_string().as_str()) => {
                Replaced::of(&pair, path)
            }
            Some(_) | None => Err(changed(path)),
        }
    }

    fn deciding(&self, path: &Path, record: &Record, body: &Body, replaced: &Replaced) -> Txn {
        let meta = self.key('m', path.as_ref());
        let inline = self.key('i', path.as_ref());
        let mut when = vec![replaced.condition(meta.clone())];
        let mut then = vec![Op::put(meta.clone(), record.encode())];
        match body {
            Body::Inline(bytes) => then.push(Op::put(inline, bytes.to_vec())),
            Body::Uploaded => {
                let note = self.key('u', &record.id.to_string());
                when.push(Compare::Present(note.clone()));
                then.push(Op::Delete(Keys::One(note)));
                then.push(Op::put(self.key('p', &record.id.to_string()), path.as_ref()));
                then.push(Op::Delete(Keys::One(inline)));
            }
        }
        if replaced.chunked {
            then.extend(self.delete_chunks(replaced.id));
        }
        Txn { when, then, otherwise: vec![Op::Get(Keys::One(meta))] }
    }

    /// Deletes the chunks of a published upload.
    fn delete_chunks(&self, id: UploadId) -> [Op; 2] {
        let chunks = Keys::Prefix(self.key('c', &format!("{id}/")));
        [Op::Delete(chunks), Op::Delete(Keys::One(self.key('p', &id.to_string())))]
    }

    /// Removes an object. An absent one is not an error.
    pub(super) async fn remove(&self, path: &Path) -> Result<()> {
        let meta = self.key('m', path.as_ref());
        loop {
            let pair =
                self.connection.get(meta.clone()).await.map_err(|error| self.failed(error))?;
            let Some(pair) = pair else { return Ok(()) };
            // A record that nobody can read must not keep the object from being removed.
            let old = Replaced::of(&pair, path)
                .unwrap_or(Replaced { revision: pair.mod_revision, ..Replaced::NOTHING });
            let mut then = vec![
                Op::Delete(Keys::One(meta.clone())),
                Op::Delete(Keys::One(self.key('i', path.as_ref()))),
            ];
            if old.chunked {
                then.extend(self.delete_chunks(old.id));
            }
            let when = vec![old.condition(meta.clone())];
            if self.settled(&Txn { when, then, otherwise: Vec::new() }).await?.held {
                return Ok(());
            }
        }
    }

    /// Sends a transaction until etcd has answered it. Sent twice it must do what it does sent once.
    pub(super) async fn settled(&self, txn: &Txn) -> Result<TxnOutcome> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.connection.txn(txn.clone()).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) if passing(&error) && attempt < ATTEMPTS_MAX => sleep(RETRY_PAUSE).await,
                Err(error) => return Err(self.failed(error)),
            }
        }
    }
}

/// What a new object replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replaced {
    /// 0 for nothing.
    revision: i64,
    id: UploadId,
    chunked: bool,
}

impl Replaced {
    const NOTHING: Replaced = Replaced { revision: 0, id: UploadId(0), chunked: false };

    fn of(pair: &Pair, path: &Path) -> Result<Replaced> {
        let record = Record::decode(&pair.value, path)?;
        Ok(Replaced { revision: pair.mod_revision, id: record.id, chunked: record.is_chunked() })
    }

    fn condition(&self, key: Vec<u8>) -> Compare {
        match self.revision {
            0 => Compare::Absent(key),
            revision => Compare::ModRevision(key, revision),
        }
    }
}

fn changed(path: &Path) -> object_store::Error {
    let source = "another writer changed the object".into();
    object_store::Error::Precondition { path: path.to_string(), source }
}

fn put_result(revision: i64) -> PutResult {
    PutResult { e_tag: Some(revision.to_string()), version: None, extensions: Default::default() }
}

/// The record that a transaction found where its conditions did not hold.
fn found(outcome: &TxnOutcome) -> Option<Pair> {
    match outcome.changes.first() {
        Some(Change::Found(found)) => found.pairs.first().cloned(),
        Some(Change::Put | Change::Deleted(_)) | None => None,
    }
}

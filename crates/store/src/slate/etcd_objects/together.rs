//! Small objects that appear together, in one transaction.

use bytes::Bytes;
use forebay_etcd::{Change, Compare, Keys, Op, Txn, TxnOutcome};
use object_store::path::Path;
use object_store::{Attributes, PutPayload, Result};

use super::format::{Record, UploadId};
use super::{EtcdObjects, VALUE_BYTES_MAX, generic};

/// An object that fits into one value.
pub(in crate::slate) struct SmallObject {
    path: Path,
    record: Record,
    bytes: Bytes,
}

/// What became of objects that were to appear together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::slate) enum Together {
    /// All are there.
    Done,
    /// None is: another object has a name of theirs.
    Taken,
    /// None is: an object with a later name than the mark is there.
    Later,
}

impl SmallObject {
    /// The object `path`.
    ///
    /// # Errors
    /// If it is too large for one value, or has an attribute that cannot be kept.
    pub fn new(path: &Path, payload: PutPayload, attributes: &Attributes) -> Result<SmallObject> {
        let bytes = Bytes::from(payload);
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(generic(format!("{path} is too large for one value of etcd")));
        }
        let record = Record::new(UploadId::draw(), bytes.len() as u64, Vec::new(), attributes)?;
        Ok(SmallObject { path: path.clone(), record, bytes })
    }
}

impl EtcdObjects {
    /// Makes `objects` appear, all or none: if none of these names is taken, and none of the names that follow the one of `mark` in
    /// its folder. `mark` appears with them, in the place of what may have its name.
    pub(in crate::slate) async fn put_together(
        &self,
        objects: &[SmallObject],
        mark: &SmallObject,
    ) -> Result<Together> {
        let outcome = self.settled(&self.joint(objects, mark)).await?;
        if outcome.held {
            let bytes = objects.iter().map(|object| object.bytes.len()).sum();
            self.written.wrote(bytes);
            return Ok(Together::Done);
        }
        // An earlier request of these was carried out after all.
        let own = |object: &SmallObject, found: &[u8]| {
            Record::decode(found, &object.path).is_ok_and(|record| record.id == object.record.id)
        };
        let is_done = objects
            .first()
            .is_some_and(|object| value(&outcome, 1).is_some_and(|found| own(object, found)));
        Ok(match value(&outcome, 0) {
            _ if is_done => Together::Done,
            Some(_) => Together::Later,
            None => Together::Taken,
        })
    }

    fn joint(&self, objects: &[SmallObject], mark: &SmallObject) -> Txn {
        let later = self.after(&mark.path);
        // Revisions begin with 1: there must be none.
        let mut when = vec![Compare::Unchanged(later.clone(), 0)];
        let mut otherwise = vec![Op::Get(later)];
        let mut then = Vec::new();
        for object in objects {
            let meta = self.key('m', object.path.as_ref());
            when.push(Compare::Absent(meta.clone()));
            otherwise.push(Op::Get(Keys::One(meta)));
        }
        for object in objects.iter().chain([mark]) {
            let path = object.path.as_ref();
            then.push(Op::put(self.key('m', path), object.record.encode()));
            then.push(Op::put(self.key('i', path), object.bytes.to_vec()));
        }
        Txn { when, then, otherwise }
    }

    /// The records of objects in the folder of `path` whose names follow its own.
    fn after(&self, path: &Path) -> Keys {
        let text = path.as_ref();
        let folder = text.rsplit_once('/').map_or("", |(folder, _)| folder);
        // "0" follows the delimiter.
        let end = self.key('m', &format!("{folder}0"));
        Keys::Between([&self.key('m', text)[..], &[0]].concat(), end)
    }
}

/// The first value that an operation found.
fn value(outcome: &TxnOutcome, operation: usize) -> Option<&[u8]> {
    match outcome.changes.get(operation)? {
        Change::Found(found) => found.pairs.first().map(|pair| &pair.value[..]),
        Change::Put | Change::Deleted(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_etcd::testing::EtcdServer;
    use futures::TryStreamExt as _;
    use object_store::{ObjectStore as _, ObjectStoreExt as _};

    use super::*;

    fn small(path: &str, text: &'static str) -> SmallObject {
        SmallObject::new(&path.into(), text.into(), &Attributes::default()).unwrap()
    }

    #[test]
    fn objects_appear_together_or_not_at_all() {
        let server = EtcdServer::single();
        let client = server.client();
        let objects = EtcdObjects::new(client.connection(), "names", Arc::new(()));
        let paths = async || {
            let found: Vec<_> = objects.list(None).try_collect().await.unwrap();
            found.into_iter().map(|it| it.location.to_string()).collect::<Vec<_>>()
        };
        client.runtime().block_on(async {
            let pair = |number: u64| {
                [small(&format!("m/{number}"), "m"), small(&format!("w/{number}"), "")]
            };
            let put = async |number, mark| {
                objects.put_together(&pair(number), &small(mark, "")).await.unwrap()
            };
            assert_eq!(put(1, "t/5").await, Together::Done);
            assert_eq!(put(1, "t/6").await, Together::Taken);
            assert_eq!(put(2, "t/4").await, Together::Later);
            assert_eq!(paths().await, ["m/1", "t/5", "w/1"], "nothing came of the others");
            assert_eq!(put(2, "t/5").await, Together::Done, "the mark may be there");
            let bytes = objects.get(&"m/2".into()).await.unwrap().bytes().await.unwrap();
            assert_eq!(&bytes[..], b"m");
            // What is sent twice was carried out once.
            let again = pair(3);
            for _ in 0..2 {
                let put = objects.put_together(&again, &small("t/7", "")).await.unwrap();
                assert_eq!(put, Together::Done);
            }
        });
    }
}

//! Listing objects.

use std::collections::{BTreeSet, VecDeque};

use forebay_etcd::{Keys, Pair, RangeOptions};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use object_store::path::{DELIMITER, Path};
use object_store::{ListResult, ObjectMeta, Result};

use super::format::Record;
use super::{EtcdObjects, generic};

/// Records in one answer.
const PAGE: usize = 1000;

/// How far a list has come.
struct Listing {
    objects: EtcdObjects,
    next: Vec<u8>,
    end: Vec<u8>,
    /// All pages are of one revision; 0 until the first has come.
    revision: i64,
    page: VecDeque<Pair>,
    more: bool,
}

impl Listing {
    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        while self.page.is_empty() && self.more {
            let keys = Keys::Between(self.next.clone(), self.end.clone());
            let options =
                RangeOptions { limit: PAGE, revision: self.revision, ..RangeOptions::default() };
            let found = self.objects.connection.range(keys, options).await;
            let found = found.map_err(|error| self.objects.failed(error))?;
            self.revision = found.revision;
            self.more = found.count > found.pairs.len() as u64;
            if let Some(last) = found.pairs.last() {
                self.next = [&last.key[..], &[0]].concat();
            }
            self.page = found.pairs.into();
        }
        let Some(pair) = self.page.pop_front() else { return Ok(None) };
        let skipped = self.objects.key('m', "").len();
        let path = std::str::from_utf8(&pair.key[skipped..]).map_err(generic)?;
        let path = Path::parse(path)?;
        Ok(Some(Record::decode(&pair.value, &path)?.meta(&path, pair.mod_revision)))
    }
}

impl EtcdObjects {
    /// The objects below `prefix` whose paths come after `offset`, in the order of paths.
    pub(super) fn list_from(
        self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let below = prefix.map_or("", Path::as_ref);
        let (start, end) = match below {
            "" => (self.key('m', ""), self.key('n', "")),
            // "0" follows the delimiter.
            _ => (self.key('m', &format!("{below}/")), self.key('m', &format!("{below}0"))),
        };
        let after = offset.map(|offset| [self.key('m', offset.as_ref()), vec![0]].concat());
        let next = after.map_or(start.clone(), |after| after.max(start));
        let more = next < end;
        let listing =
            Listing { objects: self, next, end, revision: 0, page: VecDeque::new(), more };
        stream::try_unfold(listing, |mut listing| async move {
            Ok(listing.next().await?.map(|meta| (meta, listing)))
        })
        .boxed()
    }

    /// The objects directly below `prefix`, and the names of the levels below it.
    pub(super) async fn list_level(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let root = Path::default();
        let prefix_path = prefix.unwrap_or(&root);
        let mut common_prefixes = BTreeSet::new();
        let mut objects = Vec::new();
        let mut all = self.clone().list_from(prefix, None);
        while let Some(meta) = all.try_next().await? {
            let Some(mut rest) = meta.location.prefix_match(prefix_path) else { continue };
            let Some(first) = rest.next() else { continue };
            if rest.next().is_some() {
                common_prefixes.insert(prefix_path.clone().join(first));
            } else {
                drop(rest);
                objects.push(meta);
            }
        }
        debug_assert_eq!(DELIMITER, "/");
        let common_prefixes = common_prefixes.into_iter().collect();
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }
}

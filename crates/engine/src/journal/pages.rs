//! Ranges of the store, read a page at a time. Memory: one page.

use anyhow::Result;
use forebay_store::Store;

/// Entries that are read together.
const PAGE: usize = 256;

/// Calls `found` with each key and value from `from` on and before `to`, in the order of the keys.
///
/// # Errors
/// If the store cannot be read, and what `found` says.
pub(crate) fn each<S: Store>(
    store: &S,
    mut from: Vec<u8>,
    to: &[u8],
    mut found: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    loop {
        let page = store.scan(&from, to, PAGE)?;
        for (key, value) in &page {
            found(key, value)?;
        }
        match page.into_iter().nth(PAGE - 1) {
            // The next page begins right after the last key of this one.
            Some((last, _)) => from = [last, vec![0]].concat(),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::Batch;
    use forebay_store::memory::MemoryStore;

    use super::*;

    #[test]
    fn every_entry_of_a_range_is_found_once_however_many_pages_there_are() {
        for count in [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
            let store = MemoryStore::new();
            let key = |number: usize| [b"k".as_slice(), &(number as u32).to_be_bytes()].concat();
            let mut batch = Batch::default();
            batch.changes.extend((0..count).map(|number| (key(number), Some(vec![1]))));
            batch.changes.insert(b"l".to_vec(), Some(vec![1]));
            store.commit(&batch).unwrap();
            let mut keys = Vec::new();
            each(&store, b"k".to_vec(), b"l", |key, _| {
                keys.push(key.to_vec());
                Ok(())
            })
            .unwrap();
            assert_eq!(keys, (0..count).map(key).collect::<Vec<_>>());
        }
    }
}

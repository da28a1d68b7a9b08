//! Ranges of the store, read a page at a time: the next page is read while one is looked at.
//!
//! Memory: three pages. How many entries a page has follows from how large those of the page before were.

use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::Result;
use forebay_store::{Bytes, Store, StoreError};

/// Entries of the first page.
const FIRST: usize = 256;

/// The fewest and the most entries of a page, and bytes that it should have. Stores of clusters read ahead for pages of more
/// than 1024 entries; smaller ones cost them a few requests each.
const ENTRIES_MIN: usize = 16;
const ENTRIES_MAX: usize = 16_384;
const BYTES: usize = 8 << 20;

type Page = Vec<(Bytes, Bytes)>;

/// Calls `found` with each key and value from `from` on and before `to`, in the order of the keys.
///
/// # Errors
/// If the store cannot be read, and what `found` says.
pub(crate) fn each<S: Store>(
    store: &S,
    from: Vec<u8>,
    to: &[u8],
    mut found: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let (pages, read) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || send_pages(store, from, to, &pages));
        // Without anybody who takes pages their reader ends: `read` goes with the closure.
        let read = read;
        for page in &read {
            for (key, value) in &page? {
                found(key, value)?;
            }
        }
        Ok(())
    })
}

/// Reads pages until the end of the range, an error, or until nobody takes them any more.
fn send_pages<S: Store>(
    store: &S,
    mut from: Vec<u8>,
    to: &[u8],
    pages: &SyncSender<Result<Page, StoreError>>,
) {
    let mut count = FIRST;
    loop {
        let page = store.scan(&from, to, count);
        let mut last = None;
        if let Ok(page) = &page {
            last = page.get(count - 1).map(|(key, _)| key.clone());
            count = next_count(page);
        }
        if pages.send(page).is_err() {
            return;
        }
        let Some(last) = last else { return };
        // The next page begins right after the last key of this one.
        from = [last, vec![0]].concat();
    }
}

/// How many entries the page after this one has.
fn next_count(page: &Page) -> usize {
    let bytes: usize = page.iter().map(|(key, value)| key.len() + value.len()).sum();
    let each = (bytes / page.len().max(1)).max(1);
    (BYTES / each).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

#[cfg(test)]
mod tests {
    use forebay_store::Batch;
    use forebay_store::memory::MemoryStore;

    use super::*;

    fn key(number: usize) -> Vec<u8> {
        [b"k".as_slice(), &(number as u32).to_be_bytes()].concat()
    }

    fn filled(count: usize, value: &[u8]) -> MemoryStore {
        let store = MemoryStore::new();
        let mut batch = Batch::default();
        batch.changes.extend((0..count).map(|number| (key(number), Some(value.to_vec()))));
        batch.changes.insert(b"l".to_vec(), Some(vec![1]));
        store.commit(&batch).unwrap();
        store
    }

    #[test]
    fn every_entry_of_a_range_is_found_once_however_many_pages_there_are() {
        let page = FIRST + ENTRIES_MAX;
        for count in [0, 1, FIRST - 1, FIRST, FIRST + 1, page, page + 1] {
            let store = filled(count, &[1]);
            let mut keys = Vec::new();
            each(&store, b"k".to_vec(), b"l", |key, _| {
                keys.push(key.to_vec());
                Ok(())
            })
            .unwrap();
            assert_eq!(keys, (0..count).map(key).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_of_large_entries_has_few() {
        let page = |bytes: usize| vec![(vec![1], vec![0; bytes - 1])];
        assert_eq!(next_count(&page(BYTES)), ENTRIES_MIN);
        assert_eq!(next_count(&page(BYTES / 100)), 100);
        assert_eq!(next_count(&page(1)), ENTRIES_MAX);
        assert_eq!(next_count(&Vec::new()), ENTRIES_MAX);
    }

    #[test]
    fn what_the_taker_says_ends_the_reading() {
        let store = filled(10 * FIRST, &[1]);
        let mut seen = 0;
        let said = each(&store, b"k".to_vec(), b"l", |_, _| {
            seen += 1;
            anyhow::ensure!(seen < 3, "enough");
            Ok(())
        });
        assert_eq!((said.unwrap_err().to_string().as_str(), seen), ("enough", 3));
    }
}

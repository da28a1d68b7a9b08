//! Memory for the pages of all stores of a folder: one bound for all, shared out as they are opened.
//!
//! The engine is told how much a store may have when it is opened, once. So each gets half of what is left, and gives it
//! back when it is closed; the root fileset's, which holds the names of the others, an eighth of all. A store is
//! never without any, so a thousand of them may have more together than the bound, by [`LEAST_BYTES`] each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_base::FilesetId;

/// What each store has at least.
pub const LEAST_BYTES: usize = 64 << 10;

/// The part of the root fileset's store is all divided by this.
const ROOT_PART: usize = 8;

/// What is left for stores.
#[derive(Clone, Debug)]
pub struct Pages {
    all_bytes: usize,
    left_bytes: Arc<AtomicUsize>,
}

/// What one store has, until it is dropped.
#[derive(Debug)]
pub struct Share {
    pages: Pages,
    taken_bytes: usize,
}

impl Pages {
    /// So many bytes.
    pub fn new(all_bytes: usize) -> Pages {
        Pages { all_bytes, left_bytes: Arc::new(AtomicUsize::new(all_bytes)) }
    }

    /// The share of a fileset's store that is opened now.
    pub fn share(&self, fileset: FilesetId) -> Share {
        let mut taken_bytes = 0;
        let take = |left: usize| {
            let wanted =
                if fileset == FilesetId::ROOT { self.all_bytes / ROOT_PART } else { left / 2 };
            taken_bytes = if wanted < LEAST_BYTES { 0 } else { wanted.min(left) };
            Some(left - taken_bytes)
        };
        // It always takes something, so that it never fails.
        let _ = self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Share { pages: self.clone(), taken_bytes }
    }
}

impl Share {
    /// How much the store may have.
    pub fn bytes(&self) -> usize {
        self.taken_bytes.max(LEAST_BYTES)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pages.left_bytes.fetch_add(self.taken_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_stores_have_no_more_than_the_bound_and_the_least_of_each() {
        let all_bytes = 64 << 20;
        let pages = Pages::new(all_bytes);
        let root = pages.share(FilesetId::ROOT);
        assert_eq!(root.bytes(), 8 << 20);
        let shares: Vec<Share> = (1..=1000).map(|number| pages.share(FilesetId(number))).collect();
        assert_eq!((shares[0].bytes(), shares[1].bytes()), (28 << 20, 14 << 20));
        let sum: usize = shares.iter().chain([&root]).map(Share::bytes).sum();
        assert!(sum <= all_bytes + 1000 * LEAST_BYTES, "{sum}");
        assert_eq!(shares[999].bytes(), LEAST_BYTES);
        drop((root, shares));
        assert_eq!(pages.left_bytes.load(Ordering::Relaxed), all_bytes);
        let tiny = Pages::new(1);
        assert_eq!(
            (tiny.share(FilesetId::ROOT).bytes(), tiny.share(FilesetId(1)).bytes()),
            (LEAST_BYTES, LEAST_BYTES)
        );
    }
}

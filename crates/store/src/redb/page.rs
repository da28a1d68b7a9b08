//! Pages of a redb tree (format 3), read without trusting them.
//!
//! A page is a leaf of pairs or a branch of children. Its checksum stands in its parent and covers it up to
//! the end of its last value or key, which the page itself says.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_128;

use super::header::{PAGE_BYTES, REGION_PAGES, Root, checksum};

const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Largest page whose wrong bit is looked for: a second's work.
const CORRECTABLE_BYTES: usize = 32 << 10;

/// Where the page of a number lies in the file, in bytes.
pub(super) fn place(page: u64) -> Option<Range<u64>> {
    let order = u32::try_from(page >> 59).ok()?;
    let bytes = PAGE_BYTES.checked_shl(order).filter(|_| order <= 20)?;
    let index = page & (0xf_ffff >> order);
    let region = page >> 20 & 0xf_ffff;
    let begin = PAGE_BYTES + region * REGION_PAGES * PAGE_BYTES + index * bytes;
    Some(begin..begin + bytes)
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Leaf,
    Branch,
}

/// What the first byte of a page says that it is.
pub(super) fn kind(page: &[u8]) -> Option<Kind> {
    match *page.first()? {
        LEAF => Some(Kind::Leaf),
        BRANCH => Some(Kind::Branch),
        _ => None,
    }
}

fn half(page: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(page.get(at..at + 2)?.try_into().ok()?)))
}

fn offset(page: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(page.get(at..at + 4)?.try_into().ok()?)).ok()
}

/// Bytes of the page that its checksum covers.
fn covered(page: &[u8]) -> Option<usize> {
    let count = half(page, 2).filter(|count| *count > 0)?;
    let end = match kind(page)? {
        Kind::Leaf => offset(page, 4 + 4 * (2 * count - 1))?,
        Kind::Branch => offset(page, 8 + 24 * (count + 1) + 4 * (count - 1))?,
    };
    (end <= page.len()).then_some(end)
}

/// Whether a page is as its parent says.
pub(super) fn verifies(page: &[u8], expected: u128) -> bool {
    covered(page).is_some_and(|end| xxh3_128(&page[..end]) == expected)
}

/// Flips the one bit that makes the page verify. `false`, with the page as it was, if there is none.
pub(super) fn correct(page: &mut [u8], expected: u128) -> bool {
    if page.len() > CORRECTABLE_BYTES {
        return false;
    }
    for bit in 0..page.len() * 8 {
        page[bit / 8] ^= 1 << (bit % 8);
        if verifies(page, expected) {
            return true;
        }
        page[bit / 8] ^= 1 << (bit % 8);
    }
    false
}

/// Pairs of a leaf: key and value. Those whose bounds make no sense are left out; a damaged count of
/// pairs gives few or none.
pub(super) fn pairs(page: &[u8]) -> Vec<(&[u8], &[u8])> {
    let Some(count) = half(page, 2).filter(|_| kind(page) == Some(Kind::Leaf)) else {
        return Vec::new();
    };
    let keys = 4 + 8 * count;
    let key_end = |n: usize| offset(page, 4 + 4 * n);
    let value_end = |n: usize| offset(page, 4 + 4 * count + 4 * n);
    let begin_after = |n: usize, end: &dyn Fn(usize) -> Option<usize>, first: Option<usize>| {
        if n == 0 { first } else { end(n - 1) }
    };
    let pair = |n: usize| {
        let key = begin_after(n, &key_end, Some(keys))?..key_end(n)?;
        let values = key_end(count - 1);
        let value = begin_after(n, &value_end, values)?..value_end(n)?;
        let key = page.get(key).filter(|_| key_end(n).is_some_and(|end| end >= keys))?;
        Some((key, page.get(value)?))
    };
    (0..count).filter_map(pair).collect()
}

/// Whether a page is a leaf in all that can be seen: bounds and order of its keys.
pub(super) fn is_leaf(page: &[u8]) -> bool {
    let pairs = pairs(page);
    kind(page) == Some(Kind::Leaf)
        && covered(page).is_some()
        && half(page, 2) == Some(pairs.len())
        && pairs.is_sorted_by(|before, after| before.0 < after.0)
}

/// Children of a branch, each with the greatest key that it may hold (`None`: the last child).
pub(super) fn children(page: &[u8]) -> Vec<(Root, Option<&[u8]>)> {
    let Some(keys) = half(page, 2).filter(|_| kind(page) == Some(Kind::Branch)) else {
        return Vec::new();
    };
    let count = keys + 1;
    let key_end = |n: usize| offset(page, 8 + 24 * count + 4 * n);
    let child = |n: usize| {
        let number = page.get(8 + 16 * count + 8 * n..8 + 16 * count + 8 * n + 8)?;
        let number = u64::from_le_bytes(number.try_into().ok()?);
        let root = Root { page: number, checksum: checksum(page, 8 + 16 * n)? };
        if n == keys {
            return Some((root, None));
        }
        let begin = if n == 0 { Some(8 + 24 * count + 4 * keys) } else { key_end(n - 1) };
        let key = page.get(begin?..key_end(n)?);
        Some((root, key))
    };
    (0..count).filter_map(child).collect()
}

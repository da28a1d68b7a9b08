//! The arithmetic of stripes: which part of an object holds a byte, and what the lengths of the parts say of its size.

/// How the bytes of an object lie on its parts: unit after unit, on each part in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    unit_bytes: u64,
    width: u64,
}

/// Consecutive bytes of an object that lie together in one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The part.
    pub part: usize,
    /// Where they begin in it.
    pub at: u64,
    /// Where they begin in the range that was asked for.
    pub from: usize,
    pub length: usize,
}

impl Stripes {
    /// Stripes of `unit_bytes` over `width` parts; neither is 0.
    pub(super) fn new(unit_bytes: u64, width: usize) -> Stripes {
        Stripes { unit_bytes, width: width as u64 }
    }

    /// Consecutive bytes of an object that lie on one part.
    #[must_use]
    pub fn unit_bytes(self) -> u64 {
        self.unit_bytes
    }

    /// One unit of each part.
    pub(super) fn row_bytes(self) -> u64 {
        self.unit_bytes.saturating_mul(self.width)
    }

    /// Bytes of a part below `offset` of the object.
    pub(super) fn share(self, part: usize, offset: u64) -> u64 {
        let (rows, rest) = (offset / self.row_bytes(), offset % self.row_bytes());
        let before = self.unit_bytes.saturating_mul(part as u64);
        rows * self.unit_bytes + rest.saturating_sub(before).min(self.unit_bytes)
    }

    /// Where byte `at` of a part is in the object, or the highest number if that is beyond all numbers.
    pub(super) fn offset(self, part: usize, at: u64) -> u64 {
        let unit = u128::from(self.unit_bytes);
        let (row, rest) = (u128::from(at) / unit, u128::from(at) % unit);
        let offset = (row * u128::from(self.width) + part as u128) * unit + rest;
        u64::try_from(offset).unwrap_or(u64::MAX)
    }

    /// The size of an object whose parts are so long: up to the first byte that none of them has.
    pub(super) fn size(self, lengths: &[u64]) -> u64 {
        let ends = lengths.iter().enumerate().map(|(part, length)| self.offset(part, *length));
        ends.min().unwrap_or(0)
    }

    /// The pieces of a range, in its order.
    pub(super) fn pieces(self, offset: u64, length: usize) -> impl Iterator<Item = Piece> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let left = length - from;
            let start = offset.checked_add(from as u64).filter(|_| left > 0)?;
            let (unit, within) = (start / self.unit_bytes, start % self.unit_bytes);
            let room = usize::try_from(self.unit_bytes - within).unwrap_or(usize::MAX);
            let piece = Piece {
                part: usize::try_from(unit % self.width).ok()?,
                at: unit / self.width * self.unit_bytes + within,
                from,
                length: left.min(room),
            };
            from += piece.length;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_offsets_and_pieces_agree_on_where_each_byte_is() {
        for (unit, width) in [(1, 2), (3, 2), (4, 3), (7, 5)] {
            let stripes = Stripes::new(unit, width);
            let mut lengths = vec![0; width];
            for offset in 0..200 {
                let shares: Vec<u64> = (0..width).map(|part| stripes.share(part, offset)).collect();
                assert_eq!(shares, lengths, "below {offset} of units of {unit} on {width}");
                assert_eq!(stripes.size(&lengths), offset);
                let piece = stripes.pieces(offset, 1).next().unwrap();
                assert_eq!(piece.at, lengths[piece.part]);
                assert_eq!(stripes.offset(piece.part, piece.at), offset);
                lengths[piece.part] += 1;
            }
        }
    }

    #[test]
    fn pieces_cover_a_range_in_order_without_gaps() {
        let stripes = Stripes::new(10, 3);
        let pieces: Vec<_> =
            stripes.pieces(25, 30).map(|it| (it.part, it.at, it.from, it.length)).collect();
        assert_eq!(pieces, [(2, 5, 0, 5), (0, 10, 5, 10), (1, 10, 15, 10), (2, 10, 25, 5)]);
        assert_eq!(stripes.pieces(25, 0).count(), 0);
        assert_eq!(stripes.pieces(u64::MAX, 5).map(|it| it.length).sum::<usize>(), 5);
    }

    #[test]
    fn a_size_reaches_to_the_first_byte_that_is_missing() {
        let stripes = Stripes::new(10, 3);
        for (lengths, size) in [
            ([10, 10, 5], 25),
            ([10, 3, 10], 13),
            ([0, 90, 90], 0),
            ([10, 10, 10], 30),
            ([u64::MAX, u64::MAX, u64::MAX], u64::MAX),
        ] {
            assert_eq!(stripes.size(&lengths), size, "{lengths:?}");
        }
    }
}

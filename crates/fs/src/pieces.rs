//! Pieces of a file of one length, as they are fetched and kept, and the reads that are put together of them. Pure.

/// Puts what a piece, whose bytes begin at `begins` in the file, has of a read at `offset` where it belongs. Returns how many bytes.
pub(crate) fn put_piece(
    (begins, piece): (u64, &[u8]),
    (offset, buffer): (u64, &mut [u8]),
) -> usize {
    let within = usize::try_from(offset.saturating_sub(begins)).unwrap_or(usize::MAX);
    let at = usize::try_from(begins.saturating_sub(offset)).unwrap_or(usize::MAX);
    let bytes = piece.get(within..).unwrap_or_default();
    let room = buffer.get_mut(at..).unwrap_or_default();
    let length = bytes.len().min(room.len());
    room[..length].copy_from_slice(&bytes[..length]);
    length
}

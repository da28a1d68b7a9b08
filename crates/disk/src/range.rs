//! Ranges of objects: how far they reach, and copying one by way of memory.

use crate::{DiskError, Object, Result};

/// The largest offset that the kernel takes.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;
/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// The end of a range, if an object can reach so far.
pub(crate) fn end_of(offset: u64, length: u64) -> Result<u64> {
    offset.checked_add(length).filter(|end| *end <= OFFSET_MAX).ok_or(DiskError::TooLarge)
}

/// Copies `length` bytes that begin at `from.1` of one object to `to.1` of another one. Returns how many were copied: fewer if the
/// source ends before, or if something is refused after the first bytes.
pub(crate) fn copy(from: (&dyn Object, u64), to: (&dyn Object, u64), length: u64) -> Result<u64> {
    end_of(to.1, length)?;
    let mut buffer = vec![0; usize::try_from(COPY_BYTES.min(length)).unwrap_or(0)];
    let mut done = 0;
    while done < length {
        let wanted = usize::try_from((length - done).min(COPY_BYTES)).unwrap_or(0);
        let at = from.1.saturating_add(done);
        let copied = from.0.read_at(at, &mut buffer[..wanted]).and_then(|read| {
            let written = to.0.write_at(to.1 + done, &buffer[..read])?;
            Ok((read, written))
        });
        match copied {
            Ok((read, written)) => {
                done += written as u64;
                if read == 0 || written < read {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

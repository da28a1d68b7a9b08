//! Taking a request apart. Bytes from the kernel never cause a panic: what does not fit is EINVAL.

use zerocopy::FromBytes;

use crate::abi::{InHeader, RingHeader};

/// An errno, for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl From<forebay_fs::FsError> for Errno {
    fn from(error: forebay_fs::FsError) -> Errno {
        let errno = crate::errno::of(&error);
        if errno == libc::EIO || errno == libc::EUCLEAN {
            tracing::error!(%error, "a request failed");
        }
        Errno(errno)
    }
}

/// Outcome of a request: what goes into the reply buffer is the answer.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The body of a request, taken from the front.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    /// Where structures lie, if not in front of the rest: the ring keeps them apart.
    structures: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// Splits a request into its header and body.
    pub fn parse(request: &'a [u8]) -> Option<(InHeader, Body<'a>)> {
        let (header, rest) = InHeader::read_from_prefix(request).ok()?;
        Some((header, Body { structures: None, rest: without_extensions(&header, rest)? }))
    }

    /// Splits what came over a ring: the header of an entry, and its payload as long as the entry says.
    pub fn parse_entry(entry: &'a RingHeader, payload: &'a [u8]) -> Option<(InHeader, Body<'a>)> {
        let (header, _) = InHeader::read_from_prefix(&entry.in_out).ok()?;
        let rest = without_extensions(&header, payload)?;
        Some((header, Body { structures: Some(&entry.op_in), rest }))
    }

    /// Takes a structure.
    pub fn take<T: FromBytes>(&mut self) -> Answer<T> {
        let from = self.structures.as_mut().unwrap_or(&mut self.rest);
        let (value, rest) = T::read_from_prefix(from).map_err(|_| Errno(libc::EINVAL))?;
        *from = rest;
        Ok(value)
    }

    /// Takes a name that ends with a NUL.
    pub fn name(&mut self) -> Answer<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(Errno(libc::EINVAL))?;
        let (name, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(name)
    }

    /// Takes `length` bytes.
    pub fn bytes(&mut self, length: u32) -> Answer<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| Errno(libc::EINVAL))?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Errno(libc::EINVAL))?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// What is left of a body without the extensions at its end.
fn without_extensions<'a>(header: &InHeader, body: &'a [u8]) -> Option<&'a [u8]> {
    let end = body.len().checked_sub(usize::from(header.total_extlen) * 8)?;
    Some(&body[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MkdirIn;

    #[test]
    fn short_and_unterminated_bodies_are_refused() {
        assert!(Body::parse(&[0; 39]).is_none());
        let (_, mut body) = Body::parse(&[0; 44]).unwrap();
        assert_eq!(body.take::<MkdirIn>().unwrap_err(), Errno(libc::EINVAL));
        let mut body = Body { structures: None, rest: b"name" };
        assert!(body.name().is_err());
        let mut body = Body { structures: None, rest: b"one\0two\0" };
        assert_eq!((body.name().unwrap(), body.name().unwrap()), (&b"one"[..], &b"two"[..]));
        assert!(body.bytes(1).is_err());
    }

    #[test]
    fn extensions_are_cut_off_and_never_reach_past_the_request() {
        let mut request = vec![0; 48];
        request[36] = 1;
        let (header, mut body) = Body::parse(&request).unwrap();
        assert_eq!(header.total_extlen, 1);
        assert!(body.bytes(1).is_err());
        request[36] = 2;
        assert!(Body::parse(&request).is_none());
    }
}

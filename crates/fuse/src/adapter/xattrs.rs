//! Requests about extended attributes.

use forebay_fs::{SetMode, SetXattr};

use crate::abi::{self, GetxattrIn, GetxattrOut, SetxattrIn};
use crate::adapter::{Adapter, Request};
use crate::reply::Reply;
use crate::request::{Answer, Body, Errno};

impl Adapter {
    fn check_offered(&self) -> Answer<()> {
        // The kernel takes ENOSYS as an answer for the whole session and asks no more.
        if self.settings.extended_attributes { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
    }

    pub(crate) fn getxattr(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        self.check_offered()?;
        let asked: GetxattrIn = body.take()?;
        let value = self.fs.xattr(request.ino, body.name()?)?;
        answer(reply, asked.size, &value)
    }

    pub(crate) fn listxattr(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        self.check_offered()?;
        let asked: GetxattrIn = body.take()?;
        let names = self.fs.list_xattrs(request.ino)?;
        if request.caller.uid == 0 {
            return answer(reply, asked.size, &names);
        }
        answer(reply, asked.size, &without_trusted(&names))
    }

    pub(crate) fn setxattr(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        self.check_offered()?;
        let asked = if self.has_long_setxattr() {
            body.take::<SetxattrIn>()?
        } else {
            let [size, flags] = body.take::<[u32; 2]>()?;
            SetxattrIn { size, flags, ..SetxattrIn::default() }
        };
        let name = body.name()?;
        let value = body.bytes(asked.size)?;
        let mode = match asked.flags.cast_signed() {
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            _ => SetMode::Any,
        };
        let kill_set_gid = asked.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
        let set = SetXattr { name, value, mode, kill_set_gid };
        self.recalled(request, || self.fs.set_xattr(request.ino, set))
    }

    pub(crate) fn removexattr(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        self.check_offered()?;
        let name = body.name()?;
        self.recalled(request, || self.fs.remove_xattr(request.ino, name))
    }
}

/// The names that an ordinary user may see: the kernel leaves hiding the `trusted` class to the file
/// system (xattr(7)).
fn without_trusted(names: &[u8]) -> Vec<u8> {
    let visible = |name: &&[u8]| !name.starts_with(b"trusted.");
    names.split_inclusive(|byte| *byte == 0).filter(visible).flatten().copied().collect()
}

/// The value, or its length if `room` is 0.
fn answer(reply: &mut Reply, room: u32, value: &[u8]) -> Answer<()> {
    let size = u32::try_from(value.len()).map_err(|_| Errno(libc::E2BIG))?;
    if room == 0 {
        reply.push(&GetxattrOut { size, padding: 0 });
    } else if size > room {
        return Err(Errno(libc::ERANGE));
    } else {
        reply.push_bytes(value);
    }
    Ok(())
}

//! Requests about names and directories.

use std::ops::ControlFlow;

use forebay_base::Ino;
use forebay_fs::record::Kind;
use forebay_fs::{Attributes, DirectoryItem, HomeNeed, Interruption, KeepName, New, Replace};

use crate::abi::{
    self, Dirent, LinkIn, MkdirIn, MknodIn, OpenOut, ReadIn, Rename2In, RenameIn, opcode,
};
use crate::adapter::{Adapter, Request, absent_or};
use crate::reply::{Reply, type_bits};
use crate::request::{Answer, Body, Errno};
use crate::top::ino_of;

impl Adapter {
    pub(crate) fn lookup(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let name = body.name()?;
        if self.top.is_asked_for(request.number, name) {
            return self.look_up_raised_root(reply);
        }
        self.ask_home(request, HomeNeed::Name(name))?;
        match self.fs.lookup(request.ino, name) {
            Ok(attributes) => reply.push(&self.entry((request.ino, name), &attributes)),
            // Others make names there too: the kernel must not keep that there is nothing.
            Err(error)
                if !(self.fs.may_keep_absence(request.ino) || self.fs.answer_lends_absence()) =>
            {
                return Err(error.into());
            }
            Err(error) => {
                absent_or(error)?;
                reply.push(&self.absent((request.ino, name)));
            }
        }
        Ok(())
    }

    /// The second inode of the root. The clone of the mount keeps it; if there is none after all, the kernel asks again
    /// for what has that name.
    fn look_up_raised_root(&self, reply: &mut Reply) -> Answer<()> {
        let root = self.fs.lookup(Ino::ROOT, b".")?;
        let found = Attributes { name: KeepName::Never, ..root };
        reply.push(&self.entry((Ino::ROOT, b"."), &found));
        Ok(())
    }

    fn make(&self, request: Request, name: &[u8], new: New<'_>, reply: &mut Reply) -> Answer<()> {
        let make = || self.fs.create(request.ino, name, new, request.caller);
        let attributes = self.recalled(request, make)?;
        reply.push(&self.entry((request.ino, name), &attributes));
        Ok(())
    }

    pub(crate) fn mknod(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: MknodIn = body.take()?;
        let kind = kind_of(asked.mode).ok_or(Errno(libc::EINVAL))?;
        let new = new(kind, asked.mode, asked.umask);
        self.make(request, body.name()?, New { rdev: asked.rdev, ..new }, reply)
    }

    pub(crate) fn mkdir(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: MkdirIn = body.take()?;
        self.make(request, body.name()?, new(Kind::Directory, asked.mode, asked.umask), reply)
    }

    pub(crate) fn symlink(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let (name, target) = (body.name()?, body.name()?);
        self.make(request, name, New { target, ..new(Kind::Symlink, 0o777, 0) }, reply)
    }

    pub(crate) fn readlink(&self, request: Request, reply: &mut Reply) -> Answer<()> {
        reply.push_bytes(&self.fs.read_link(request.ino)?);
        Ok(())
    }

    pub(crate) fn unlink(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let name = body.name()?;
        self.recalled(request, || self.fs.unlink(request.ino, name))
    }

    pub(crate) fn rmdir(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let name = body.name()?;
        self.recalled_by(
            request,
            |wait| self.fs.recall_named(request.ino, name, Some(wait)),
            || self.fs.remove_directory(request.ino, name),
        )
    }

    pub(crate) fn rename(&self, code: u32, request: Request, mut body: Body<'_>) -> Answer<()> {
        let (new_parent, flags) = if code == opcode::RENAME {
            (body.take::<RenameIn>()?.newdir, 0)
        } else {
            let asked: Rename2In = body.take()?;
            (asked.newdir, asked.flags)
        };
        let replace = match flags & !libc::RENAME_WHITEOUT {
            0 => Replace::Allowed,
            libc::RENAME_NOREPLACE => Replace::Refused,
            libc::RENAME_EXCHANGE => Replace::Exchange,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let (from, to) = ((request.ino, body.name()?), (ino_of(new_parent), body.name()?));
        let recall = |wait: &Interruption| {
            self.fs.recall(from.0, Some(wait))?;
            // A directory that is replaced has to be empty.
            self.fs.recall_named(to.0, to.1, Some(wait))
        };
        self.recalled_by(request, recall, || {
            if flags & libc::RENAME_WHITEOUT != 0 {
                return self.fs.rename_with_whiteout(from, to, replace, request.caller);
            }
            self.fs.rename(from.0, from.1, to.0, to.1, replace)
        })
    }

    pub(crate) fn link(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: LinkIn = body.take()?;
        let name = body.name()?;
        let linked = ino_of(asked.oldnodeid);
        let link = || self.fs.link(linked, request.ino, name);
        let recall = |wait: &Interruption| {
            [linked, request.ino].iter().try_for_each(|ino| self.fs.recall(*ino, Some(wait)))
        };
        let attributes = self.recalled_by(request, recall, link)?;
        reply.push(&self.entry((request.ino, name), &attributes));
        Ok(())
    }

    /// The kernel takes ENOSYS for "open directories without asking, and keep their listings": it drops a listing
    /// with every change of the directory that it carries out itself, and when it is told to (docs/adr/0030).
    pub(crate) fn open_directory(&self, request: Request, reply: &mut Reply) -> Answer<()> {
        if self.keeps_listings() {
            return Err(Errno(libc::ENOSYS));
        }
        self.fs.open_directory(request.ino)?;
        reply.push(&OpenOut::default());
        Ok(())
    }

    /// Ends a listing of a directory whose names are not for the kernel to keep: it takes a listing for complete when
    /// an answer is empty, and passes over what is too short for an entry (fuse_readdir_uncached, parse_dirfile).
    fn end_listing(&self, request: Request, reply: &mut Reply) {
        if reply.len() == 0 && self.keeps_listings() && !self.fs.keeps_names(request.ino) {
            reply.push(&0_u64);
        }
    }

    pub(crate) fn readdir(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: ReadIn = body.take()?;
        let room = usize::try_from(asked.size).unwrap_or(0);
        if asked.offset == 0 {
            self.ask_home(request, HomeNeed::Names)?;
        }
        self.fs.read_directory(request.ino, asked.offset, &mut |item| {
            push_dirent(reply, room, item)
        })?;
        self.end_listing(request, reply);
        Ok(())
    }

    pub(crate) fn readdirplus(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: ReadIn = body.take()?;
        let room = usize::try_from(asked.size).unwrap_or(0);
        if asked.offset == 0 {
            self.ask_home(request, HomeNeed::Names)?;
        }
        let mut failed = None;
        let most = room / (size_of::<abi::EntryOut>() + size_of::<Dirent>() + 8);
        self.fs.read_directory_ahead(request.ino, asked.offset, most, &mut |item| {
            if reply.len() + size_of::<abi::EntryOut>() + dirent_bytes(item) > room {
                return ControlFlow::Break(());
            }
            // The kernel is not told of `.` and `..` (fuse_readdirplus): an entry without an inode.
            let is_dots = matches!(item.name.as_slice(), b"." | b"..");
            let found =
                if is_dots { Ok(None) } else { self.fs.listed_attributes(request.ino, item) };
            match found {
                Ok(Some(attributes)) => {
                    reply.push(&self.entry((request.ino, &item.name), &attributes));
                }
                Ok(None) => reply.push(&abi::EntryOut::default()),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            push_dirent(reply, room, item)
        })?;
        match failed {
            // What was gathered so far is an answer; the error comes with the next request.
            Some(error) if reply.len() == 0 => Err(error.into()),
            _ => {
                self.end_listing(request, reply);
                Ok(())
            }
        }
    }
}

fn new(kind: Kind, mode: u32, umask: u32) -> New<'static> {
    New {
        kind,
        mode: u16::try_from(mode & 0o7777).unwrap_or(0),
        umask: u16::try_from(umask & 0o777).unwrap_or(0),
        rdev: 0,
        target: b"",
    }
}

/// A regular file with these mode bits.
pub(crate) fn new_file(mode: u32, umask: u32) -> New<'static> {
    new(Kind::File, mode, umask)
}

fn kind_of(mode: u32) -> Option<Kind> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Kind::File,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        _ => return None,
    })
}

fn dirent_bytes(item: &DirectoryItem) -> usize {
    (size_of::<Dirent>() + item.name.len()).next_multiple_of(8)
}

fn push_dirent(reply: &mut Reply, room: usize, item: &DirectoryItem) -> ControlFlow<()> {
    if reply.len() + dirent_bytes(item) > room {
        return ControlFlow::Break(());
    }
    reply.push(&Dirent {
        ino: item.ino.0,
        off: item.next_offset,
        namelen: u32::try_from(item.name.len()).unwrap_or(0),
        r#type: type_bits(item.kind) >> 12,
    });
    reply.push_bytes(&item.name);
    reply.pad();
    ControlFlow::Continue(())
}

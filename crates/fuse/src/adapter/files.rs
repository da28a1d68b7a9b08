//! Requests about open files.

use forebay_base::Ino;
use forebay_disk::{Allocate, Seek, Sync};
use forebay_fs::{Access, Attributes, FsError, Opened, await_closes};

use crate::abi::{
    self, CopyFileRangeIn, CopyFileRangeOut, CreateIn, FallocateIn, FsyncIn, LseekIn, LseekOut,
    OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut, opcode, open_flag,
};
use crate::adapter::names::new_file;
use crate::adapter::{
    Adapter, Request, access_of, access_of_handle, handle_of, is_at_home, lineage_of_handle,
};
use crate::reply::Reply;
use crate::request::{Answer, Body, Errno};
use crate::top::ino_of;

/// Most bytes that one COPY_FILE_RANGE copies; the kernel and its callers go on from there. Who asked
/// cannot be ended before the answer, and where blocks cannot be shared all bytes are copied.
const COPY_MAX: u64 = 64 << 20;

impl Adapter {
    pub(crate) fn open(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: OpenIn = body.take()?;
        let access = access_of(asked.flags);
        if access.truncate {
            self.await_releases(request.ino);
        }
        let open = || self.fs.open_file_here(request.ino, access, request.caller);
        let opened = self.recalled(request, open)?;
        self.note_opener(request, request.ino, access, &opened);
        reply.push(&self.open_out(access, opened));
        Ok(())
    }

    /// Waits a little for handles to be released. The kernel sends RELEASE after close(2) has returned, and
    /// over the ring a request that follows can overtake it: a file that nobody has open any more would be
    /// cut in place, and a program that has just ended would count as running.
    fn await_releases(&self, ino: Ino) {
        await_closes(|| !self.fs.is_open(ino));
    }

    pub(crate) fn create(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: CreateIn = body.take()?;
        let name = body.name()?;
        let new = new_file(asked.mode, asked.umask);
        let access = Access { truncate: false, ..access_of(asked.flags) };
        let is_exclusive = asked.flags.cast_signed() & libc::O_EXCL != 0;
        let (attributes, opened) = self.recalled(request, || {
            match self.fs.create_file(request.ino, name, new, access, request.caller) {
                // Another node has made it since the kernel looked, or the home of a cache has it. The kernel looks again and opens
                // it (do_filp_open repeats with LOOKUP_REVAL), with its checks of permissions.
                Err(FsError::Exists) if !is_exclusive => Err(FsError::Stale),
                made => made,
            }
        })?;
        self.tell_new(request, Some(name), (&attributes, opened), access, reply);
        Ok(())
    }

    pub(crate) fn tmpfile(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: CreateIn = body.take()?;
        let new = new_file(asked.mode, asked.umask);
        let attributes = self.fs.create_unnamed(request.ino, new, request.caller)?;
        let access = Access { truncate: false, ..access_of(asked.flags) };
        let opened = self.fs.open_file(attributes.ino, access, request.caller);
        let opened = opened.inspect_err(|_| self.fs.forget(attributes.ino, 1))?;
        self.tell_new(request, None, (&attributes, opened), access, reply);
        Ok(())
    }

    /// Answers with a file that was made and opened.
    fn tell_new(
        &self,
        request: Request,
        name: Option<&[u8]>,
        (attributes, opened): (&Attributes, Opened),
        access: Access,
        reply: &mut Reply,
    ) {
        let mappable = access.read && access.write && opened.registration.is_some();
        let cacheable = attributes.cacheable && !mappable;
        self.note_opener(request, attributes.ino, access, &opened);
        let attributes = Attributes { cacheable, ..*attributes };
        reply.push(&match name {
            Some(name) => self.entry((request.ino, name), &attributes),
            // The kernel keeps no name of it.
            None => self.ttl.entry(&attributes),
        });
        reply.push(&self.open_out(access, opened));
    }

    pub(crate) fn release(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let asked: ReleaseIn = body.take()?;
        self.release_locks_of_handle(request, &asked);
        let left = if is_at_home(asked.fh) { self.fs.let_go_of(request.ino) } else { None };
        // What it held went with the owner that it was opened at.
        if self.fs.check_lineage(request.ino, lineage_of_handle(asked.fh)).is_err() {
            return Ok(());
        }
        let access = access_of_handle(asked.fh);
        let closed = self.fs.close_left(request.ino, access, left);
        if access.write {
            self.ledger.closed(request.ino);
        }
        Ok(closed?)
    }

    pub(crate) fn read(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: ReadIn = body.take()?;
        let limit = self.settings.request_max.as_usize().max(1 << 20);
        let length = usize::try_from(asked.size).unwrap_or(0).min(limit);
        self.check_handle(request.ino, asked.fh)?;
        let before = reply.len();
        reply.fill(length, |buffer| self.read_bytes(request, asked.offset, buffer))?;
        let read = reply.len() - before;
        self.moved(request, request.ino, read as u64, 0);
        Ok(())
    }

    /// Reads bytes of a file. If they lie in an archive, the request waits until they are fetched.
    fn read_bytes(&self, request: Request, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        match self.fs.read_here(request.ino, offset, buffer) {
            Err(FsError::Archived) => self.wait_for_archive(request, |wait| {
                self.fs.read_archived(request.ino, offset, buffer, Some(wait))
            }),
            done => Ok(done?),
        }
    }

    pub(crate) fn write(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: WriteIn = body.take()?;
        let data = body.bytes(asked.size)?;
        self.check_handle(request.ino, asked.fh)?;
        let write = |done: usize| {
            let (offset, data) = (asked.offset.saturating_add(done as u64), &data[done..]);
            let appends = asked.flags.cast_signed() & libc::O_APPEND != 0
                && asked.write_flags & abi::WRITE_CACHE == 0;
            let kills_set_id = asked.write_flags & abi::WRITE_KILL_SUIDGID != 0;
            if appends {
                let written = self.fs.append(request.ino, offset, data)?;
                if kills_set_id {
                    self.fs.kill_set_id(request.ino)?;
                }
                Ok(written)
            } else if kills_set_id {
                self.fs.write_unprivileged(request.ino, offset, data)
            } else {
                self.fs.write(request.ino, offset, data)
            }
        };
        let mut written = write(0)?;
        // Pages of a mapping that the kernel writes back: nobody would write the rest.
        while asked.write_flags & abi::WRITE_CACHE != 0 && written < data.len() {
            written += write(written)?;
        }
        self.moved(request, request.ino, 0, written as u64);
        reply.push(&WriteOut { size: u32::try_from(written).unwrap_or(asked.size), padding: 0 });
        Ok(())
    }

    pub(crate) fn fsync(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let asked: FsyncIn = body.take()?;
        let data_only = asked.fsync_flags & abi::FSYNC_FDATASYNC != 0;
        self.check_handle(request.ino, asked.fh)?;
        self.fs.sync_file(request.ino, if data_only { Sync::Data } else { Sync::All })?;
        // An owner that took over meanwhile may have synced less than was written by this handle.
        self.check_handle(request.ino, asked.fh)
    }

    /// Refuses a handle whose fileset has lost changes since it was opened.
    fn check_handle(&self, ino: Ino, handle: u64) -> Answer<()> {
        Ok(self.fs.check_lineage(ino, lineage_of_handle(handle))?)
    }

    /// Takes the set-id bits of a file whose content an ordinary user is about to change. With
    /// `HANDLE_KILLPRIV_V2` the kernel leaves that to the file system, and says who may keep the bits only
    /// for writes and truncations.
    fn take_privileges(&self, request: Request, target: Ino) -> Answer<()> {
        if request.caller.uid == 0 { Ok(()) } else { Ok(self.fs.kill_set_id(target)?) }
    }

    pub(crate) fn fallocate(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let asked: FallocateIn = body.take()?;
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let what = match asked.mode.cast_signed() {
            0 => Allocate::Extend,
            KEEP => Allocate::KeepSize,
            PUNCH => Allocate::PunchHole,
            ZERO => Allocate::ZeroRange,
            ZERO_KEEP => Allocate::ZeroRangeKeepSize,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        self.check_handle(request.ino, asked.fh)?;
        self.take_privileges(request, request.ino)?;
        Ok(self.fs.allocate(request.ino, what, asked.offset, asked.length)?)
    }

    pub(crate) fn lseek(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: LseekIn = body.take()?;
        let target = match asked.whence.cast_signed() {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        self.check_handle(request.ino, asked.fh)?;
        let offset = match self.fs.seek_here(request.ino, target, asked.offset) {
            Err(FsError::Archived) => self.wait_for_archive(request, |wait| {
                self.fs.seek_archived(request.ino, target, asked.offset, Some(wait))
            })?,
            done => done?,
        };
        reply.push(&LseekOut { offset });
        Ok(())
    }

    pub(crate) fn copy_file_range(
        &self,
        code: u32,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: CopyFileRangeIn = body.take()?;
        let target = ino_of(asked.nodeid_out);
        self.check_handle(request.ino, asked.fh_in)?;
        self.check_handle(target, asked.fh_out)?;
        self.take_privileges(request, target)?;
        let copied = self.fs.copy_range(
            (request.ino, asked.off_in),
            (ino_of(asked.nodeid_out), asked.off_out),
            asked.len.min(COPY_MAX),
        )?;
        self.moved(request, target, 0, copied);
        if code == opcode::COPY_FILE_RANGE {
            reply.push(&WriteOut { size: u32::try_from(copied).unwrap_or(u32::MAX), padding: 0 });
        } else {
            reply.push(&CopyFileRangeOut { bytes_copied: copied });
        }
        Ok(())
    }

    /// What a file grows by that the kernel writes itself is its opener's.
    fn note_opener(&self, request: Request, ino: Ino, access: Access, opened: &Opened) {
        if access.write && opened.registration.is_some() {
            self.ledger.opened(ino, request.who);
        }
    }

    fn open_out(&self, access: Access, opened: Opened) -> OpenOut {
        let way = match (opened.registration, opened.keep_pages) {
            (Some(_), _) => open_flag::PASSTHROUGH,
            (None, _) if opened.uncached => open_flag::DIRECT_IO,
            (None, true) => open_flag::KEEP_CACHE,
            (None, false) => 0,
        };
        // A close releases locks of fcntl(2): then it must be known of.
        let flush = if self.fs.keeps_locks() { 0 } else { open_flag::NOFLUSH };
        OpenOut {
            fh: handle_of(access, &opened, self.next_serial()),
            open_flags: flush | way,
            backing_id: opened.registration.unwrap_or(0),
        }
    }
}

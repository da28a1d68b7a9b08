//! One connection with its streams, for both sides.
//!
//! The sender of a stream may be [`WINDOW`] bytes ahead of what the other side has passed on, and waits
//! then; so a stream that is stuck holds up neither the other streams nor words. Whoever sends more is cut
//! off.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{InputModes, LocalModes, OutputModes, SpecialCodeIndex, Termios, Winsize};

use super::frame::{self, FRAME_BYTES_MAX, Modes, Size, Stream, Word};

/// How many bytes the sender of a stream may be ahead.
pub const WINDOW: usize = 256 << 10;

/// The control characters of [`Modes`], in their order.
pub const CONTROL_CHARACTERS: [SpecialCodeIndex; 16] = [
    SpecialCodeIndex::VINTR,
    SpecialCodeIndex::VQUIT,
    SpecialCodeIndex::VERASE,
    SpecialCodeIndex::VKILL,
    SpecialCodeIndex::VEOF,
    SpecialCodeIndex::VTIME,
    SpecialCodeIndex::VMIN,
    SpecialCodeIndex::VSTART,
    SpecialCodeIndex::VSTOP,
    SpecialCodeIndex::VSUSP,
    SpecialCodeIndex::VEOL,
    SpecialCodeIndex::VREPRINT,
    SpecialCodeIndex::VDISCARD,
    SpecialCodeIndex::VWERASE,
    SpecialCodeIndex::VLNEXT,
    SpecialCodeIndex::VEOL2,
];

/// What may still be sent on a stream.
#[derive(Debug)]
struct Room {
    bytes: usize,
    closed: bool,
}

/// The sending half of a connection, for many threads.
#[derive(Debug)]
pub struct Link {
    writer: Mutex<UnixStream>,
    /// The same connection, to end it while a thread writes.
    stream: UnixStream,
    rooms: [Mutex<Room>; 3],
    grown: [Condvar; 3],
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Input => 0,
        Stream::Output => 1,
        Stream::Error => 2,
    }
}

impl Link {
    /// The sending half of a connection.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(stream: &UnixStream) -> Result<Link> {
        let room = || Mutex::new(Room { bytes: WINDOW, closed: false });
        Ok(Link {
            writer: Mutex::new(stream.try_clone()?),
            stream: stream.try_clone()?,
            rooms: [room(), room(), room()],
            grown: Default::default(),
        })
    }

    /// Says a word.
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn say(&self, word: &Word) -> Result<()> {
        frame::write_word(&mut *self.writer.lock().unwrap_or_else(PoisonError::into_inner), word)
    }

    fn room(&self, stream: Stream) -> MutexGuard<'_, Room> {
        self.rooms[place(stream)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends bytes of a stream as soon as there is room.
    ///
    /// # Errors
    /// If the other side is gone, or reads this stream no more.
    fn send(&self, stream: Stream, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mut room = self.room(stream);
            while room.bytes == 0 && !room.closed {
                let grown = self.grown[place(stream)].wait(room);
                room = grown.unwrap_or_else(PoisonError::into_inner);
            }
            if room.closed {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let count = bytes.len().min(room.bytes).min(FRAME_BYTES_MAX);
            room.bytes -= count;
            drop(room);
            let (now, later) = bytes.split_at(count);
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            frame::write_data(&mut *writer, stream, now)?;
            bytes = later;
        }
        Ok(())
    }

    /// The other side has passed bytes on.
    pub fn grow(&self, stream: Stream, bytes: u32) {
        let mut room = self.room(stream);
        room.bytes = (room.bytes + bytes as usize).min(WINDOW);
        self.grown[place(stream)].notify_all();
    }

    /// The other side reads a stream no more.
    pub fn close(&self, stream: Stream) {
        self.room(stream).closed = true;
        self.grown[place(stream)].notify_all();
    }

    /// Ends the connection, whoever waits for it.
    pub fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        [Stream::Input, Stream::Output, Stream::Error].into_iter().for_each(|s| self.close(s));
    }

    /// Sends all that can be read, then says that it has ended. It also has where `last` is readable and
    /// nothing is there to be read.
    pub fn pump(&self, stream: Stream, from: OwnedFd, last: Option<BorrowedFd<'_>>) {
        let mut from = File::from(from);
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        while wait_for_bytes(from.as_fd(), last) {
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) if self.send(stream, &bytes[..count]).is_ok() => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A terminal whose last user is gone gives an error instead of an end.
                Ok(_) | Err(_) => break,
            }
        }
        // Before the word: whoever writes into a pipe has to find out that it is gone.
        drop(from);
        let _ = self.say(&Word::End { stream });
    }
}

/// Waits until there is something to be read or an end of it; false if `last` came first.
fn wait_for_bytes(from: BorrowedFd<'_>, last: Option<BorrowedFd<'_>>) -> bool {
    let Some(last) = last else { return true };
    let mut both = [PollFd::new(&from, PollFlags::IN), PollFd::new(&last, PollFlags::IN)];
    while poll(&mut both, None) == Err(rustix::io::Errno::INTR) {}
    !both[0].revents().is_empty() || both[1].revents().is_empty()
}

/// The receiving end of a stream: a thread passes on what came, as fast as it is taken.
#[derive(Debug)]
pub struct Outlet {
    queue: Option<Sender<Vec<u8>>>,
    queued: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Outlet {
    /// Passes what comes on `stream` on to a file, and closes it at the end.
    #[must_use]
    pub fn new(link: &Arc<Link>, stream: Stream, to: OwnedFd) -> Outlet {
        let (queue, blocks) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let (link, counter) = (Arc::clone(link), Arc::clone(&queued));
        let thread = std::thread::spawn(move || pass_on(&link, stream, to, &blocks, &counter));
        Outlet { queue: Some(queue), queued, thread: Some(thread) }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// If the other side sends more than it may.
    pub fn take(&self, bytes: Vec<u8>) -> Result<()> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let ahead = self.queued.fetch_add(bytes.len(), Ordering::SeqCst) + bytes.len();
        if ahead > WINDOW {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "more bytes were sent than were granted",
            ));
        }
        // The thread ends only after the queue.
        let _ = queue.send(bytes);
        Ok(())
    }

    /// Nothing more will come.
    pub fn end(&mut self) {
        self.queue = None;
    }

    /// Waits until everything was passed on.
    ///
    /// # Errors
    /// If something could not be, but for a reader that has gone away: whoever writes to it is told so, as by
    /// any pipe.
    pub fn finish(&mut self) -> Result<()> {
        self.end();
        let passed_on = self.thread.take().map(JoinHandle::join);
        match passed_on {
            Some(Ok(Err(error))) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            Some(Ok(_)) | None => Ok(()),
            Some(Err(_)) => Err(Error::other("the thread that writes it has ended")),
        }
    }
}

fn pass_on(
    link: &Link,
    stream: Stream,
    to: OwnedFd,
    blocks: &Receiver<Vec<u8>>,
    queued: &AtomicUsize,
) -> Result<()> {
    let mut to = Some(File::from(to));
    let mut passed_on = Ok(());
    for block in blocks {
        if let Some(file) = &mut to
            && let Err(error) = file.write_all(&block)
        {
            (to, passed_on) = (None, Err(error));
            let _ = link.say(&Word::Closed { stream });
        }
        queued.fetch_sub(block.len(), Ordering::SeqCst);
        let bytes = u32::try_from(block.len()).unwrap_or(u32::MAX);
        let _ = link.say(&Word::Taken { stream, bytes });
    }
    passed_on
}

/// The modes of a terminal.
#[must_use]
pub fn modes_of(terminal: &Termios) -> Modes {
    Modes {
        input: terminal.input_modes.bits(),
        output: terminal.output_modes.bits(),
        local: terminal.local_modes.bits(),
        characters: CONTROL_CHARACTERS.map(|index| terminal.special_codes[index]).to_vec(),
    }
}

/// Gives a terminal these modes.
pub(crate) fn set_modes(terminal: &mut Termios, modes: &Modes) {
    terminal.input_modes = InputModes::from_bits_retain(modes.input);
    terminal.output_modes = OutputModes::from_bits_retain(modes.output);
    terminal.local_modes = LocalModes::from_bits_retain(modes.local);
    for (index, character) in CONTROL_CHARACTERS.into_iter().zip(&modes.characters) {
        terminal.special_codes[index] = *character;
    }
}

/// A size as the system has it.
pub(crate) fn winsize(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::frame::{Frame, read};

    #[test]
    fn a_sender_waits_for_room_and_goes_on_when_there_is_some() {
        let (near, far) = UnixStream::pair().unwrap();
        let link = Arc::new(Link::new(&near).unwrap());
        let (reader, writer) = std::io::pipe().unwrap();
        let sender = Arc::clone(&link);
        let pump =
            std::thread::spawn(move || sender.pump(Stream::Output, OwnedFd::from(reader), None));
        let feeder = std::thread::spawn(move || {
            let mut writer = writer;
            writer.write_all(&vec![7; 3 * WINDOW]).unwrap();
        });
        let (mut sent, mut granted) = (0, WINDOW);
        let mut from = &far;
        loop {
            match read(&mut from).unwrap().unwrap() {
                Frame::Data(Stream::Output, bytes) => {
                    sent += bytes.len();
                    assert!(sent <= granted, "{sent} bytes, {granted} asked for");
                    if sent == granted {
                        granted += 1000;
                        link.grow(Stream::Output, 1000);
                    }
                }
                Frame::Said(Word::End { stream: Stream::Output }) => break,
                frame => panic!("{frame:?}"),
            }
        }
        assert_eq!(sent, 3 * WINDOW);
        pump.join().unwrap();
        feeder.join().unwrap();
    }

    #[test]
    fn a_stream_that_nobody_reads_any_more_ends_its_sender() {
        let (near, _far) = UnixStream::pair().unwrap();
        let link = Link::new(&near).unwrap();
        link.close(Stream::Input);
        assert_eq!(link.send(Stream::Input, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_cannot_be_passed_on_is_told_at_the_end_unless_the_reader_has_gone() {
        let (near, _far) = UnixStream::pair().unwrap();
        let link = Arc::new(Link::new(&near).unwrap());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut outlet = Outlet::new(&link, Stream::Output, full.into());
        outlet.take(vec![1; 10]).unwrap();
        assert_eq!(outlet.finish().unwrap_err().kind(), ErrorKind::StorageFull);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut outlet = Outlet::new(&link, Stream::Output, OwnedFd::from(writer));
        outlet.take(vec![1; 10]).unwrap();
        outlet.finish().unwrap();
    }

    #[test]
    fn who_sends_more_than_asked_for_is_refused() {
        let (near, _far) = UnixStream::pair().unwrap();
        let link = Arc::new(Link::new(&near).unwrap());
        let (_reader, writer) = std::io::pipe().unwrap();
        let outlet = Outlet::new(&link, Stream::Output, OwnedFd::from(writer));
        let mut blocks = 0;
        while outlet.take(vec![0; FRAME_BYTES_MAX]).is_ok() {
            blocks += 1;
            assert!(blocks < 100, "never refused");
        }
        assert!(blocks >= WINDOW / FRAME_BYTES_MAX);
    }
}

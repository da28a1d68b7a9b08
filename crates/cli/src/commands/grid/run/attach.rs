//! The client's side of an interactive job that runs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result, bail};
use forebay_engine::terminal::frame::{Frame, Stream, Word, read};
use forebay_engine::terminal::link::{Link, Outlet};
use forebay_grid::spec::{Exit, Streams};

use super::tty::{self, Raw};

/// What happens to a client.
pub enum News {
    /// Its job has connected.
    Connected(UnixStream),
    /// It got a signal.
    Signal(i32),
    /// The controller says that the job has ended.
    Ended,
    /// The job says nothing more, but what it wrote may still have to be passed on.
    Ending,
    /// All that the job wrote was passed on, or it is known why not, and it said how it ended unless the
    /// connection broke.
    Over(Over),
}

/// What is known when the job says nothing more.
pub struct Over {
    /// How it ended, if it said so.
    pub exit: Option<Exit>,
    /// What could not be passed on of its output, and why.
    pub unwritten: Vec<String>,
}

/// A client that is connected to its job.
pub struct Attached {
    link: Arc<Link>,
    raw: Option<Raw>,
}

impl Attached {
    /// Takes the terminal, if the job has one, and lets the job start.
    pub fn begin(stream: UnixStream, streams: Streams, news: &Sender<News>) -> Result<Attached> {
        let link = Arc::new(Link::new(&stream)?);
        match read(&mut &stream)? {
            Some(Frame::Said(Word::Hello { .. })) => {}
            Some(frame) => bail!("unexpected first message from the job: {frame:?}"),
            None => bail!("the job disconnected before it started"),
        }
        let (raw, terminal) = match streams {
            Streams::Terminal => {
                let (raw, terminal) = Raw::prepare()?;
                raw.enter()?;
                (Some(raw), Some(terminal))
            }
            Streams::Pipes => (None, None),
        };
        let attached = Attached { link: Arc::clone(&link), raw };
        link.say(&Word::Begin { terminal })?;
        let copy = |descriptor: BorrowedFd<'_>| -> Result<OwnedFd> {
            descriptor.try_clone_to_owned().context("a standard stream is closed")
        };
        let output = copy(rustix::stdio::stdout())?;
        let error = copy(rustix::stdio::stderr())?;
        let input = copy(rustix::stdio::stdin())?;
        let for_input = Arc::clone(&link);
        std::thread::spawn(move || for_input.pump(Stream::Input, input, None));
        let output = Outlet::new(&link, Stream::Output, output);
        let error = Outlet::new(&link, Stream::Error, error);
        let news = news.clone();
        std::thread::spawn(move || {
            let mut outlets = [output, error];
            let exit = listen(&stream, &link, &mut outlets).unwrap_or(None);
            let _ = news.send(News::Ending);
            let names = ["standard output", "standard error"];
            let unwritten = names.iter().zip(&mut outlets).filter_map(|(name, outlet)| {
                let error = outlet.finish().err()?;
                Some(format!("{name} cannot be written: {error}"))
            });
            let _ = news.send(News::Over(Over { exit, unwritten: unwritten.collect() }));
        });
        Ok(attached)
    }

    /// Says a word. If the job is gone, that is told otherwise.
    pub fn say(&self, word: &Word) {
        let _ = self.link.say(word);
    }

    /// Tells the job the size of the terminal.
    pub fn say_size(&self) -> Result<()> {
        if self.raw.is_some() {
            self.say(&Word::Resize { size: tty::size()? });
        }
        Ok(())
    }

    /// Goes on after this process was suspended, as another may have changed the terminal.
    pub fn resume(&self) -> Result<()> {
        if let Some(raw) = &self.raw {
            raw.enter()?;
        }
        self.say_size()
    }
}

/// The connection ends with the client's interest in it.
impl Drop for Attached {
    fn drop(&mut self) {
        self.link.cut();
    }
}

/// Takes what the job says until it says how it ended.
fn listen(
    mut stream: &UnixStream,
    link: &Link,
    [output, error]: &mut [Outlet; 2],
) -> Result<Option<Exit>> {
    while let Some(frame) = read(&mut stream)? {
        match frame {
            Frame::Data(Stream::Output, bytes) => output.take(bytes)?,
            Frame::Data(Stream::Error, bytes) => error.take(bytes)?,
            Frame::Said(Word::End { stream: Stream::Output }) => output.end(),
            Frame::Said(Word::End { stream: Stream::Error }) => error.end(),
            Frame::Said(Word::Taken { stream: Stream::Input, bytes }) => {
                link.grow(Stream::Input, bytes);
            }
            Frame::Said(Word::Closed { stream: Stream::Input }) => link.close(Stream::Input),
            Frame::Said(Word::Exit { exit }) => return Ok(Some(exit)),
            frame => bail!("unexpected message from the job: {frame:?}"),
        }
    }
    Ok(None)
}

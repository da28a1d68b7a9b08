//! The shim's side: connects to the client, gives the job its streams, and passes them on.
//!
//! Threads: one reads what the client says, one for each stream passes it on. Whatever concerns the job's
//! processes is left to the thread that owns the job: it is woken by SIGCHLD and takes it from
//! [`Conversation::orders`].

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_grid::spec::{Exit, Interactive, Streams};
use forebay_process::user::is_root;
use rustix::event::EventfdFlags;
use rustix::fs::Uid;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Signal;
use rustix::termios::tcsetwinsize;

use super::far;
use super::frame::{self, Frame, Stream, Terminal, Word};
use super::link::{Link, Outlet, winsize};
use super::pty;
use crate::home::GridHome;
use crate::run::Task;
use crate::user::Account;

/// How long the client may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A client that waits for its job.
pub struct Caller {
    stream: UnixStream,
    link: Arc<Link>,
    terminal: Option<Terminal>,
}

/// The shim's ends of the job's streams.
pub enum Ends {
    /// The other end of its terminal.
    Terminal(OwnedFd),
    /// Its standard input, output and error.
    Pipes([OwnedFd; 3]),
}

/// What the client wants of the job.
pub enum Order {
    /// It is to have this signal.
    Signal(Signal),
    /// The client is gone.
    Hangup,
}

/// The streams of a job that runs.
pub struct Conversation {
    /// What the client wants.
    pub orders: Receiver<Order>,
    link: Arc<Link>,
    /// Readable when the job has ended: then what is there is all.
    ended: Arc<OwnedFd>,
    /// Streams of output that are not passed on to their end.
    open: Arc<AtomicUsize>,
}

/// Has the thread that owns the job look around.
fn wake() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::CHILD);
}

/// Connects to a socket as a user would, and makes sure that the user listens there. One at which nobody listens any more is
/// removed.
///
/// # Errors
/// If nobody is there, or somebody else.
pub(crate) fn connect(socket: &str, account: &Account) -> Result<UnixStream> {
    let path = Path::new(socket);
    let connected = account.act(|| {
        let connected = connect_soon(path);
        if connected.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
            let _ = path.parent().map(std::fs::remove_dir);
        }
        connected
    });
    let stream = connected?.with_context(|| format!("the client of this job is gone: {socket}"))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    ensure!(
        peer.as_raw() == account.uid,
        "{socket}: user {} listens there, not the user of the job",
        peer.as_raw()
    );
    Ok(stream)
}

/// Connects, as long as the client takes connections at all.
fn connect_soon(path: &Path) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_LIMIT))?;
    rustix::net::connect(&socket, &address)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// Ends a connection whose other side has not answered in time, however slowly it may talk.
fn limit_answer(stream: &UnixStream, answered: &Arc<AtomicBool>) -> Result<()> {
    let (stream, answered) = (stream.try_clone()?, Arc::clone(answered));
    std::thread::Builder::new().name("answer".to_owned()).spawn(move || {
        std::thread::sleep(ANSWER_LIMIT);
        if !answered.load(Ordering::SeqCst) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    })?;
    Ok(())
}

impl Caller {
    /// Connects to the client of a job, and waits until it is ready.
    ///
    /// # Errors
    /// If nobody is there, or somebody else.
    pub fn reach(interactive: &Interactive, task: &Task, account: &Account) -> Result<Caller> {
        let stream = match interactive.node.as_ref().filter(|node| **node != task.host) {
            None => connect(&interactive.socket, account)?,
            Some(node) => {
                let home = GridHome::of(&task.root)?;
                far::connect(&home, node, &interactive.socket, account)?
            }
        };
        let link = Arc::new(Link::new(&stream)?);
        link.say(&Word::Hello { task: task.launch.task, host: task.host.clone() })?;
        let answered = Arc::new(AtomicBool::new(false));
        limit_answer(&stream, &answered)?;
        let answer = frame::read(&mut &stream).context("the client of this job does not answer")?;
        answered.store(true, Ordering::SeqCst);
        let Some(Frame::Said(Word::Begin { terminal })) = answer else {
            bail!("the client of this job disconnected before the job started");
        };
        ensure!(
            terminal.is_some() == (interactive.streams == Streams::Terminal),
            "the client of this job reported a different terminal before"
        );
        Ok(Caller { stream, link, terminal })
    }

    /// Makes the streams of the job, which belong to its user, and gives their ends to its command.
    ///
    /// # Errors
    /// If there are no terminals or descriptors left.
    pub fn give_streams(&self, command: &mut Command, account: &Account) -> Result<Ends> {
        let owner = is_root().then(|| Uid::from_raw(account.uid));
        if let Some(terminal) = &self.terminal {
            let (ours, theirs) = pty::open(terminal).context("cannot create a terminal")?;
            rustix::fs::fchown(&theirs, owner, None)?;
            command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
            return Ok(Ends::Terminal(ours));
        }
        let pipe = || -> Result<(OwnedFd, OwnedFd)> {
            let (reader, writer) = std::io::pipe()?;
            // Programs open /dev/stdin and /dev/stdout by name.
            rustix::fs::fchown(&reader, owner, None)?;
            Ok((reader.into(), writer.into()))
        };
        let ((job_input, input), (output, job_output)) = (pipe()?, pipe()?);
        let (error, job_error) = pipe()?;
        command.stdin(Stdio::from(job_input)).stdout(job_output).stderr(job_error);
        Ok(Ends::Pipes([input, output, error]))
    }

    /// Begins to pass the streams on; the job has been started.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn talk(self, ends: Ends) -> Result<Conversation> {
        let ended = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let (orders_in, orders) = channel();
        let (input, outputs, terminal) = match ends {
            Ends::Terminal(ours) => {
                (ours.try_clone()?, vec![(Stream::Output, ours.try_clone()?)], Some(ours))
            }
            Ends::Pipes([input, output, error]) => {
                (input, vec![(Stream::Output, output), (Stream::Error, error)], None)
            }
        };
        let open = Arc::new(AtomicUsize::new(outputs.len()));
        for (stream, from) in outputs {
            let (link, ended) = (Arc::clone(&self.link), Arc::clone(&ended));
            let open = Arc::clone(&open);
            std::thread::spawn(move || {
                link.pump(stream, from, Some(ended.as_fd()));
                open.fetch_sub(1, Ordering::SeqCst);
                wake();
            });
        }
        let (link, stream) = (Arc::clone(&self.link), self.stream);
        std::thread::spawn(move || {
            let input = Outlet::new(&link, Stream::Input, input);
            // However it ends, the client is not to be heard any more.
            let _ = listen(&stream, &link, input, terminal.as_ref(), &orders_in);
            link.cut();
            let _ = orders_in.send(Order::Hangup);
            wake();
        });
        Ok(Conversation { orders, link: self.link, ended, open })
    }
}

/// Takes what the client says until it ends.
fn listen(
    mut stream: &UnixStream,
    link: &Link,
    mut input: Outlet,
    terminal: Option<&OwnedFd>,
    orders: &Sender<Order>,
) -> Result<()> {
    while let Some(frame) = frame::read(&mut stream)? {
        match frame {
            Frame::Data(Stream::Input, bytes) => input.take(bytes)?,
            Frame::Said(Word::End { stream: Stream::Input }) => input.end(),
            Frame::Said(Word::Taken { stream, bytes }) => link.grow(stream, bytes),
            Frame::Said(Word::Closed { stream }) => link.close(stream),
            Frame::Said(Word::Resize { size }) => {
                if let Some(terminal) = terminal {
                    tcsetwinsize(terminal, winsize(size))?;
                }
            }
            Frame::Said(Word::Signal { number }) => {
                let signal = Signal::from_named_raw(number).context("no signal has this number")?;
                orders.send(Order::Signal(signal))?;
                wake();
            }
            frame => bail!("unexpected message from the client: {frame:?}"),
        }
    }
    Ok(())
}

impl Conversation {
    /// The job has ended: whether all its output was passed on as well. Its owner is woken when that
    /// changes.
    pub fn is_over(&self) -> bool {
        let _ = rustix::io::write(&*self.ended, &1_u64.to_ne_bytes());
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Gives the client up.
    pub fn cut(&self) {
        self.link.cut();
    }

    /// Tells the client how the job ended.
    pub fn say_exit(&self, exit: &Exit) {
        let _ = self.link.say(&Word::Exit { exit: exit.clone() });
    }
}

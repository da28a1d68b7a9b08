//! `forebay run`.

mod attach;
mod listen;
mod tty;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Result, bail};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, JobView, explain};
use forebay_engine::terminal::frame::Word;
use forebay_grid::event::Verb;
use forebay_grid::spec::{Exit, Interactive, JobSpec, Streams};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::JobId;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

use self::attach::{Attached, News, Over};
use self::listen::Listener;
use super::placement::Placement;
use super::wait::{AREA_LIMIT, DEADLINE};
use super::{Which, memory, no_sense};
use crate::output::chain;

/// Run a command on the grid and stay attached to it.
///
/// The job is scheduled like any other, and runs in the current directory with your environment. At a terminal,
/// the job gets its own terminal: keys, Ctrl-C, Ctrl-Z and changes of the window size reach it. If standard input or
/// output is not a terminal, or with --no-tty, standard input, output and error are passed through unchanged.
/// While the job waits, the command shows why; Ctrl-C cancels the job. If this command is killed, the job gets SIGHUP,
/// and SIGKILL 10 seconds later. The job is never started twice. After kill -9 of this command the terminal may
/// be left in raw mode: `stty sane` or `reset` restores it.
///
/// Exit code: that of the command, or 128 plus the number of the signal that killed it, as after `forebay kill`
/// (143, or 137 if it then exited with 0); 2 if the job was refused, 124 if it reached its time limit, 125 if its
/// host, the connection or some of its output was lost, 127 if it could not be started, 130 after Ctrl-C before
/// it started.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay run -- bash                               a shell on the grid
  forebay run -q short -n 2 --mem '4 GiB' -- python3
  forebay run -- sort -n < numbers > sorted         as a filter
  forebay run --no-tty -- make 2> errors")]
pub struct Run {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    placement: Placement,
    /// Give the job pipes, even at a terminal.
    #[arg(long)]
    no_tty: bool,
    /// Program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

const TIME_LIMIT: u8 = 124;
const LOST: u8 = 125;
const NOT_STARTED: u8 = 127;
const KILLED: u8 = 137;

/// Waiting for a slot this long without a word.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the reasons for waiting are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How long the controller, which may be away, has to say what became of a job that said so itself.
const WORD_LIMIT: Duration = Duration::from_secs(10);

/// The interactive job of this process.
struct Session {
    which: Which,
    job: JobId,
    streams: Streams,
    sender: Sender<News>,
    news: Receiver<News>,
    tell: Tell,
}

/// How far an interactive job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has begun.
    Begun,
    /// It is over, or nobody is attached to it any more.
    Over,
}

/// Says on standard error how far a job is.
pub type Tell = fn(Stage, JobId);

/// Says nothing.
fn tell_nothing(_: Stage, _: JobId) {}

/// Runs a job on the grid that FOREBAY_GRID names and stays attached to it, at a terminal if it is wanted and there is
/// one; its exit code.
///
/// # Errors
/// If the job is refused, or the controller does not answer.
pub fn attached(spec: JobSpec, wants_terminal: bool) -> Result<ExitCode> {
    attached_saying(spec, wants_terminal, tell_nothing)
}

/// As [`attached`], and says when the job begins and when it is over.
///
/// # Errors
/// As [`attached`].
pub fn attached_saying(spec: JobSpec, wants_terminal: bool, tell: Tell) -> Result<ExitCode> {
    let at_terminal = wants_terminal && tty::is_there();
    let streams = if at_terminal { Streams::Terminal } else { Streams::Pipes };
    Session::run(Which::default(), spec, streams, tell)
}

/// How following a job that runs ended.
enum Followed {
    Over(Over),
    Left(ExitCode),
}

fn code_of_signal(number: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + number).unwrap_or(LOST))
}

fn say(text: &str) {
    note!("forebay: {text}");
}

impl Run {
    pub fn run(self) -> Result<ExitCode> {
        let at_terminal = !self.no_tty && tty::is_there();
        let streams = if at_terminal { Streams::Terminal } else { Streams::Pipes };
        let spec = self.placement.into_spec(self.command)?;
        if spec.array.is_some() {
            bail!("--name: an interactive job cannot be an array");
        }
        Session::run(self.which, spec, streams, tell_nothing)
    }
}

/// Waits until the job has ended, through restarts of the controller.
fn wait_for_end(which: &Which, job: JobId, news: &Sender<News>) {
    // One that is refused is no longer known: it has ended.
    let _ = which.wait(&Ask::Wait { job });
    let _ = news.send(News::Ended);
}

impl Session {
    /// Submits the job and stays attached to it; its exit code.
    fn run(which: Which, mut spec: JobSpec, streams: Streams, tell: Tell) -> Result<ExitCode> {
        // SAFETY: ignoring a signal is always sound. A reader that is gone is told to the job, and the
        // terminal is left as it was.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (sender, news) = channel();
        let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];
        let mut signals = Signals::new(all)?;
        let listener = Listener::make()?;
        spec.interactive = Some(Interactive { socket: listener.path()?, streams, node: None });
        if let Ok(mut client) = which.client() {
            memory::warn_if_not_enforced(&mut client, &spec);
        }
        let job = which.client()?.submit(spec)?;
        let for_signals = sender.clone();
        std::thread::spawn(move || {
            signals.forever().all(|signal| for_signals.send(News::Signal(signal)).is_ok())
        });
        let accepting = listener.socket()?;
        let for_connection = sender.clone();
        std::thread::spawn(move || listen::accept(&accepting, &for_connection));
        let (for_waiting, for_end) = (which.clone(), sender.clone());
        std::thread::spawn(move || wait_for_end(&for_waiting, job, &for_end));
        let session = Session { which, job, streams, sender, news, tell };
        session.follow(listener)
    }

    /// Follows the job until it has ended; its exit code.
    fn follow(&self, listener: Listener) -> Result<ExitCode> {
        let stream = match self.await_start()? {
            Begun::Connected(stream) => stream,
            Begun::Ended => return Ok(self.exit_code(self.view().as_ref(), None)),
            Begun::Signal(signal) => return Ok(self.take_back(signal)),
        };
        drop(listener);
        (self.tell)(Stage::Begun, self.job);
        let code = self.follow_begun(stream);
        (self.tell)(Stage::Over, self.job);
        code
    }

    /// Follows the job, which has begun, until it has ended; its exit code.
    fn follow_begun(&self, stream: UnixStream) -> Result<ExitCode> {
        let mut told = false;
        let Over { exit, unwritten } = match self.converse(stream, &mut told)? {
            Followed::Over(over) => over,
            Followed::Left(code) => return Ok(code),
        };
        for reason in &unwritten {
            say(reason);
        }
        // A job that could not be started has said nothing either: the controller hears of it soon.
        let mut known = told || self.await_end(true);
        if exit.is_none() && !known {
            let job = self.job;
            say(&format!("the connection to job {job} broke; asking the controller how it ended"));
            known = self.await_end(false);
        }
        let view = if known { self.view() } else { None };
        let code = self.exit_code(view.as_ref(), exit);
        // Whoever takes the output for whole is to find out, whatever the command itself returned.
        Ok(if unwritten.is_empty() { code } else { ExitCode::from(LOST) })
    }

    /// Passes the streams on until the job has ended; the terminal is again as it was afterwards.
    fn converse(&self, stream: UnixStream, told: &mut bool) -> Result<Followed> {
        let attached = Attached::begin(stream, self.streams, &self.sender)?;
        let mut ending = false;
        loop {
            match self.news.recv()? {
                News::Over(over) => return Ok(Followed::Over(over)),
                News::Ending => ending = true,
                News::Ended => *told = true,
                News::Signal(SIGWINCH) => attached.say_size()?,
                News::Signal(SIGCONT) => attached.resume()?,
                News::Signal(number @ (SIGINT | SIGQUIT | SIGTERM | SIGHUP))
                    if ending || self.streams == Streams::Terminal =>
                {
                    return Ok(Followed::Left(code_of_signal(number)));
                }
                News::Signal(number) => attached.say(&Word::Signal { number }),
                News::Connected(_) => {}
            }
        }
    }

    /// Waits until the job begins, and says why it does not.
    fn await_start(&self) -> Result<Begun> {
        let mut patience = PATIENCE;
        let mut said = String::new();
        loop {
            match self.news.recv_timeout(patience) {
                Ok(News::Connected(stream)) => return Ok(Begun::Connected(stream)),
                Ok(News::Ended) => return Ok(Begun::Ended),
                Ok(News::Signal(SIGWINCH | SIGCONT | SIGUSR1 | SIGUSR2)) => {}
                Ok(News::Signal(signal)) => return Ok(Begun::Signal(signal)),
                Ok(News::Ending | News::Over(_)) | Err(RecvTimeoutError::Disconnected) => {
                    bail!("job {} cannot be followed", self.job)
                }
                Err(RecvTimeoutError::Timeout) => {
                    patience = LOOK;
                    let reasons = self.reasons().unwrap_or_else(|error| chain(&error));
                    if !reasons.is_empty() && reasons != said {
                        say(&format!("job {} waits: {reasons}", self.job));
                        said = reasons;
                    }
                }
            }
        }
    }

    /// Why the job waits; empty if it does not.
    fn reasons(&self) -> Result<String> {
        let mut client = self.which.client()?;
        if view(&mut client, self.job)?.is_none_or(|job| job.state != JobState::Pending) {
            return Ok(String::new());
        }
        match client.ask(&Ask::Explain { target: self.job.into() })? {
            Answer::Explained { explanation, used } => {
                let of_hosts = explain::hosts(&explanation)
                    .into_iter()
                    .filter_map(|(host, obstacle)| Some(format!("{host}: {}", obstacle?)));
                let reasons = explain::reasons(&explanation, used.as_deref());
                Ok(reasons.into_iter().chain(of_hosts).collect::<Vec<_>>().join("; "))
            }
            answer => Err(no_sense(&answer)),
        }
    }

    /// Removes the job, which has not begun.
    fn take_back(&self, signal: i32) -> ExitCode {
        let kill = Ask::Command { target: self.job.into(), verb: Verb::Kill };
        match self.which.ask(&kill) {
            Ok(_) => say(&format!("job {} is cancelled", self.job)),
            Err(error) => {
                let why = chain(&error);
                say(&format!("job {} cannot be cancelled: {why}", self.job));
            }
        }
        code_of_signal(signal)
    }

    /// Waits until the controller knows of the end; whether it does. Without a word of the job itself
    /// there is nobody else to ask, so that only a signal ends the waiting.
    fn await_end(&self, job_said_so: bool) -> bool {
        loop {
            let next = if job_said_so {
                self.news.recv_timeout(WORD_LIMIT).ok()
            } else {
                self.news.recv().ok()
            };
            match next {
                Some(News::Ended) => return true,
                None | Some(News::Signal(SIGINT | SIGQUIT | SIGTERM | SIGHUP)) => return false,
                Some(_) => {}
            }
        }
    }

    fn view(&self) -> Option<JobView> {
        view(&mut self.which.client().ok()?, self.job).ok()?
    }

    /// The exit code, with a word where it is not that of the command.
    fn exit_code(&self, view: Option<&JobView>, exit: Option<Exit>) -> ExitCode {
        let job = self.job;
        let state = view.map(|view| view.state);
        let exit = view.and_then(|view| view.exit.clone()).or(exit);
        let value = exit.as_ref().map(Exit::value);
        let code = match (state, exit) {
            (Some(JobState::Killed), _) => {
                say(&format!("job {job} was killed"));
                value.filter(|value| *value != 0).unwrap_or(KILLED)
            }
            (Some(JobState::TimeLimit), _) => {
                say(&format!("job {job} reached its time limit"));
                TIME_LIMIT
            }
            (Some(state @ (JobState::AreaLimit | JobState::Deadline)), _) => {
                let why = if state == JobState::Deadline { DEADLINE } else { AREA_LIMIT };
                say(&format!("job {job} {why}"));
                value.filter(|value| *value != 0).unwrap_or(KILLED)
            }
            (Some(JobState::DependencyNever), _) => {
                say(&format!("job {job} was not started: {}", self.which.why_never(job.into())));
                NOT_STARTED
            }
            (Some(JobState::HostLost), _) => {
                say(&format!("job {job} was lost: its host or the process that held it failed"));
                LOST
            }
            (_, Some(Exit::NotStarted(reason))) => {
                say(&format!("job {job} was not started: {reason}"));
                NOT_STARTED
            }
            (_, Some(exit @ Exit::MemoryLimit(_))) => {
                say(&format!("job {job} was killed: {exit}"));
                exit.value()
            }
            (_, Some(exit @ Exit::ProcessLimit { .. })) => {
                say(&format!("job {job} failed: {exit}"));
                exit.value()
            }
            (_, Some(exit)) => exit.value(),
            (_, None) => {
                say(&format!("it is not known how job {job} ended"));
                LOST
            }
        };
        ExitCode::from(code)
    }
}

fn view(client: &mut Client, job: JobId) -> Result<Option<JobView>> {
    Ok(client.jobs(Some(job.into()), true, None)?.0.pop())
}

/// How the waiting ended.
enum Begun {
    Connected(UnixStream),
    Ended,
    Signal(i32),
}

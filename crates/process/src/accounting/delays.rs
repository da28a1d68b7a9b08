//! What the kernel's delay accounting says a process waited for.
//!
//! Two sources. `taskstats`, asked over generic netlink (Documentation/accounting/taskstats.rst), tells
//! of all threads of a process; the kernel answers who has `CAP_NET_ADMIN`. `delayacct_blkio_ticks` of
//! `/proc/PID/stat` is for everybody, and tells of the main thread. Both need delay accounting to be on
//! (`kernel.task_delayacct`) when the process starts. Neither tells of the process' children. Linux 6.18
//! was seen to miss the start of a thread's first wait and to count it from the boot of the machine; a
//! figure that holds such a wait is left out. The request is made here because it is two messages, and no kept library knows this family.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::process::Pid;

use crate::stat::{Stat, seconds};

/// Seconds that the threads of a process waited, added up. The kinds overlap: swapping waits for a
/// device too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// For block devices, also when it waited for a page of a file; `None` if the kernel miscounted.
    pub io_seconds: Option<f64>,
    /// For memory: swapping in, reclaiming pages, pages that were thrown out too early.
    pub memory_seconds: Option<f64>,
    /// For a processor.
    pub processor_seconds: Option<f64>,
}

/// `NLM_F_REQUEST` of netlink(7).
const REQUEST: u16 = 1;
/// `NLMSG_ERROR` of netlink(7).
const ERROR: u16 = 2;
/// The family of generic netlink that knows the others, `GENL_ID_CTRL`.
const CONTROL: u16 = 0x10;
/// Its command `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// Its attributes `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `TASKSTATS_CMD_GET`.
const GET: u8 = 1;
/// `TASKSTATS_TYPE_STATS`.
const STATS: u16 = 3;
/// Length of the headers of netlink and generic netlink.
const HEADERS: usize = 20;

/// Who is asked about, and how the kernel answers.
#[derive(Clone, Copy, Debug)]
enum About {
    /// One thread: `TASKSTATS_CMD_ATTR_PID`, `TASKSTATS_TYPE_AGGR_PID`.
    Thread,
    /// All threads of a process: `TASKSTATS_CMD_ATTR_TGID`, `TASKSTATS_TYPE_AGGR_TGID`.
    Process,
}

/// A connection to the kernel's `TASKSTATS` family.
#[derive(Debug)]
pub struct Taskstats {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Taskstats {
    /// Connects, and asks about this process to see whether the kernel answers.
    ///
    /// # Errors
    /// The kernel's: without the family (`NotFound`), without the right (`PermissionDenied`).
    pub fn connect() -> io::Result<Taskstats> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        // The kernel answers at once or never.
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
        let mut taskstats = Taskstats { socket, family: CONTROL, sequence: 0 };
        let answer = taskstats.ask(GET_FAMILY, FAMILY_NAME, b"TASKSTATS\0")?;
        let id = attribute(&answer, FAMILY_ID).and_then(|id| id.first_chunk());
        taskstats.family =
            id.map(|id| u16::from_ne_bytes(*id)).ok_or_else(|| no_sense("no family"))?;
        taskstats.of(rustix::process::getpid())?;
        Ok(taskstats)
    }

    /// The delays of a process that was not reaped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(&mut self, pid: Pid) -> io::Result<Delays> {
        let pid = pid.as_raw_nonzero().get().cast_unsigned();
        // Of a process that ended, the kernel keeps the sum of the threads only if it had several;
        // otherwise that is zero and the one thread tells.
        let (process, thread) = (self.about(About::Process, pid)?, self.about(About::Thread, pid)?);
        let larger = |a: Option<f64>, b: Option<f64>| Some(a?.max(b?));
        Ok(Delays {
            io_seconds: larger(process.io_seconds, thread.io_seconds),
            memory_seconds: larger(process.memory_seconds, thread.memory_seconds),
            processor_seconds: larger(process.processor_seconds, thread.processor_seconds),
        })
    }

    fn about(&mut self, about: About, id: u32) -> io::Result<Delays> {
        let (asked, answered) = match about {
            About::Thread => (1, 4),
            About::Process => (2, 5),
        };
        let answer = self.ask(GET, asked, &id.to_ne_bytes())?;
        attribute(&answer, answered)
            .and_then(|both| attribute(both, STATS))
            .and_then(Delays::of_taskstats)
            .ok_or_else(|| no_sense("an unknown form of taskstats"))
    }

    /// Sends a command with one attribute; the attributes of the answer.
    fn ask(&mut self, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let message = request(self.family, self.sequence, command, kind, value);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        let mut bytes = [0; 8192];
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty())?;
            if let Some(answer) = answer(&bytes[..length], self.sequence)? {
                return Ok(answer.to_vec());
            }
        }
    }
}

fn no_sense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's answer holds {what}"))
}

/// A message of generic netlink with one attribute.
fn request(family: u16, sequence: u32, command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute_length = 4 + value.len();
    let length = HEADERS + attribute_length.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The kernel fills in the sender.
    message.extend(0_u32.to_ne_bytes());
    message.extend([command, 1, 0, 0]);
    message.extend(u16::try_from(attribute_length).unwrap_or(u16::MAX).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length, 0);
    message
}

/// The attributes of an answer; `None` if it is to another question.
fn answer(bytes: &[u8], sequence: u32) -> io::Result<Option<&[u8]>> {
    let word =
        |at: usize| bytes.get(at..at + 4)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let short = || no_sense("less than it says");
    let length = word(0).ok_or_else(short)? as usize;
    let kind = bytes.get(4..6).and_then(|kind| kind.first_chunk()).ok_or_else(short)?;
    if word(8).ok_or_else(short)? != sequence {
        return Ok(None);
    }
    if u16::from_ne_bytes(*kind) == ERROR {
        let code = word(16).ok_or_else(short)?.cast_signed();
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    bytes.get(HEADERS..length).map(Some).ok_or_else(short)
}

/// The value of the first attribute of a kind.
fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some([a, b, c, d]) = bytes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let value = bytes.get(4..length)?;
        // The upper two bits are flags.
        if u16::from_ne_bytes([*c, *d]) & 0x3fff == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Where `struct taskstats` of include/uapi/linux/taskstats.h holds its sums of nanoseconds.
struct Places {
    cpu: usize,
    blkio: usize,
    swapin: usize,
    freepages: usize,
    thrashing: usize,
}

impl Places {
    /// Since version 3 fields were added at the end, except in version 15 (Linux 6.14 and 6.15), which put
    /// a maximum and a minimum behind each sum; version 16 moved them to the end.
    fn of(version: u16) -> Option<Places> {
        match version {
            15 => Some(Places { cpu: 24, blkio: 56, swapin: 88, freepages: 368, thrashing: 400 }),
            // The last of these came with version 9.
            9.. => Some(Places { cpu: 24, blkio: 40, swapin: 56, freepages: 320, thrashing: 336 }),
            _ => None,
        }
    }
}

impl Delays {
    /// Leaves out what cannot be: more waiting than one thread has time for, and at least as much as
    /// had passed since the boot when the process began. A process of `real_seconds` that ends
    /// `uptime_seconds` after the boot.
    #[must_use]
    pub fn without_miscounts(self, real_seconds: f64, uptime_seconds: f64) -> Delays {
        // The kernel's clocks differ a little.
        let booted = (uptime_seconds - real_seconds) * 0.9;
        let can_be = |&seconds: &f64| seconds <= real_seconds || seconds < booted;
        Delays { io_seconds: self.io_seconds.filter(can_be), ..self }
    }

    fn of_taskstats(bytes: &[u8]) -> Option<Delays> {
        let places = Places::of(u16::from_ne_bytes(*bytes.first_chunk()?))?;
        let seconds = |at: usize| {
            let nanoseconds = u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?);
            Some(nanoseconds as f64 / 1e9)
        };
        Some(Delays {
            io_seconds: Some(seconds(places.blkio)?),
            memory_seconds: Some(
                seconds(places.swapin)? + seconds(places.freepages)? + seconds(places.thrashing)?,
            ),
            processor_seconds: Some(seconds(places.cpu)?),
        })
    }

    fn of_stat(stat: &Stat) -> Option<Delays> {
        let io_seconds = Some(seconds(stat.block_wait_ticks?));
        Some(Delays { io_seconds, memory_seconds: None, processor_seconds: None })
    }
}

/// Where delays come from on this machine.
#[derive(Debug)]
pub enum Source {
    /// All threads, from `taskstats`.
    Taskstats(Taskstats),
    /// The main thread, from `/proc/PID/stat`; why not better.
    Stat(String),
    /// Nowhere; why.
    None(String),
}

impl Source {
    /// Finds the best one.
    #[must_use]
    pub fn find() -> Source {
        let switch = fs::read_to_string("/proc/sys/kernel/task_delayacct").ok();
        // Only what has no switch is known by these.
        let text = |path: &str| match switch {
            Some(_) => String::new(),
            None => fs::read_to_string(path).unwrap_or_default(),
        };
        let (release, boot) = (text("/proc/sys/kernel/osrelease"), text("/proc/cmdline"));
        match reason_off(switch.as_deref(), &release, &boot) {
            Some(reason) => Source::None(reason),
            None => match Taskstats::connect() {
                Ok(taskstats) => Source::Taskstats(taskstats),
                Err(error) => Source::Stat(error.to_string()),
            },
        }
    }

    /// What a process that was not reaped waited for.
    pub fn of(&mut self, pid: Pid) -> Option<Delays> {
        match self {
            Source::Taskstats(taskstats) => taskstats.of(pid).ok(),
            Source::Stat(_) => Delays::of_stat(&Stat::of(pid)?),
            Source::None(_) => None,
        }
    }

    /// For people: which one it is, and how to get a better one.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Source::Taskstats(_) => {
                "the kernel's delay accounting of all threads of a job (taskstats, block I/O)"
                    .into()
            }
            Source::Stat(reason) => format!(
                "the kernel's delay accounting of the main thread of a job (delayacct_blkio_ticks in \
                 /proc/PID/stat); all threads would need root or CAP_NET_ADMIN for taskstats: {reason}"
            ),
            Source::None(reason) => format!("not known: {reason}"),
        }
    }
}

/// Why the kernel does not account for delays; `None` if it does.
fn reason_off(switch: Option<&str>, release: &str, boot: &str) -> Option<String> {
    match switch.map(str::trim) {
        Some("0") => Some(
            "the kernel's delay accounting is off; `sysctl kernel.task_delayacct=1` as root switches it \
             on for processes that start later"
                .to_owned(),
        ),
        Some(_) => None,
        // Linux 5.14 brought the switch; before, it was on unless the boot said otherwise.
        None if version(release) >= (5, 14) => {
            Some("the kernel was built without CONFIG_TASK_DELAY_ACCT".to_owned())
        }
        None => boot
            .split_ascii_whitespace()
            .any(|word| word == "nodelayacct")
            .then(|| "the kernel was booted with nodelayacct".to_owned()),
    }
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests;

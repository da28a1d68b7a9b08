//! Settings of the kernel front end: its part of `forebay.toml`.

use std::time::Duration;

use forebay_base::ByteSize;
use forebay_base::settings::{Section, Setting, value};

/// The settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How requests of the kernel arrive.
    pub transport: TransportChoice,
    /// Requests of each core that can be under way over io_uring.
    pub ring_depth: usize,
    /// Slice of processor time that threads of the ring ask for; zero leaves it as the system has it.
    pub ring_slice: Duration,
    /// Threads that answer the kernel; slow requests (sync, served reads and writes) run side by side.
    pub fuse_threads: usize,
    /// Threads that wait for requests at once.
    pub fuse_readers: usize,
    /// Largest read or write request of the served path.
    pub request_max: ByteSize,
    /// Whether extended attributes and access control lists are offered.
    pub extended_attributes: bool,
    /// How long the kernel may keep names and attributes without asking.
    pub kernel_ttl: Duration,
    /// As `kernel_ttl`, of filesets that this node of a cluster owns; `kernel_ttl` is for others then.
    pub own_kernel_ttl: Duration,
    /// Read-ahead of the mount (served path); needs root.
    pub read_ahead: ByteSize,
}

/// How requests of the kernel are to arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Over io_uring if that can be had, else over /dev/fuse.
    #[default]
    Auto,
    /// Over /dev/fuse.
    Dev,
    /// Over io_uring, or not at all.
    Uring,
}

impl std::fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Dev => "dev",
            TransportChoice::Uring => "uring",
        })
    }
}

impl std::str::FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<TransportChoice, String> {
        match text {
            "auto" => Ok(TransportChoice::Auto),
            "dev" => Ok(TransportChoice::Dev),
            "uring" => Ok(TransportChoice::Uring),
            _ => Err("expected auto, dev or uring".to_owned()),
        }
    }
}

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Section for Settings {
    const TABLE: &'static [Setting<Settings>] = &[
        Setting {
            name: "transport",
            default: "\"auto\"",
            allowed: "\"auto\", \"dev\" or \"uring\"",
            meaning: "How the kernel sends requests: over io_uring (\"uring\"), over /dev/fuse \
                      (\"dev\"), or over io_uring if it is available (\"auto\").",
            set: |s, v| v.as_str()?.parse().ok().map(|x| s.transport = x),
        },
        Setting {
            name: "ring_depth",
            default: "8",
            allowed: "a number from 1 to 64",
            meaning: "Requests that each core can have in progress over io_uring; each has a thread \
                      and up to request_max of memory, at least 128 KiB.",
            set: |s, v| value::count(v, 1, 64).map(|x| s.ring_depth = x),
        },
        Setting {
            name: "ring_slice",
            default: "\"100 us\"",
            allowed: "a time from \"100 us\" to \"100 ms\", or \"0 s\" (leave it to the system)",
            meaning: "Slice of processor time that the threads serving io_uring request from the \
                      scheduler (Linux 6.12); with a shorter slice, a woken thread runs sooner.",
            set: |s, v| {
                let slice = value::duration(v, Duration::ZERO, MS(100))?;
                let fits = slice.is_zero() || slice >= Duration::from_micros(100);
                fits.then(|| s.ring_slice = slice)
            },
        },
        Setting {
            name: "fuse_threads",
            default: "8",
            allowed: "a number from 2 to 256",
            meaning: "Threads that serve the kernel's requests over /dev/fuse; slow requests run on \
                      them in parallel.",
            set: |s, v| value::count(v, 2, 256).map(|x| s.fuse_threads = x),
        },
        Setting {
            name: "fuse_readers",
            default: "1",
            allowed: "a number from 1 to 64",
            meaning: "Threads that wait for requests on /dev/fuse at the same time; quick requests run on these.",
            set: |s, v| value::count(v, 1, 64).map(|x| s.fuse_readers = x),
        },
        Setting {
            name: "request_max",
            default: "\"1 MiB\"",
            allowed: "a size from \"4 KiB\" to \"1 MiB\"",
            meaning: "Largest read or write request of the served path.",
            set: |s, v| {
                value::size(v, ByteSize::kib(4), ByteSize::mib(1)).map(|x| s.request_max = x)
            },
        },
        Setting {
            name: "extended_attributes",
            default: "true",
            allowed: "true or false",
            meaning: "Whether extended attributes and access control lists are supported. Without \
                      them the kernel sends one request fewer for each file that is written.",
            set: |s, v| v.as_bool().map(|x| s.extended_attributes = x),
        },
        Setting {
            name: "kernel_ttl",
            default: "\"1 h\"",
            allowed: "a time from \"0 s\" to \"24 h\"",
            meaning: "How long the kernel may cache names and attributes without asking. In a cluster at most 5 s of filesets \
                      of this node, and 0.4 s of others.",
            set: |s, v| value::duration(v, MS(0), MS(86_400_000)).map(|x| s.kernel_ttl = x),
        },
        Setting {
            name: "read_ahead",
            default: "\"4 MiB\"",
            allowed: "a size from \"0 B\" to \"64 MiB\"",
            meaning: "Read-ahead of the mount (served path); needs root.",
            set: |s, v| value::size(v, ByteSize(0), ByteSize::mib(64)).map(|x| s.read_ahead = x),
        },
    ];
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            transport: TransportChoice::Auto,
            ring_depth: 0,
            ring_slice: Duration::ZERO,
            fuse_threads: 0,
            fuse_readers: 0,
            request_max: ByteSize(0),
            extended_attributes: false,
            kernel_ttl: Duration::ZERO,
            own_kernel_ttl: Duration::ZERO,
            read_ahead: ByteSize(0),
        }
        .with_defaults()
    }
}

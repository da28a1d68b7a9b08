//! Settings of a file system: `forebay.toml` in its home folder.
//!
//! One table, [`SETTINGS`], holds every setting with its default, what is allowed and what it means;
//! reading, checking, printing and the commented file that mkfs writes all come from it. A bad file is
//! refused with the key, the value, what is allowed and the line.

use std::fmt::Write as _;
use std::time::Duration;

use forebay_base::ByteSize;
use toml::Value;

/// All settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Uncommitted changes (store keys) that trigger a commit before its time.
    pub uncommitted_max: usize,
    /// Memory for cached inodes and directory entries.
    pub inode_cache_max: ByteSize,
    /// Directories with at most this many entries are cached whole when they are listed.
    pub directory_load_max: u64,
    /// Objects kept open: files in use and recently used.
    pub open_objects_max: usize,
    /// Fresh objects made ahead of need.
    pub spare_objects: usize,
    /// Whether the kernel may read and write objects itself.
    pub direct: bool,
    /// Whether extended attributes and access control lists are offered.
    pub extended_attributes: bool,
    /// Threads that answer the kernel; slow requests (sync, served reads and writes) run side by side.
    pub fuse_threads: usize,
    /// Threads that wait for requests at once.
    pub fuse_readers: usize,
    /// How requests of the kernel arrive.
    pub transport: TransportChoice,
    /// Requests of each core that can be under way over io_uring.
    pub ring_depth: usize,
    /// Priority of the daemon, as nice(1) counts it; needs root.
    pub daemon_nice: i32,
    /// Slice of processor time that threads of the ring ask for; zero leaves it as the system has it.
    pub ring_slice: Duration,
    /// Largest read or write request of the served path.
    pub request_max: ByteSize,
    /// How long the kernel may keep names and attributes without asking.
    pub kernel_ttl: Duration,
    /// Read-ahead of the mount (served path); needs root.
    pub read_ahead: ByteSize,
    /// Read-ahead of the devices under directory disks while mounted (direct path); needs root. 0
    /// leaves them as they are.
    pub disk_read_ahead: ByteSize,
    /// Cache of the stores of all open filesets together.
    pub store_cache: ByteSize,
    /// Space kept aside in the home folder so that deletes can be committed on a full disk.
    pub store_reserve: ByteSize,
    /// Space kept aside on each disk for the names of objects.
    pub disk_reserve: ByteSize,
    /// Descriptors that stand for inodes of a native fileset which the daemon serves, while nobody has them open.
    pub native_handles_max: usize,
    /// What one other node may hold: inodes that its kernel knows, and open files.
    pub client_holds_max: usize,
    /// How long a request waits for the owner of a fileset.
    pub owner_wait: Duration,
    /// After how long a fileset that nobody uses is closed; zero for never.
    pub fileset_idle: Duration,
    /// How long a request waits for a disk whose node does not answer.
    pub away_timeout: Duration,
    /// Who keeps locks on files.
    pub locks: LockChoice,
    /// Locks that one fileset holds at most, in ranges.
    pub locks_max: usize,
    /// Requests that wait for a lock at once.
    pub lock_waits_max: usize,
}

/// Who keeps the locks of programs on files (flock, fcntl).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockChoice {
    /// The kernel: programs of one mount exclude each other.
    #[default]
    Kernel,
    /// The owner of the fileset: programs of all nodes do.
    Shared,
}

impl std::str::FromStr for LockChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<LockChoice, String> {
        match text {
            "kernel" => Ok(LockChoice::Kernel),
            "shared" => Ok(LockChoice::Shared),
            _ => Err("expected kernel or shared".to_owned()),
        }
    }
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

/// One setting.
pub struct Setting {
    /// Key in `forebay.toml`.
    pub name: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// What is allowed, in words.
    pub allowed: &'static str,
    /// What it does.
    pub meaning: &'static str,
    set: fn(&mut Settings, &Value) -> Option<()>,
}

fn number(value: &Value, low: u64, high: u64) -> Option<u64> {
    let number = u64::try_from(value.as_integer()?).ok()?;
    (low..=high).contains(&number).then_some(number)
}

fn count(value: &Value, low: usize, high: usize) -> Option<usize> {
    usize::try_from(number(value, low as u64, high as u64)?).ok()
}

fn size(value: &Value, low: ByteSize, high: ByteSize) -> Option<ByteSize> {
    let size = match value {
        Value::String(text) => text.parse().ok()?,
        other => ByteSize(u64::try_from(other.as_integer()?).ok()?),
    };
    (low..=high).contains(&size).then_some(size)
}

fn duration(value: &Value, low: Duration, high: Duration) -> Option<Duration> {
    let text = value.as_str()?.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let duration = match text[digits..].trim() {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    };
    (low..=high).contains(&duration).then_some(duration)
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Every setting there is.
pub const SETTINGS: [Setting; 29] = [
    Setting {
        name: "commit_interval",
        default: "\"5 s\"",
        allowed: "a time from \"10 ms\" to \"60 s\"",
        meaning: "Longest time between a change and its commit.",
        set: |s, v| duration(v, MS(10), MS(60_000)).map(|x| s.commit_interval = x),
    },
    Setting {
        name: "uncommitted_max",
        default: "200000",
        allowed: "a number from 1000 to 10000000",
        meaning: "Uncommitted changes (records) that trigger a commit before its time.",
        set: |s, v| count(v, 1000, 10_000_000).map(|x| s.uncommitted_max = x),
    },
    Setting {
        name: "inode_cache_max",
        default: "\"1 GiB\"",
        allowed: "a size from \"1 MiB\" to \"1 TiB\"",
        meaning: "Memory for cached inodes and directory entries. Beside it the daemon takes up to 1 KiB for \
                  each record of uncommitted_max, store_cache, up to 40 bytes for each inode that the kernel \
                  knows, about 100 KiB for each open fileset, buffers for requests (see forebay status), about \
                  10 MiB of its own, and what is in use now.",
        set: |s, v| size(v, ByteSize::mib(1), ByteSize::gib(1024)).map(|x| s.inode_cache_max = x),
    },
    Setting {
        name: "directory_load_max",
        default: "65536",
        allowed: "a number from 0 to 10000000",
        meaning: "Directories with at most this many entries are cached whole when they are \
                  listed, or when many names were not found in them.",
        set: |s, v| number(v, 0, 10_000_000).map(|x| s.directory_load_max = x),
    },
    Setting {
        name: "open_objects_max",
        default: "8192",
        allowed: "a number from 64 to 1000000, below the process's file descriptor limit",
        meaning: "Objects kept open: files in use, and recently used ones.",
        set: |s, v| count(v, 64, 1_000_000).map(|x| s.open_objects_max = x),
    },
    Setting {
        name: "spare_objects",
        default: "128",
        allowed: "a number from 0 to 4096",
        meaning: "Fresh objects that are prepared in advance, per file system.",
        set: |s, v| count(v, 0, 4096).map(|x| s.spare_objects = x),
    },
    Setting {
        name: "direct",
        default: "true",
        allowed: "true or false",
        meaning: "Whether the kernel may read and write objects itself (FUSE passthrough, needs root).",
        set: |s, v| v.as_bool().map(|x| s.direct = x),
    },
    Setting {
        name: "extended_attributes",
        default: "true",
        allowed: "true or false",
        meaning: "Whether extended attributes and access control lists are supported. Without \
                  them the kernel sends one request less for each file that is written.",
        set: |s, v| v.as_bool().map(|x| s.extended_attributes = x),
    },
    Setting {
        name: "fuse_threads",
        default: "8",
        allowed: "a number from 2 to 256",
        meaning: "Threads that serve the kernel's requests over /dev/fuse; slow requests run on \
                  them in parallel.",
        set: |s, v| count(v, 2, 256).map(|x| s.fuse_threads = x),
    },
    Setting {
        name: "fuse_readers",
        default: "1",
        allowed: "a number from 1 to 64",
        meaning: "Threads that wait for requests on /dev/fuse at the same time; quick requests run on these.",
        set: |s, v| count(v, 1, 64).map(|x| s.fuse_readers = x),
    },
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
        set: |s, v| count(v, 1, 64).map(|x| s.ring_depth = x),
    },
    Setting {
        name: "daemon_nice",
        default: "-10",
        allowed: "a number from -20 to 0",
        meaning: "Priority of the daemon, as nice(1) counts it; needs root. Programs wait for it: on a \
                  machine with all cores busy it must not queue behind them.",
        set: |s, v| {
            let nice = i32::try_from(v.as_integer()?).ok()?;
            (-20..=0).contains(&nice).then(|| s.daemon_nice = nice)
        },
    },
    Setting {
        name: "ring_slice",
        default: "\"100 us\"",
        allowed: "a time from \"100 us\" to \"100 ms\", or \"0 s\" (leave it to the system)",
        meaning: "Slice of processor time that the threads serving io_uring request from the \
                  scheduler (Linux 6.12); with a shorter slice, a woken thread runs sooner.",
        set: |s, v| {
            let slice = duration(v, Duration::ZERO, MS(100))?;
            let fits = slice.is_zero() || slice >= Duration::from_micros(100);
            fits.then(|| s.ring_slice = slice)
        },
    },
    Setting {
        name: "request_max",
        default: "\"1 MiB\"",
        allowed: "a size from \"4 KiB\" to \"1 MiB\"",
        meaning: "Largest read or write request of the served path.",
        set: |s, v| size(v, ByteSize::kib(4), ByteSize::mib(1)).map(|x| s.request_max = x),
    },
    Setting {
        name: "kernel_ttl",
        default: "\"1 h\"",
        allowed: "a time from \"0 s\" to \"24 h\"",
        meaning: "How long the kernel may cache names and attributes without asking.",
        set: |s, v| duration(v, MS(0), MS(86_400_000)).map(|x| s.kernel_ttl = x),
    },
    Setting {
        name: "read_ahead",
        default: "\"4 MiB\"",
        allowed: "a size from \"0 B\" to \"64 MiB\"",
        meaning: "Read-ahead of the mount (served path); needs root.",
        set: |s, v| size(v, ByteSize(0), ByteSize::mib(64)).map(|x| s.read_ahead = x),
    },
    Setting {
        name: "disk_read_ahead",
        default: "\"0 B\"",
        allowed: "a size from \"0 B\" (leave as it is) to \"64 MiB\"",
        meaning: "Least read-ahead of the devices under the disks while mounted (direct path); \
                  needs root. Measure first: some devices gain from 1 MiB, others lose half. The \
                  daemon that raised it restores it on exit, unless it is killed; with several \
                  file systems on one device, set it yourself and use \"0 B\" here.",
        set: |s, v| size(v, ByteSize(0), ByteSize::mib(64)).map(|x| s.disk_read_ahead = x),
    },
    Setting {
        name: "store_cache",
        default: "\"64 MiB\"",
        allowed: "a size from \"1 MiB\" to \"64 GiB\"",
        meaning: "Memory in which the stores of all open filesets cache their pages, together. The root fileset gets an \
                  eighth, and each other one half of what is left when it is opened, at least 64 KiB.",
        set: |s, v| size(v, ByteSize::mib(1), ByteSize::gib(64)).map(|x| s.store_cache = x),
    },
    Setting {
        name: "store_reserve",
        default: "\"64 MiB\"",
        allowed: "a size from \"0 B\" to \"16 GiB\"",
        meaning: "Space kept aside in the home folder, at most an eighth of its disk, so that deletes \
                  can be committed when it is full.",
        set: |s, v| size(v, ByteSize(0), ByteSize::gib(16)).map(|x| s.store_reserve = x),
    },
    Setting {
        name: "disk_reserve",
        default: "\"16 MiB\"",
        allowed: "a size from \"0 B\" to \"16 GiB\"",
        meaning: "Space kept aside on each disk, at most an eighth of it, so that new files can be committed \
                  when it is full. With less than four times as much free, no objects are made ahead of need.",
        set: |s, v| size(v, ByteSize(0), ByteSize::gib(16)).map(|x| s.disk_reserve = x),
    },
    Setting {
        name: "native_handles_max",
        default: "4096",
        allowed: "a number from 16 to 1000000, below the process's file descriptor limit",
        meaning: "Descriptors that stand for files of a native fileset served by the daemon while nobody has them \
                  open, for each such fileset. Native filesets that are bound in place need none.",
        set: |s, v| count(v, 16, 1_000_000).map(|x| s.native_handles_max = x),
    },
    Setting {
        name: "client_holds_max",
        default: "4000000",
        allowed: "a number from 1000 to 100000000",
        meaning: "What one other node may hold of the filesets that this one owns: inodes that its kernel knows, and \
                  open files. Beyond it, requests of that node are refused. Each takes up to 50 bytes.",
        set: |s, v| count(v, 1000, 100_000_000).map(|x| s.client_holds_max = x),
    },
    Setting {
        name: "owner_wait",
        default: "\"60 s\"",
        allowed: "a time from \"10 ms\" to \"24 h\"",
        meaning: "How long a request waits while no node owns its fileset, before it fails.",
        set: |s, v| duration(v, MS(10), MS(86_400_000)).map(|x| s.owner_wait = x),
    },
    Setting {
        name: "fileset_idle",
        default: "\"10 min\"",
        allowed: "a time from \"0 s\" to \"24 h\"",
        meaning: "After how long a fileset that nobody uses is closed, which gives back its memory; its next use opens \
                  it again. \"0 s\" keeps all open. In a cluster filesets stay open.",
        set: |s, v| duration(v, MS(0), MS(86_400_000)).map(|x| s.fileset_idle = x),
    },
    Setting {
        name: "away_timeout",
        default: "\"30 s\"",
        allowed: "a time from \"0 ms\" to \"10000 h\"",
        meaning: "How long programs wait for the bytes of a file whose disk belongs to another node that does not answer, \
                  counted from when that was noticed. Then they get EIO, until the node is back. \"10000 h\" waits for \
                  ever in effect.",
        set: |s, v| duration(v, MS(0), MS(36_000_000_000)).map(|x| s.away_timeout = x),
    },
    Setting {
        name: "locks",
        default: "\"kernel\"",
        allowed: "\"kernel\" or \"shared\"",
        meaning: "Who keeps locks of programs on files (flock, fcntl): the kernel, for the programs of this mount \
                  (\"kernel\"), or the owner of the fileset, for those of all nodes (\"shared\"). A mount of a \
                  cluster always uses \"shared\".",
        set: |s, v| v.as_str()?.parse().ok().map(|x| s.locks = x),
    },
    Setting {
        name: "locks_max",
        default: "1000000",
        allowed: "a number from 100 to 100000000",
        meaning: "Ranges that are locked at once in each fileset, at most (locks = \"shared\"). Beyond it, locks are \
                  refused (ENOLCK). Each takes about 100 bytes.",
        set: |s, v| count(v, 100, 100_000_000).map(|x| s.locks_max = x),
    },
    Setting {
        name: "lock_waits_max",
        default: "4096",
        allowed: "a number from 1 to 1000000",
        meaning: "Requests that wait for a lock at once in each fileset, at most (locks = \"shared\"). Beyond it, \
                  requests that would wait are refused (ENOLCK).",
        set: |s, v| count(v, 1, 1_000_000).map(|x| s.lock_waits_max = x),
    },
];

impl Default for Settings {
    fn default() -> Settings {
        let mut settings = Settings {
            commit_interval: Duration::ZERO,
            uncommitted_max: 0,
            inode_cache_max: ByteSize(0),
            directory_load_max: 0,
            open_objects_max: 0,
            spare_objects: 0,
            direct: false,
            extended_attributes: false,
            fuse_threads: 0,
            fuse_readers: 0,
            transport: TransportChoice::Auto,
            ring_depth: 0,
            daemon_nice: 0,
            ring_slice: Duration::ZERO,
            request_max: ByteSize(0),
            kernel_ttl: Duration::ZERO,
            read_ahead: ByteSize(0),
            disk_read_ahead: ByteSize(0),
            store_cache: ByteSize(0),
            store_reserve: ByteSize(0),
            disk_reserve: ByteSize(0),
            native_handles_max: 0,
            client_holds_max: 0,
            owner_wait: Duration::ZERO,
            fileset_idle: Duration::ZERO,
            away_timeout: Duration::ZERO,
            locks: LockChoice::Kernel,
            locks_max: 0,
            lock_waits_max: 0,
        };
        for setting in &SETTINGS {
            let value: Value = format!("x = {}", setting.default)
                .parse::<toml::Table>()
                .ok()
                .and_then(|mut table| table.remove("x"))
                .expect("defaults are valid TOML");
            (setting.set)(&mut settings, &value).expect("defaults are allowed");
        }
        settings
    }
}

impl Settings {
    /// Reads the text of a settings file; `file` is its name for messages.
    ///
    /// # Errors
    /// A text that names the file and line, the key, the value and what is allowed.
    pub fn parse(file: &str, text: &str) -> Result<Settings, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of_offset(text, span.start));
            format!("{file}, line {line}: {}", error.message())
        })?;
        let mut settings = Settings::default();
        for (key, value) in &table {
            let line = line_of_key(text, key);
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == key) else {
                let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
                return Err(format!(
                    "{file}, line {line}: unknown key \"{key}\" (value {value}); allowed keys are: {}",
                    names.join(", ")
                ));
            };
            (setting.set)(&mut settings, value).ok_or_else(|| {
                format!(
                    "{file}, line {line}: {key} = {value} is not allowed: must be {}",
                    setting.allowed
                )
            })?;
        }
        Ok(settings)
    }

    /// The settings file that mkfs writes: every setting, commented out, with its meaning.
    #[must_use]
    pub fn template() -> String {
        let mut text = String::from(
            "# Settings of this Forebay file system. They take effect at the next mount.\n\
             # Each line shows the default: remove the # in front to change it.\n",
        );
        for setting in &SETTINGS {
            let _ = write!(
                text,
                "\n# {}\n# Allowed: {}.\n#{} = {}\n",
                setting.meaning, setting.allowed, setting.name, setting.default
            );
        }
        text
    }
}

fn line_of_offset(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

fn line_of_key(text: &str, key: &str) -> usize {
    let is_key_line = |line: &str| {
        let name = line.split(['=', '.']).next().unwrap_or("").trim();
        name.trim_matches(['"', '\'', '[', ']']) == key
    };
    text.lines().position(is_key_line).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_the_defaults() {
        let template = Settings::template();
        assert_eq!(Settings::parse("f", &template), Ok(Settings::default()));
        let uncommented: String = template
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert_eq!(Settings::parse("f", &uncommented), Ok(Settings::default()));
        assert!(uncommented.contains("\ncommit_interval = "));
    }

    #[test]
    fn bad_settings_name_line_key_value_and_what_is_allowed() {
        let cases = [
            ("# a\nspeed = 3\n", ["line 2", "\"speed\"", "3", "commit_interval"]),
            ("commit_interval = \"9 days\"", ["line 1", "commit_interval", "9 days", "\"60 s\""]),
            ("\n\nfuse_threads = 0", ["line 3", "fuse_threads", "0", "from 2 to 256"]),
            ("direct = \"yes\"", ["line 1", "direct", "yes", "true or false"]),
            ("inode_cache_max = -1", ["line 1", "inode_cache_max", "-1", "1 MiB"]),
            ("ring_slice = \"99 us\"", ["line 1", "ring_slice", "99 us", "from \"100 us\""]),
            ("ring_slice = \"1 s\"", ["line 1", "ring_slice", "1 s", "to \"100 ms\""]),
        ];
        for (text, wanted) in cases {
            let message = Settings::parse("forebay.toml", text).unwrap_err();
            for part in wanted {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        }
        let message = Settings::parse("forebay.toml", "a = 1\nb = = 2\n").unwrap_err();
        assert!(message.contains("line 2"), "{message}");
    }
}

//! What the suites are told that several tests run: pjdfstest and fsx.

/// `naptime` is longer than the tick of the kernel's coarse clock, also where the machine below keeps the processor that
/// ticks from running for a while (20 ms were too short once). The users are those that every
/// Debian machine has.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.1
allow_remount = ALLOW_REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The configuration of pjdfstest, with the cases that remount or without them.
#[must_use]
pub fn pjdfstest_configuration(allow_remount: bool) -> String {
    CONFIGURATION.replace("ALLOW_REMOUNT", &allow_remount.to_string())
}

/// What every program does: read, write, map, truncate, reopen, sync.
pub const FSX_COMMON: &str = "
flen = 262144

[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.1
fdatasync = 0.1
";

/// What makes holes, moves bytes within the kernel and plays with its caches.
pub const FSX_RARE: &str = "
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
";

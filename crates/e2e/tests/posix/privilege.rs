//! Set-id bits and file capabilities of a program that somebody else changes: what execve(2) sees, which asks
//! nobody for attributes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_e2e::actor::User;
use forebay_e2e::{Mounted, as_user, copy_program, need, on_every_way, on_native, wait_until};
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, getxattr, setxattr};
use rustix::io::Errno;

on_every_way!(
    a_program_that_another_user_changed_runs_without_its_set_id_bits,
    a_write_by_anybody_takes_file_capabilities_away,
    a_stranger_who_cannot_write_takes_no_set_id_bits_away,
);

// A native fileset that is bound runs nothing as its owner: it is mounted nosuid.
on_native!(native_served: Served; a_program_that_another_user_changed_runs_without_its_set_id_bits, a_write_by_anybody_takes_file_capabilities_away, a_stranger_who_cannot_write_takes_no_set_id_bits_away);
on_native!(native_passthrough: Passthrough; a_program_that_another_user_changed_runs_without_its_set_id_bits, a_write_by_anybody_takes_file_capabilities_away, a_stranger_who_cannot_write_takes_no_set_id_bits_away);

const STRANGER: u32 = 1602;
const LIMIT: Duration = Duration::from_secs(60);
/// Zeros behind the program, where it can be changed and still runs.
const TAIL: u64 = 1 << 20;
const PAGE: usize = 4096;

fn stranger() -> User {
    User::new(STRANGER, &[STRANGER])
}

/// A program that prints who it runs as, with zeros behind it, owned by root and writable by everybody.
struct Program {
    path: PathBuf,
    content: Vec<u8>,
}

impl Program {
    fn make(grid: &Mounted, name: &str) -> Program {
        let folder = grid.data().join("programs");
        fs::create_dir_all(&folder).expect("makes a directory");
        let path = folder.join(name);
        copy_program(&which("id"), &path);
        let content = fs::read(&path).expect("reads");
        let file = OpenOptions::new().write(true).open(&path).expect("opens");
        file.set_len(content.len() as u64 + TAIL).expect("extends");
        Program { path, content }
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(mode)).expect("sets the mode");
    }

    fn open(&self) -> File {
        let start = Instant::now();
        loop {
            match OpenOptions::new().read(true).write(true).open(&self.path) {
                Ok(file) => return file,
                // Whoever looks at the process that ran it (/proc/PID/environ) keeps its program for a moment.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
                    assert!(start.elapsed() < LIMIT, "{} stays busy", self.path.display());
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("cannot open {}: {error}", self.path.display()),
            }
        }
    }

    /// What it prints when the stranger runs it. Nothing but execve(2) is asked of its file.
    fn run(&self) -> String {
        let start = Instant::now();
        loop {
            let mut command = Command::new(&self.path);
            let ended = command.uid(STRANGER).gid(STRANGER).output();
            match ended {
                Ok(output) => {
                    assert!(output.status.success(), "{output:?}");
                    return String::from_utf8_lossy(&output.stdout).into_owned();
                }
                // A process that another test has just forked still has the file open.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
                    assert!(start.elapsed() < LIMIT, "{} stays busy", self.path.display());
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("cannot run {}: {error}", self.path.display()),
            }
        }
    }

    /// Whether it runs as its owner or group when the stranger starts it.
    fn has_privileges(&self) -> bool {
        let printed = self.run();
        printed.contains("euid=") || printed.contains("egid=")
    }
}

fn which(name: &str) -> PathBuf {
    PathBuf::from(need::program(name).get_program())
}

fn write_directly(program: &Program) {
    let flags = libc::O_DIRECT;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(&program.path);
    let file = file.expect("opens");
    let bytes = vec![0_u8; 2 * PAGE];
    let start = bytes.as_ptr().align_offset(PAGE);
    let at = (program.content.len() + PAGE).next_multiple_of(PAGE) as u64;
    file.write_all_at(&bytes[start..start + PAGE], at).expect("writes directly");
}

fn allocate(program: &Program, flags: FallocateFlags) {
    let end = program.content.len() as u64;
    let done = fallocate(program.open(), flags, end + 8192, 16_384);
    // Not every disk below zeroes ranges.
    if done != Err(Errno::OPNOTSUPP) {
        done.expect("allocates");
    } else {
        program.open().write_all_at(b"\0", end).expect("writes");
    }
}

fn copy_into(program: &Program) {
    let other = program.path.with_extension("other");
    fs::write(&other, &program.content).expect("writes");
    let (from, to) = (File::open(&other).expect("opens"), program.open());
    let mut left = program.content.len();
    while left > 0 {
        let done = copy_file_range(&from, None, &to, None, left).expect("copies");
        assert!(done > 0, "the copy ends early");
        left -= done;
    }
    fs::remove_file(&other).expect("removes");
}

fn cut_by_name(program: &Program) {
    let name = std::ffi::CString::new(program.path.as_os_str().as_encoded_bytes());
    let length = i64::try_from(program.content.len() + 100).expect("is small");
    // SAFETY: the name is a C string that lives through the call.
    assert_eq!(unsafe { libc::truncate(name.expect("no NUL").as_ptr(), length) }, 0);
}

fn rewrite(program: &Program) {
    fs::write(&program.path, &program.content).expect("writes anew");
}

fn append(program: &Program) {
    let file = OpenOptions::new().append(true).open(&program.path);
    file.expect("opens").write_all(b"more").expect("appends");
}

type Change = fn(&Program);

const CHANGES: [(&str, Change); 10] = [
    ("write", |program| program.open().write_all_at(&program.content, 0).expect("writes")),
    ("direct write", write_directly),
    ("append", append),
    ("fallocate", |program| allocate(program, FallocateFlags::empty())),
    ("punch", |program| {
        allocate(program, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
    }),
    ("zero", |program| allocate(program, FallocateFlags::ZERO_RANGE)),
    ("copy_file_range", copy_into),
    ("ftruncate", |program| {
        program.open().set_len(program.content.len() as u64 + 5).expect("cuts");
    }),
    ("truncate", cut_by_name),
    ("O_TRUNC", rewrite),
];

fn a_program_that_another_user_changed_runs_without_its_set_id_bits(grid: &Mounted) {
    for (what, change) in CHANGES {
        for mode in [0o4777, 0o2777] {
            let program = Program::make(grid, &what.replace(' ', "-"));
            fs::set_permissions(
                program.path.parent().expect("has one"),
                fs::Permissions::from_mode(0o777),
            )
            .expect("opens the folder");
            program.set_mode(mode);
            as_user(&stranger(), || change(&program));
            assert!(!program.has_privileges(), "{what} of mode {mode:o}, at once");

            program.set_mode(mode);
            assert!(program.has_privileges(), "set-id bits have no effect on this mount");
            as_user(&stranger(), || change(&program));
            assert!(!program.has_privileges(), "{what} of mode {mode:o}, after it has run");

            // The file is open when it gets its bits.
            program.set_mode(0o777);
            let open = as_user(&stranger(), || program.open());
            program.set_mode(mode);
            as_user(&stranger(), || open.write_all_at(&program.content, 0).expect("writes"));
            drop(open);
            assert!(!program.has_privileges(), "write to a file of mode {mode:o} that was open");
            fs::remove_file(&program.path).expect("removes");
        }
    }
}

/// A file capability (struct vfs_cap_data of linux/capability.h): CAP_NET_RAW, effective and permitted.
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

fn a_write_by_anybody_takes_file_capabilities_away(grid: &Mounted) {
    const NAME: &str = "security.capability";
    for (what, change) in CHANGES {
        let program = Program::make(grid, &what.replace(' ', "-"));
        let folder = program.path.parent().expect("has one");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("opens the folder");
        program.set_mode(0o777);
        let mut room = [0; 64];
        setxattr(&program.path, NAME, &capability(), XattrFlags::empty()).expect("sets");
        assert_eq!(getxattr(&program.path, NAME, &mut room[..]), Ok(20));
        as_user(&stranger(), || change(&program));
        assert_eq!(getxattr(&program.path, NAME, &mut room[..]), Err(Errno::NODATA), "{what}");
        fs::remove_file(&program.path).expect("removes");
    }
}

fn a_stranger_who_cannot_write_takes_no_set_id_bits_away(grid: &Mounted) {
    let program = Program::make(grid, "program");
    let keeps_its_bits = || {
        program.set_mode(0o4755);
        as_user(&stranger(), || {
            // chown(2) to nobody in particular changes nothing, but asks the file system.
            let _ = rustix::fs::chown(&program.path, None, None);
            let opened = OpenOptions::new().write(true).open(&program.path);
            assert!(opened.is_err(), "opens for writing");
        });
        program.has_privileges() && mode(&program.path) == 0o4755
    };
    // The kernel reports the close of the program's writer after close(2) has returned.
    wait_until("the bits stay once nobody writes", LIMIT, keeps_its_bits);
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    fs::symlink_metadata(path).expect("stats").mode() & 0o7777
}

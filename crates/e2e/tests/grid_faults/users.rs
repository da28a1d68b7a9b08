//! Two users of the machine who must not get at each other's jobs.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use forebay_e2e::command::{Ended, copy_program, run};
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::{self, forebay};
use forebay_e2e::wait_until;

use crate::fixture::{Fixture, LIMIT};

/// Somebody who has an account on every Debian-like machine.
pub struct Account {
    name: &'static str,
    pub uid: u32,
    pub gid: u32,
}

pub fn account(name: &'static str) -> Account {
    let number = |option: &str| {
        let mut command = need::program("id");
        let ended = run(command.args([option, name]), LIMIT).output();
        ended.trim().parse().expect("a number")
    };
    Account { name, uid: number("-u"), gid: number("-g") }
}

impl Fixture {
    fn as_account(&self, account: &Account, arguments: &[&str]) -> Ended {
        let mut command = Command::new(self.root.join("forebay"));
        command.args(arguments).env("FOREBAY_GRID", &self.root);
        command.current_dir(self.jobs.join(account.name)).uid(account.uid).gid(account.gid);
        // The groups of root are none of theirs.
        // SAFETY: setgroups with an empty list reads no memory.
        unsafe {
            command.pre_exec(|| {
                if libc::getuid() == 0 {
                    libc::setgroups(0, std::ptr::null())
                } else {
                    0
                };
                Ok(())
            });
        }
        run(&mut command, LIMIT)
    }

    /// A folder of the account's own for its jobs, and the binary where every user can run it.
    fn welcome(&self, accounts: &[&Account]) {
        copy_program(&forebay(), &self.root.join("forebay"));
        for account in accounts {
            let folder = self.jobs.join(account.name);
            std::fs::create_dir(&folder).expect("makes a folder");
            std::os::unix::fs::chown(&folder, Some(account.uid), Some(account.gid)).expect("gives");
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))
                .expect("closes it");
        }
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .mode()
        & 0o7777
}

#[test]
fn users_have_their_own_jobs_and_only_those() {
    need::root();
    let grid = Fixture::start(1, "");
    let (ann, bob) = (account("daemon"), account("nobody"));
    grid.welcome(&[&ann, &bob]);
    let script = "id -u; id -g; id -G; stat -c '%u %g %a' \"$WORK\" \"$UTIL\"; umask; echo $USER; \
                  echo secret; touch there; sleep 600";
    let submit = ["submit", "--", "sh", "-c", script];
    let job = grid.as_account(&ann, &submit).output().trim().to_owned();
    wait_until("the job runs", LIMIT, || grid.jobs.join("daemon/there").exists());
    grid.wait_for(&job, "running");

    // It is the user's in every respect.
    let said = grid.as_account(&ann, &["output", &job]).output();
    let lines: Vec<&str> = said.lines().collect();
    let (uid, gid) = (ann.uid.to_string(), ann.gid.to_string());
    assert_eq!(lines[..2], [uid.as_str(), gid.as_str()], "{said}");
    let mut groups = run(need::program("id").args(["-G", ann.name]), LIMIT).output();
    groups.truncate(groups.trim_end().len());
    assert_eq!(lines[2], groups, "the groups are those of the account");
    let closed = format!("{uid} {gid} 700");
    assert_eq!(lines[3..5], [closed.as_str(), closed.as_str()], "{said}");
    assert_eq!(lines[6], ann.name);
    let output = grid.jobs.join(format!("daemon/forebay-{job}.out"));
    assert_eq!(std::fs::metadata(output).expect("the output is there").uid(), ann.uid);

    // Nobody else gets at it.
    for (arguments, reason) in [
        (["jobs", job.as_str()], "there is no job"),
        (["explain", &job], "there is no job"),
        (["history", &job], "there is no job"),
        (["output", &job], "there is no job"),
        (["kill", &job], "there is no job"),
        (["hold", &job], "there is no job"),
        (["release", &job], "there is no job"),
        (["requeue", &job], "there is no job"),
    ] {
        let said = grid.as_account(&bob, &arguments).expect_code(2).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let seen = grid.as_account(&bob, &["jobs", "--all", "--json"]).output();
    assert_eq!(seen.trim(), "[]");
    let seen = grid.as_account(&bob, &["hosts", "--json"]).output();
    assert!(!seen.contains(&format!("\"{job}\"")), "hosts show jobs of others: {seen}");
    for arguments in [&["host", "close", "h1"][..], &["queue", "close", "normal"], &["reload"]] {
        let said = grid.as_account(&bob, arguments).expect_code(2).refused();
        assert!(said.contains("may not"), "{arguments:?}: {said}");
    }
    grid.wait_for(&job, "running");

    // An admin does.
    assert!(grid.forebay(&["output", &job]).output().contains("secret"));
    assert!(grid.forebay(&["explain", &job]).output().contains("h1"));
    grid.forebay(&["kill", &job]).succeeds();
    grid.wait_for(&job, "killed");
    let said = grid.as_account(&bob, &["history", &job]).expect_code(2).refused();
    assert!(said.contains("there is no job"), "{said}");
    assert!(grid.as_account(&ann, &["history", &job]).output().contains("h1"));
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn what_a_users_job_read_and_wrote_is_counted() {
    need::root();
    let grid = Fixture::start(1, "");
    let ann = account("daemon");
    grid.welcome(&[&ann]);
    let words = ["submit", "--wait", "--", "dd", "if=/dev/zero", "of=there", "bs=64k", "count=8"];
    let job = grid.as_account(&ann, &words).output().trim().to_owned();
    let used = &grid.history(&job)[0]["usage"];
    for (counter, least) in
        [("read_bytes", 512 << 10), ("written_bytes", 512 << 10), ("read_calls", 8)]
    {
        assert!(used[counter].as_u64() >= Some(least), "{counter}: {used}");
    }
}

#[test]
fn nobody_takes_the_name_of_a_work_area_on_a_mounted_file_system() {
    need::root();
    need::fuse();
    let folder = scratch_folder();
    let (root, mount, jobs) =
        (folder.path().join("g"), folder.path().join("m"), folder.path().join("j"));
    for folder in [&mount, &jobs] {
        std::fs::create_dir(folder).expect("makes a folder");
    }
    let bob = account("nobody");
    let call = |arguments: &[&str]| {
        let mut command = Command::new(forebay());
        command.args(arguments).env("FOREBAY_GRID", &root).current_dir(&jobs);
        run(&mut command, LIMIT)
    };
    let words = [&root, &mount].map(|path| path.display().to_string());
    call(&["up", &words[0], "--mount", &words[1], "--slots", "1"]).succeeds();
    let place = mount.join("work/jobs");
    let take = |path: &Path| {
        let mut command = Command::new("mkdir");
        run(command.arg(path).uid(bob.uid).gid(bob.gid), LIMIT).code()
    };
    let taken = [take(&mount.join("work/job-1")), take(&place.join("job-1"))];
    let found = mode(&place);
    let job = call(&["submit", "--wait", "--", "sh", "-c", "echo $WORK"]);
    let said = call(&["output", "1"]);
    call(&["down", &words[0], "--now"]).succeeds();
    assert_eq!(taken[0], 0, "the fileset is for everybody");
    assert_ne!(taken[1], 0, "the place of work areas is the grid's");
    assert_eq!(found, 0o711);
    assert!(job.status.success(), "{job:?}");
    assert_eq!(said.output().trim(), place.join("job-1").display().to_string());
}

#[test]
fn files_of_the_grid_are_closed_to_its_users() {
    need::root();
    let grid = Fixture::start(1, "");
    let bob = account("nobody");
    grid.welcome(&[&bob]);
    let long = grid.submit(&[], "sleep 600");
    grid.wait_for(&long, "running");
    let home = grid.root.join("grid");
    for (path, most) in [
        ("", 0o711),
        ("controller.sock", 0o666),
        ("journal.redb", 0o600),
        ("journal.changes", 0o600),
        ("lock", 0o600),
        ("hosts", 0o700),
        ("hosts/h1", 0o700),
        ("hosts/h1/runs", 0o700),
        ("work", 0o711),
    ] {
        assert_eq!(mode(&home.join(path)) & !most, 0, "{path}: {:o}", mode(&home.join(path)));
    }
    for path in ["journal.redb", "journal.changes", "hosts/h1/lease", "work"] {
        let mut command = Command::new("cat");
        command.arg(home.join(path)).uid(bob.uid).gid(bob.gid);
        assert_ne!(run(&mut command, LIMIT).code(), 0, "{path} can be read by others");
    }
    // Nobody but root may be an agent, whatever is sent.
    let join = r#"{"ask":"join","joined":{"host":"evil","facts":{"cores":1,"memory_bytes":1},"memory":"kept","runs":[]}}"#;
    let program = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                   s.sendall(sys.argv[2].encode()+b'\\n')\nprint(s.makefile().readline())";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", program]).arg(home.join("controller.sock")).arg(join);
    let said = run(command.uid(bob.uid).gid(bob.gid), LIMIT).output();
    assert!(said.contains("is not allowed to be an agent"), "{said}");
}

/// The number of a group with a name, which no user has.
fn group_without_user() -> u32 {
    let numbers = |file: &str| -> Vec<u32> {
        let text = std::fs::read_to_string(file).expect("reads");
        text.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect()
    };
    let users = numbers("/etc/passwd");
    let mut groups = numbers("/etc/group").into_iter();
    groups.find(|group| !users.contains(group)).expect("a group that is no user's")
}

#[test]
fn a_user_without_an_account_and_a_folder_of_somebody_else_are_refused_with_reasons() {
    need::root();
    let grid = Fixture::start(1, "");
    let bob = account("nobody");
    // A number without a name: it can run jobs, with its number for a name.
    let stranger = Account { name: "stranger", uid: 54_321, gid: 54_321 };
    grid.welcome(&[&bob, &stranger]);
    let job = grid.as_account(&stranger, &["submit", "--wait", "--", "id", "-u"]);
    let job = job.output().trim().to_owned();
    assert_eq!(grid.as_account(&stranger, &["output", &job]).output(), "54321\n");
    // One whose number is that of somebody's group would get what that group may do.
    let group = group_without_user();
    let climber = Account { name: "climber", uid: group, gid: group };
    grid.welcome(&[&climber]);
    let ended = grid.as_account(&climber, &["submit", "--wait", "--", "true"]);
    let job = ended.expect_code(127).stdout.trim().to_owned();
    let said = grid.as_account(&climber, &["history", &job, "--json"]).output();
    assert!(said.contains("has no account on this host"), "{said}");
    // The output lies where the user may not write.
    let ended = grid.as_account(&bob, &["submit", "--wait", "-o", "/x/out", "--", "true"]);
    let job = ended.expect_code(127).stdout.trim().to_owned();
    let said = grid.as_account(&bob, &["history", &job, "--json"]).output();
    assert!(said.contains("not_started"), "{said}");
    // A grid of his own in a folder that is not his.
    let root = grid.root.display().to_string();
    for arguments in [vec!["up", &root], vec!["controller", &root], vec!["down", &root]] {
        let said = grid.as_account(&bob, &arguments).refused();
        assert!(said.contains(&root), "{arguments:?}: {said}");
        let reasons = ["ermission denied", "belongs to user 0"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{arguments:?}: {said}");
    }
    assert!(grid.forebay(&["hosts"]).output().contains(" up "));
}

#[test]
fn unfinished_lines_of_a_user_take_bounded_memory() {
    need::root();
    let grid = Fixture::start(1, "");
    let bob = account("nobody");
    grid.welcome(&[&bob]);
    // A hundred connections, each with most of a longest line and no end of it.
    let program = "import socket,sys\nkept=[]\nfor n in range(100):\n \
                   s=socket.socket(socket.AF_UNIX)\n s.connect(sys.argv[1])\n kept.append(s)\n try:\n  \
                   s.sendall(b'x'*(15<<20))\n except OSError:\n  pass\n\
                   said=b''\nfor s in kept:\n s.setblocking(False)\n try:\n  said+=s.recv(10000)\n \
                   except OSError:\n  pass\nprint(said.decode())";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", program]).arg(grid.root.join("grid/controller.sock"));
    let said = run(command.uid(bob.uid).gid(bob.gid), LIMIT).output();
    assert!(said.contains("user_messages_bytes_max"), "nobody was refused: {said}");
    let controller = grid.controller().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{controller}/status")).expect("reads");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 400 << 10, "the controller took {kib} KiB for lines without an end");
    // Once they are gone there is room again.
    wait_until("there is room again", LIMIT, || {
        grid.as_account(&bob, &["submit", "--wait", "--", "true"]).status.success()
    });
}

//! Whose orders the daemons and commands of a grid take: root's and their own user's.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forebay_e2e::command::{Ended, run};
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::{self, forebay};
use forebay_e2e::wait_until;
use tempfile::TempDir;

use crate::fixture::LIMIT;
use crate::users::{Account, account};

/// A folder in which a grid may come up; it is down, and the processes beside it are gone, when this is dropped.
pub struct Place {
    folder: TempDir,
    root: PathBuf,
    others: Vec<Child>,
}

impl Place {
    pub fn new() -> Place {
        let folder = scratch_folder();
        let root = folder.path().join("g");
        Place::with(folder, root)
    }

    /// One whose ROOT lies somewhere else.
    pub fn at(root: PathBuf) -> Place {
        Place::with(scratch_folder(), root)
    }

    fn with(folder: TempDir, root: PathBuf) -> Place {
        need::root();
        fs::create_dir(&root).expect("makes ROOT");
        Place { folder, root, others: Vec::new() }
    }

    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mode(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("changes a mode");
    }

    pub fn command(&self, verb: &str, options: &[&str]) -> Command {
        let mut command = Command::new(forebay());
        command.arg(verb).arg(self.root()).args(options).current_dir("/");
        command
    }

    pub fn forebay(&self, verb: &str, options: &[&str]) -> Ended {
        run(&mut self.command(verb, options), LIMIT)
    }

    /// A command that finds the grid by its variable.
    pub fn ask(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(forebay());
        command.args(words).env("FOREBAY_GRID", self.root()).current_dir(self.folder.path());
        run(&mut command, LIMIT)
    }

    /// Starts something beside the grid; its place among the others.
    fn start(&mut self, command: &mut Command) -> usize {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        self.others.push(child);
        self.others.len() - 1
    }

    fn is_alive(&mut self, other: usize) -> bool {
        self.others[other].try_wait().expect("looks").is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for other in &mut self.others {
            let _ = other.kill();
            let _ = other.wait();
        }
        let mut down = self.command("down", &["--now"]);
        let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

const AGENT: [&str; 4] = ["--name", "h1", "--slots", "1"];

#[test]
fn root_takes_no_orders_from_a_folder_that_a_stranger_can_change() {
    let place = Place::new();
    let bob = account("nobody");
    let refused = |reason: &str| {
        let calls: [(&str, &[&str]); 4] =
            [("up", &[]), ("controller", &[]), ("agent", &AGENT), ("down", &["--now"])];
        for (verb, options) in calls {
            if verb == "down" {
                let _ = fs::create_dir(place.root().join("grid"));
            }
            let said = place.forebay(verb, options).expect_code(2).refused();
            assert!(said.contains(reason), "{verb}: {said}");
        }
        assert!(fs::read_dir(place.root().join("grid")).expect("lists").next().is_none());
        fs::remove_dir(place.root().join("grid")).expect("removes");
    };
    chown(place.root(), Some(bob.uid), Some(bob.gid)).expect("gives");
    refused(&format!("belongs to user {}", bob.uid));
    chown(place.root(), Some(0), Some(0)).expect("takes");
    for open in [0o777, 0o775, 0o1777] {
        place.mode(&place.root(), open);
        refused("is writable by others");
    }
    place.mode(&place.root(), 0o755);
    place.mode(place.folder.path(), 0o777);
    refused("is writable by others");
    // Its folder is fine, and something in it is not.
    place.mode(place.folder.path(), 0o755);
    fs::create_dir(place.root().join("grid")).expect("makes");
    let settings = place.root().join("grid/grid.toml");
    fs::write(&settings, "[general]\nadmins = [\"nobody\"]\n").expect("writes");
    chown(&settings, Some(bob.uid), Some(bob.gid)).expect("gives");
    let said = place.forebay("up", &[]).refused();
    assert!(said.contains("grid.toml belongs to user"), "{said}");
    fs::remove_file(&settings).expect("removes");
    // In a folder to which others can only add, like /tmp, nobody can replace it.
    place.mode(place.folder.path(), 0o1777);
    place.forebay("up", &["--slots", "1"]).succeeds();
    place.forebay("down", &[]).succeeds();
}

#[test]
fn a_controller_of_a_stranger_is_neither_asked_nor_obeyed() {
    let mut place = Place::new();
    let bob: Account = account("nobody");
    place.forebay("up", &["--slots", "1"]).succeeds();
    place.forebay("down", &[]).succeeds();
    let (own, heard) = (place.path("bob"), place.path("bob/heard"));
    fs::create_dir(&own).expect("makes a folder");
    chown(&own, Some(bob.uid), Some(bob.gid)).expect("gives");
    let program = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1]+'/s')\ns.listen()\n\
                   while True:\n c,_=s.accept()\n open(sys.argv[1]+'/heard','a').write('came\\n')\n \
                   d=c.recv(1)\n open(sys.argv[1]+'/heard','a').write('said\\n' if d else '')\n c.close()\n";
    let mut fake = Command::new("/usr/bin/python3");
    fake.args(["-c", program]).arg(&own).uid(bob.uid).gid(bob.gid);
    place.start(&mut fake);
    wait_until("it listens", LIMIT, || own.join("s").exists());
    // However it came there.
    fs::rename(own.join("s"), place.root().join("grid/controller.sock")).expect("moves it");
    chown(place.root().join("grid/controller.sock"), Some(0), Some(0)).expect("takes it");
    for words in [&["hosts"][..], &["submit", "--", "true"], &["run", "--", "true"]] {
        let said = place.ask(words).refused();
        assert!(said.contains(&format!("user {}", bob.uid)), "{words:?}: {said}");
    }
    let log = place.path("agent.log");
    let mut agent = place.command("agent", &AGENT);
    place.start(agent.stderr(fs::File::create(&log).expect("makes a log")));
    wait_until("the agent has looked who answers", LIMIT, || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("not the controller of this grid"))
    });
    let heard = fs::read_to_string(heard).unwrap_or_default();
    assert!(heard.contains("came") && !heard.contains("said"), "it was told something: {heard}");
}

#[test]
fn down_signals_no_process_that_a_lock_file_only_names() {
    let mut place = Place::new();
    place.forebay("up", &["--slots", "1"]).succeeds();
    place.forebay("down", &[]).succeeds();
    let victim = place.start(Command::new("sleep").arg("600"));
    let pid = place.others[victim].id();
    let lock = place.root().join("grid/lock");
    let words = format!("exec 9<>{0}; flock 9; echo {pid} > {0}; exec sleep 600", lock.display());
    place.start(Command::new("sh").args(["-c", &words]));
    wait_until("the lock names the victim", LIMIT, || {
        fs::read_to_string(&lock).is_ok_and(|text| text.trim() == pid.to_string())
    });
    let said = place.forebay("down", &["--now"]).refused();
    assert!(said.contains(&format!("process {pid}")) && said.contains("not signalled"), "{said}");
    assert!(place.is_alive(victim), "down has signalled a process that is none of its grid");
}

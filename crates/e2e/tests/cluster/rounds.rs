//! Programs that write on one node and read on another in the next instant.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use forebay_e2e::{Cluster, need, run, setting};

const LIMIT: Duration = Duration::from_secs(60);

/// make(1) compares times, which move with the tick of the kernel's coarse clock.
const TICK: Duration = Duration::from_millis(20);

/// Runs a script in a directory, and returns its output.
#[track_caller]
fn shell(directory: &Path, script: &str) -> String {
    let mut shell = need::program("sh");
    shell.args(["-ec", script]).current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1");
    shell.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory");
    run(shell.env("GIT_CONFIG_VALUE_0", "*"), LIMIT).output()
}

/// A database shell that stays open on a node.
struct Database {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Database {
    fn open(path: &Path) -> Database {
        let mut sqlite = need::program("sqlite3");
        sqlite.args(["-batch", "-cmd", ".timeout 20000"]).arg(path);
        let mut child =
            sqlite.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Database { child, input, output }
    }

    /// Sends statements that answer with one line.
    fn ask(&mut self, statements: &str) -> String {
        writeln!(self.input, "{statements}").expect("asks the database");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("reads its answer");
        line.trim_end().to_owned()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Pair {
    cluster: Cluster,
}

impl Pair {
    fn at(&self, node: usize) -> PathBuf {
        self.cluster.mountpoint(node).join("data/rounds")
    }
}

#[test]
fn what_git_sqlite_tar_and_make_write_on_one_node_is_never_old_on_another() {
    let pair = Pair { cluster: Cluster::start(2) };
    let rounds = setting("FOREBAY_E2E_CLUSTER_PROGRAM_ROUNDS", 60);
    fs::create_dir(pair.at(0)).expect("makes a directory");
    shell(
        &pair.at(0),
        "git init -q repository; cd repository; git config user.email a@b; git config user.name n
         git config gc.auto 0; echo 0 >file; git add file; git commit -qm 0
         cd ..; mkdir built; printf 'copy: source\\n\\tcp source copy\\n' >built/Makefile",
    );
    let mut databases = [0, 1].map(|node| Database::open(&pair.at(node).join("rows.db")));
    let table = "create table rows(number integer); insert into rows values(0); select 1;";
    assert_eq!(databases[0].ask(table), "1");
    for round in 1..=rounds {
        let (here, there) = if round % 8 < 4 { (0, 1) } else { (1, 0) };
        let (writer, reader) = (pair.at(here), pair.at(there));
        match round % 4 {
            0 => {
                let update = format!(
                    "begin immediate; update rows set number = {round}; commit; select changes();"
                );
                assert_eq!(databases[here].ask(&update), "1", "round {round}");
                let seen = databases[there].ask("select number from rows;");
                assert_eq!(seen, round.to_string(), "SQLite");
            }
            1 => {
                let commit = format!("cd repository; echo {round} >file; git commit -qam {round}");
                shell(&writer, &commit);
                let look =
                    "cd repository; git status --porcelain; git log -1 --format=%s; cat file";
                assert_eq!(shell(&reader, look), format!("{round}\n{round}\n"), "git");
            }
            2 => {
                let pack = format!("mkdir -p tree; echo {round} >tree/file; tar -cf tree.tar tree");
                shell(&writer, &pack);
                assert_eq!(shell(&reader, "tar -xOf tree.tar"), format!("{round}\n"), "tar");
            }
            _ => {
                std::thread::sleep(TICK);
                shell(&writer, &format!("echo {round} >built/source"));
                shell(&reader, "make -s -C built");
                assert_eq!(shell(&writer, "cat built/copy"), format!("{round}\n"), "make");
            }
        }
    }
    for (node, database) in databases.iter_mut().enumerate() {
        assert_eq!(database.ask("pragma integrity_check;"), "ok");
        shell(&pair.at(node), "cd repository; git fsck --strict");
    }
}

//! The disks of a mounted Forebay file system, asked of its daemon.
//!
//! The same question as `forebay status --json`, over the control socket in the home folder: one line of
//! JSON asks, one line answers. Only the disks' locations are read from the answer. A daemon that does
//! not answer soon, or answers something else, leaves them unknown.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Name of the control socket in the home folder.
const CONTROL: &str = "control.sock";
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How long the daemon may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Status {
    disks: Vec<Disk>,
}

#[derive(Deserialize)]
struct Disk {
    location: PathBuf,
    #[serde(default)]
    kind: String,
}

/// A disk over others, which are in the list themselves.
const STRIPED: &str = "striped";

/// The directories that are the disks of the mounted file system with the home folder `root`.
pub fn disks(root: &Path) -> Option<Vec<PathBuf>> {
    // A path through /proc is short enough for a socket address, whatever the folder is called.
    let folder = File::open(root).ok()?;
    let socket = format!("/proc/self/fd/{}/{CONTROL}", folder.as_raw_fd());
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"{\"ask\":\"status\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line).ok()?;
    let status: Status = serde_json::from_str(&line).ok()?;
    let own = status.disks.into_iter().filter(|disk| disk.kind != STRIPED);
    Some(own.map(|disk| disk.location).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// What `disks` makes of an answer, and what it asked.
    fn ask(answer: &'static str) -> (Option<Vec<PathBuf>>, String) {
        let root = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(root.path().join(CONTROL)).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            line
        });
        (disks(root.path()), daemon.join().unwrap())
    }

    #[test]
    fn the_daemon_tells_the_locations_of_its_disks() {
        let (disks, asked) = ask(
            "{\"answer\":\"status\",\"root\":\"/r\",\"uuid\":\"u\",\"disks\":[{\"uuid\":\"d\",\
             \"location\":\"/r/disk\"},{\"uuid\":\"e\",\"location\":\"/b\"}],\"filesets\":[]}\n",
        );
        assert_eq!(asked, "{\"ask\":\"status\"}\n");
        assert_eq!(disks, Some(vec!["/r/disk".into(), "/b".into()]));
    }

    #[test]
    fn a_daemon_that_refuses_or_is_not_there_leaves_the_disks_unknown() {
        assert_eq!(ask("{\"answer\":\"refused\",\"reason\":\"no\"}\n").0, None);
        assert_eq!(ask("").0, None);
        assert_eq!(disks(tempfile::tempdir().unwrap().path()), None);
        assert_eq!(disks(Path::new("/no/such/home")), None);
    }
}

//! A grid with a file system whose daemons answer monitors, and a client for their pages.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::mounted::{is_mounted, scratch_folder};
use forebay_e2e::need;
use tempfile::TempDir;

pub const LIMIT: Duration = Duration::from_secs(60);

/// Ports below those that the kernel gives to connections.
const PORTS: std::ops::Range<u16> = 12_000..30_000;

/// The first of `count` ports in a row that nobody listens at, and that no other test of this program was given.
pub fn free_ports(count: u16) -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = u16::try_from(std::process::id() % 4096).unwrap() * 4;
    for _ in 0..2000 {
        let offset = start + GIVEN.fetch_add(count, Ordering::Relaxed);
        let first = PORTS.start + offset % (PORTS.end - PORTS.start - count);
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("no ports are free");
}

/// What a server answers: the status and the body.
pub fn get(port: u16, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer ends in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { joined(body) } else { body.to_owned() })
}

/// The body of an answer that came in chunks.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("the length of a chunk");
        body += &rest[..length];
        chunks = rest[length..].trim_start_matches("\r\n");
    }
    body
}

/// The value of a line of a page: `name{labels}` as it stands there.
pub fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {series} in\n{page}"))
}

/// A grid of two hosts on a file system of its own.
pub struct Watched {
    folder: TempDir,
    pub port: u16,
}

impl Watched {
    /// Starts everything with metrics.
    pub fn start() -> Watched {
        need::root();
        need::fuse();
        let watched = Watched { folder: scratch_folder(), port: free_ports(4) };
        std::fs::create_dir(watched.mountpoint()).unwrap();
        watched.up(&[]).succeeds();
        watched
    }

    pub fn up(&self, more: &[&str]) -> Ended {
        let metrics = self.port.to_string();
        let mut command = Command::new(need::forebay());
        command.arg("up").arg(self.root()).arg("--mount").arg(self.mountpoint());
        command.args(["--hosts", "2", "--slots", "2", "--metrics", &metrics]).args(more);
        run(&mut command, LIMIT)
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    pub fn forebay(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(need::forebay());
        command.args(arguments).env("FOREBAY_GRID", self.root()).current_dir(self.folder.path());
        run(&mut command, LIMIT)
    }

    pub fn controller(&self) -> u16 {
        self.port
    }

    pub fn mount(&self) -> u16 {
        self.port + 1
    }

    /// The port of host 1 or 2.
    pub fn host(&self, number: u16) -> u16 {
        self.port + 1 + number
    }

    /// Runs jobs to their end.
    pub fn run_jobs(&self, count: usize, script: &str) {
        for _ in 0..count {
            let submitted = self.forebay(&["submit", "--", "sh", "-c", script]).output();
            assert!(submitted.trim().parse::<u64>().is_ok(), "{submitted}");
        }
        forebay_e2e::wait_until("all jobs have ended", LIMIT, || {
            self.forebay(&["jobs", "--json"]).output().trim() == "[]"
        });
    }

    /// Uses the file system so that every counter has something to count.
    pub fn use_files(&self) {
        let data = self.mountpoint().join("data");
        for number in 0..20 {
            let file = data.join(format!("file{number}"));
            std::fs::write(&file, vec![7_u8; 100_000]).unwrap();
            assert_eq!(std::fs::read(&file).unwrap().len(), 100_000);
            std::fs::rename(&file, data.join("renamed")).unwrap();
        }
        std::fs::File::open(data.join("renamed")).unwrap().sync_all().unwrap();
        assert!(std::fs::create_dir(data.join("renamed")).is_err());
        std::fs::create_dir(data.join("below")).unwrap();
        std::fs::write(data.join("below/file"), "x").unwrap();
        assert!(std::fs::remove_dir(data.join("below")).is_err());
    }

    /// Writes and removes a file, and asks for one that is not there.
    pub fn use_more_files(&self) {
        let file = self.mountpoint().join("data/more");
        std::fs::write(&file, vec![7_u8; 100_000]).unwrap();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(std::fs::remove_dir(self.mountpoint().join("data")).is_err());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let root = self.root().display().to_string();
            self.forebay(&["down", &root, "--now"]).code()
        }));
        while is_mounted(&self.mountpoint()) {
            let _ = run(need::program("umount").arg("-l").arg(self.mountpoint()), LIMIT);
        }
        if !std::thread::panicking() {
            assert_eq!(ended.ok(), Some(0), "forebay down");
        }
    }
}

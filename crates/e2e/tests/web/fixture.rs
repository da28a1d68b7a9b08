//! A grid with its web server, and a client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::mounted::{is_mounted, scratch_folder};
use forebay_e2e::need;
use serde_json::Value;
use tempfile::TempDir;

pub const LIMIT: Duration = Duration::from_secs(180);

/// A port that nobody listens at, below those that the kernel gives to connections.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 4000).unwrap() * 4;
    for _ in 0..4000 {
        let port = 13_000 + (start + GIVEN.fetch_add(1, Ordering::Relaxed)) % 17_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no ports are free");
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A grid of two hosts with a web server.
pub struct Site {
    folder: TempDir,
    pub port: u16,
    scheme: &'static str,
    server: Option<Child>,
    is_mounted: bool,
}

impl Site {
    /// Starts a grid without a file system, and its web server with these settings.
    pub fn start(settings: &str) -> Site {
        Site::start_with(settings, ("http", free_port()), false)
    }

    /// The same over TLS, as the settings say.
    pub fn start_tls(settings: &str, port: u16) -> Site {
        Site::start_with(settings, ("https", port), false)
    }

    /// The same, on a file system of its own.
    pub fn start_mounted(settings: &str) -> Site {
        need::fuse();
        Site::start_with(settings, ("http", free_port()), true)
    }

    fn start_with(settings: &str, (scheme, port): (&'static str, u16), is_mounted: bool) -> Site {
        need::root();
        let mut site = Site { folder: scratch_folder(), port, scheme, server: None, is_mounted };
        let mut up = Command::new(need::forebay());
        up.arg("up").arg(site.root()).args(["--hosts", "2", "--slots", "2"]);
        if is_mounted {
            std::fs::create_dir(site.mountpoint()).unwrap();
            up.arg("--mount").arg(site.mountpoint());
        }
        run(&mut up, LIMIT).succeeds();
        std::fs::write(site.root().join("grid/web.toml"), settings).unwrap();
        site.serve();
        site
    }

    /// Starts the web server, and waits until it answers.
    pub fn serve(&mut self) {
        let mut command = Command::new(need::forebay());
        command.args(["web", "serve"]).arg(self.root()).args(["--listen", &self.port.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.server = Some(child);
        assert_eq!(line.trim(), self.url(), "the server says its address");
    }

    /// Ends the web server by SIGKILL.
    pub fn kill_server(&mut self) {
        let mut child = self.server.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    pub fn forebay(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(need::forebay());
        command.args(arguments).env("FOREBAY_GRID", self.root()).current_dir(self.folder.path());
        run(&mut command, LIMIT)
    }

    /// The same as another user.
    pub fn forebay_as(&self, uid: u32, arguments: &[&str]) -> Ended {
        let id = uid.to_string();
        let mut command = need::program("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        command.arg(need::forebay()).args(arguments).env("FOREBAY_GRID", self.root());
        run(command.current_dir("/"), LIMIT)
    }

    pub fn token(&self) -> String {
        self.forebay(&["web", "token"]).output().trim().to_owned()
    }

    /// Sends a request, and reads the answer to its end.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Length: {}\r\n",
            self.port,
            body.len()
        );
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the answer ends in time");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Follows changes; each call of what is returned waits for one more event: its name and data.
    pub fn follow(&self, token: &str) -> impl FnMut() -> (String, Value) + use<> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let request = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        move || {
            let mut name = String::new();
            loop {
                let line =
                    lines.next().expect("the stream goes on").expect("an event comes in time");
                if let Some(text) = line.strip_prefix("event: ") {
                    text.clone_into(&mut name);
                }
                if let Some(data) = line.strip_prefix("data: ") {
                    return (name, serde_json::from_str(data).unwrap());
                }
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut child) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let root = self.root().display().to_string();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.forebay(&["down", &root, "--now"]).code()
        }));
        while self.is_mounted && is_mounted(&self.mountpoint()) {
            let _ = run(need::program("umount").arg("-l").arg(self.mountpoint()), LIMIT);
        }
        if !std::thread::panicking() {
            assert_eq!(ended.ok(), Some(0), "forebay down");
        }
    }
}

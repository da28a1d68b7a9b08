//! Names in an S3-compatible object store: a real server (moto, which scripts/setup test installs).

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Clock as _, Epoch, FilesetId, time::SystemClock};
use forebay_etcd::Runtime;
use forebay_process::{Accounting, Child};
use forebay_store::slate::{Place, S3Place, SlateConfig, open_stores};
use forebay_store::{Store, StoreError, Stores};

use super::{all_rules, batch, put, rules, with_rules};

const PATIENCE: Duration = Duration::from_secs(120);

struct S3Server {
    address: SocketAddr,
    /// Killed when it is dropped.
    _process: Child,
}

/// Where scripts/setup has put the server.
fn installed() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/moto");
    assert!(
        folder.join("moto").is_dir(),
        "{} is missing: the S3 server of this test; install it: scripts/setup test",
        folder.display()
    );
    folder
}

impl S3Server {
    fn start() -> S3Server {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut command = Command::new("python3");
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.env("PYTHONPATH", installed()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Child::spawn(command, &Accounting::find(Arc::new(SystemClock))).unwrap();
        let server = S3Server { address, _process: process };
        let start = SystemClock.instant();
        while server.request("PUT /names HTTP/1.1").is_none_or(|answer| !answer.contains(" 200 ")) {
            assert!(start.elapsed() < PATIENCE, "the S3 server does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn request(&self, line: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        let request =
            format!("{line}\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn config(&self, prefix: &str) -> SlateConfig {
        let place = S3Place {
            bucket: "names".to_owned(),
            folder: "grid1".to_owned(),
            endpoint: Some(format!("http://{}", self.address)),
            region: Some("us-east-1".to_owned()),
            access_key: Some("key".to_owned()),
            secret_key: Some("secret".to_owned()),
        };
        SlateConfig::new(Place::S3(place), prefix)
    }
}

#[test]
fn slate_in_s3_keeps_every_rule_and_one_writer() {
    let server = S3Server::start();
    let runtime = Runtime::start(2).unwrap();
    let id = FilesetId(7);
    let make =
        |rule: &str| open_stores(&server.config(rule), &runtime, None).unwrap().create(id).unwrap();
    with_rules!(all_rules make);

    let stores = open_stores(&server.config("owners"), &runtime, None).unwrap();
    stores.create(id).unwrap().close().unwrap();
    let former = stores.open_for(id, Epoch(1)).unwrap();
    put(&*former, b"key", b"1");
    let newer = stores.open_for(id, Epoch(2)).unwrap();
    assert_eq!(newer.get(b"key").unwrap(), Some(b"1".to_vec()));
    let stale = former.commit(&batch([(&b"key"[..], None)]));
    assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
    assert!(matches!(stores.open_for(id, Epoch(1)).map(drop), Err(StoreError::Conflict)));
    put(&*newer, b"key", b"2");
    assert_eq!(stores.list().unwrap(), [id]);
    newer.close().unwrap();
    stores.remove(id).unwrap();
    assert_eq!(stores.list().unwrap(), []);
}

#[test]
fn a_missing_s3_server_is_named_in_the_error() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let place = S3Place {
        bucket: "names".to_owned(),
        endpoint: Some(format!("http://{address}")),
        region: Some("us-east-1".to_owned()),
        access_key: Some("key".to_owned()),
        secret_key: Some("secret".to_owned()),
        ..S3Place::default()
    };
    let mut config = SlateConfig::new(Place::S3(place), "x");
    config.timeout_milliseconds = 500;
    let stores = open_stores(&config, &Runtime::start(1).unwrap(), None).unwrap();
    let error = stores.open(FilesetId(7)).map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::Io(text) if text.contains("names")), "{error:?}");
}

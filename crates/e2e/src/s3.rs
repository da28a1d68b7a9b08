//! An S3 server on a host, for clusters whose names lie in a bucket.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::command::run;
use crate::hosts::Hosts;
use crate::{need, wait_until};

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 9000;

/// A server (moto) with the bucket `names`. It ends when this is dropped, and keeps everything in memory.
pub struct S3 {
    server: Child,
    /// What Forebay needs to reach it.
    pub access: PathBuf,
}

/// The command of an S3 server (moto) at an address of this machine.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn server(address: &str, port: u16) -> Command {
    let moto = need::workspace().join(".cache/moto");
    assert!(moto.join("moto").is_dir(), "{} is missing: scripts/setup test", moto.display());
    let mut command = Command::new("python3");
    command.args(["-m", "moto.server", "-H", address, "-p", &port.to_string()]);
    command.env("PYTHONPATH", moto).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

impl S3 {
    /// Starts it on a host; the file with what reaches it is made in `folder`.
    ///
    /// # Panics
    /// If it is not installed, or does not start.
    #[must_use]
    pub fn start(hosts: &Hosts, host: usize, folder: &Path) -> S3 {
        let mut command = hosts.command(host, &server("0.0.0.0", PORT));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().expect("starts");
        let endpoint = format!("http://{}:{PORT}", hosts.address(host));
        let access = folder.join("s3.toml");
        let text = format!(
            "endpoint = \"{endpoint}\"\nregion = \"us-east-1\"\naccess_key = \"key\"\nsecret_key = \"secret\"\n"
        );
        std::fs::write(&access, text).expect("writes");
        std::fs::set_permissions(&access, std::fs::Permissions::from_mode(0o600))
            .expect("sets the mode");
        let s3 = S3 { server, access };
        let make_bucket = format!(
            "import urllib.request as u; u.urlopen(u.Request('{endpoint}/names', method='PUT'))"
        );
        wait_until("the S3 server answers", LIMIT, || {
            let mut python = Command::new("python3");
            python.args(["-c", &make_bucket]);
            run(&mut hosts.command(host, &python), LIMIT).status.success()
        });
        s3
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

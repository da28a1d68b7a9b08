//! `forebay cluster monitor`.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::parse::period::Period;
use forebay_node::members::record::MonitorRecord;
use forebay_node::monitors::{MonitorPapers, admit, day};

use super::{Which, tools};

/// Make a certificate with which a monitor such as Prometheus reads metrics, or remove a monitor.
///
/// Daemons that serve metrics with --metrics-tls on any node of the cluster answer anyone who shows this certificate. It opens
/// nothing else. Writes ca.pem (the cluster's authority, with which the monitor checks the nodes), NAME.pem and NAME.key to a
/// directory. Runs on a node that holds the authority's key.
///
/// `forebay cluster status` lists the certificates. An alert (certificate/monitor/NAME) and `forebay doctor --cluster` warn before one
/// expires. To renew it, make another one with the same name in another directory: both are valid then.
/// With --remove, all nodes refuse the certificates of this name.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster monitor prometheus /etc/prometheus/forebay
  forebay cluster monitor prometheus . --for '90 d'
  forebay cluster monitor prometheus --remove       refuse its certificates from now on
  curl --cacert ca.pem --cert prometheus.pem --key prometheus.key https://10.0.0.5:9464/metrics")]
pub struct Monitor {
    /// Name of the monitor, for the files and the certificate.
    monitor: String,
    /// Directory for the files, which must not hold them yet.
    #[arg(required_unless_present = "remove")]
    directory: Option<PathBuf>,
    /// How long the certificate is valid; not longer than that of the cluster's authority.
    #[arg(long = "for", value_name = "TIME", default_value = "365 d", value_parser = |text: &str| text.parse::<Period>())]
    life: Period,
    /// Remove the monitor instead: nodes refuse its certificates. A node that is down does so when its daemon runs again.
    #[arg(long, conflicts_with_all = ["directory", "life"])]
    remove: bool,
    /// Print JSON: the files, and the end of the certificate in seconds since 1970; or how many certificates were removed.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Monitor {
    pub fn run(self) -> Result<()> {
        match &self.directory {
            Some(directory) => self.make(directory),
            None => self.remove(),
        }
    }

    fn remove(&self) -> Result<()> {
        let (_, file) = self.which.node()?;
        let now = SystemClock.now().seconds;
        let removed = tools()?.book(&file)?.remove_monitor(&self.monitor, now)?;
        if self.json {
            return crate::output::put_json(&serde_json::json!({ "removed": removed }));
        }
        outln!(
            "Monitor {} is removed: the nodes refuse its certificates ({removed} had not expired)",
            self.monitor
        );
        Ok(())
    }

    fn make(&self, directory: &Path) -> Result<()> {
        let (home, node) = self.which.node()?;
        ensure!(
            self.monitor != "ca",
            "ca.pem is the file of the cluster's authority: choose another name than ca"
        );
        let file = |name: &str| directory.join(name);
        let certificate = file(&format!("{}.pem", self.monitor));
        let key = file(&format!("{}.key", self.monitor));
        let authority = file("ca.pem");
        for taken in [&certificate, &key] {
            ensure!(
                !taken.exists(),
                "{} exists: choose another name or directory, or remove it",
                taken.display()
            );
        }
        let life = Duration::from_millis(self.life.as_ms());
        ensure!(!life.is_zero(), "--for 0: must be longer than zero, such as 90 d");
        let papers = admit(&home, &self.monitor, life)?;
        let trusted = match std::fs::read_to_string(&authority) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            read => Some(read.with_context(|| authority.display().to_string())?),
        };
        ensure!(
            trusted.as_ref().is_none_or(|text| *text == papers.authority),
            "{} is not the certificate of this cluster's authority: choose another directory",
            authority.display()
        );
        let mut files =
            vec![(&key, 0o600, &papers.key), (&certificate, 0o644, &papers.issued.certificate)];
        if trusted.is_none() {
            files.push((&authority, 0o644, &papers.authority));
        }
        // First the record: without it nobody could remove the monitor, or be warned before the certificate expires.
        let book = tools()?.book(&node)?;
        book.add_monitor(&papers.issued.serial, &self.record(&papers))?;
        write_all(&files).inspect_err(|_| drop(book.forget_monitor(&papers.issued.serial)))?;
        if self.json {
            crate::output::put_json(&serde_json::json!({
                "authority": authority,
                "certificate": certificate,
                "key": key,
                "expires": papers.issued.expires,
            }))?;
        } else {
            outln!(
                "Certificate {} (key: {}) is valid until {}; the monitor needs {} to check the nodes",
                certificate.display(),
                key.display(),
                day(papers.issued.expires),
                authority.display()
            );
        }
        Ok(())
    }

    fn record(&self, papers: &MonitorPapers) -> MonitorRecord {
        let (issued, expires) = (SystemClock.now().seconds, papers.issued.expires);
        MonitorRecord { name: self.monitor.clone(), issued, expires, removed: None }
    }
}

/// Writes all files, or none.
fn write_all(files: &[(&PathBuf, u32, &String)]) -> Result<()> {
    for (place, (path, mode, text)) in files.iter().enumerate() {
        if let Err(error) = write(path, *mode, text) {
            for (made, ..) in &files[..place] {
                let _ = std::fs::remove_file(made);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Writes a file that is not there yet. What cannot be written as a whole is removed.
fn write(path: &Path, mode: u32, text: &str) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    let mut file = file.with_context(|| path.display().to_string())?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written
        .inspect_err(|_| drop(std::fs::remove_file(path)))
        .with_context(|| path.display().to_string())
}

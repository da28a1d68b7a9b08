//! `forebay cluster monitor`.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use forebay_grid::parse::period::Period;
use forebay_node::monitors::{admit, day};

use super::Which;

/// Make a certificate with which a monitor such as Prometheus reads metrics.
///
/// Daemons that serve metrics with --metrics-tls on any node of the cluster answer anyone who shows this certificate. It opens
/// nothing else, and cannot be revoked: it is valid until it expires. Writes ca.pem (the cluster's authority, with which the
/// monitor checks the nodes), NAME.pem and NAME.key to a directory. Runs on a node that holds the authority's key.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster monitor prometheus /etc/prometheus/forebay
  forebay cluster monitor prometheus . --for '90 d'
  curl --cacert ca.pem --cert prometheus.pem --key prometheus.key https://10.0.0.5:9464/metrics")]
pub struct Monitor {
    /// Name of the monitor, for the files and the certificate.
    monitor: String,
    /// Directory for the files, which must not hold them yet.
    directory: PathBuf,
    /// How long the certificate is valid.
    #[arg(long = "for", value_name = "TIME", default_value = "365 d", value_parser = |text: &str| text.parse::<Period>())]
    life: Period,
    /// Print JSON: the files, and the end of the certificate in seconds since 1970.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Monitor {
    pub fn run(self) -> Result<()> {
        let (home, _) = self.which.node()?;
        ensure!(
            self.monitor != "ca",
            "ca.pem is the file of the cluster's authority: choose another name than ca"
        );
        let file = |name: &str| self.directory.join(name);
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
        write_all(&files)?;
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

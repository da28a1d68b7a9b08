//! The settings of the web server in its file, ROOT/grid/web.toml; docs/formats/web-config.md describes them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::ByteSize;
use forebay_grid::parse::period::Period;
use serde::Deserialize;

use crate::alerts::rules::Rules;

/// All settings. Without a file all have their defaults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address at which HTTP is served.
    pub listen: SocketAddr,
    /// File with the certificate and those above it, in PEM.
    pub tls_cert: Option<PathBuf>,
    /// File with its key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// What links begin with, where it is not the address.
    pub url: Option<String>,
    /// The longest time for which a token is given.
    pub token_age_max: Period,
    /// How long a browser stays logged in.
    pub session_age_max: Period,
    /// Requests that are answered at the same time; each has a thread.
    pub requests_max: u32,
    /// Connections that are open at the same time.
    pub connections_max: u32,
    /// Event streams that are open at the same time.
    pub streams_max: u32,
    /// Longest body of a request.
    pub request_bytes_max: ByteSize,
    /// Folders whose study reports are listed.
    pub studies: Vec<PathBuf>,
    /// Samples that are kept.
    pub history: History,
    /// When alerts are raised, and whom they reach.
    pub alerts: Rules,
}

/// What is kept of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Time between two samples.
    pub interval: Period,
    /// How long each of them is kept.
    pub fine_age: Period,
    /// How long means of minutes are kept.
    pub coarse_age: Period,
    /// Hosts, queues and filesets with a file of their own; further ones have none.
    pub subjects_max: u32,
    /// Runs of jobs of which it is kept what they used over time; further ones take the places of those that ended first.
    pub runs_max: u32,
}

impl Default for History {
    fn default() -> History {
        History {
            interval: Period(5_000),
            fine_age: Period(3_600_000),
            coarse_age: Period(31 * 86_400_000),
            subjects_max: 64,
            runs_max: 1000,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            tls_cert: None,
            tls_key: None,
            url: None,
            token_age_max: Period(366 * 86_400_000),
            session_age_max: Period(12 * 3_600_000),
            requests_max: 32,
            connections_max: 1024,
            streams_max: 256,
            request_bytes_max: ByteSize::mib(8),
            studies: Vec::new(),
            history: History::default(),
            alerts: Rules::default(),
        }
    }
}

/// An address of the option `--listen`: of this machine alone if only a port is given.
///
/// # Errors
/// What is expected.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let found = match text.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => text.parse().ok(),
    };
    found.filter(|address| address.port() != 0).ok_or_else(|| {
        format!("\"{text}\" is not an address: give a port (8787), or an IP address and a port (10.0.0.5:8787)")
    })
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or the first fault in it, with its line.
    pub fn read(file: &Path) -> Result<Settings> {
        let settings = match std::fs::read_to_string(file) {
            Ok(text) => Settings::of(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Settings::default()),
            Err(error) => Err(error.into()),
        };
        settings.with_context(|| file.display().to_string())
    }

    fn of(text: &str) -> Result<Settings> {
        let settings: Settings = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start.min(text.len())].matches('\n').count() + 1;
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<()> {
        let History { interval, fine_age, coarse_age, subjects_max, runs_max } = self.history;
        let within = |name: &str, period: Period, low: u64, high: u64| {
            ensure!(
                (low..=high).contains(&period.as_ms()),
                "{name} = \"{period}\": choose from {} to {}",
                Period(low),
                Period(high)
            );
            Ok(())
        };
        const DAY: u64 = 86_400_000;
        within("history.interval", interval, 1000, 60_000)?;
        within("history.fine_age", fine_age, 60_000, 7 * DAY)?;
        within("history.coarse_age", coarse_age, 3_600_000, 400 * DAY)?;
        within("token_age_max", self.token_age_max, 60_000, 3660 * DAY)?;
        within("session_age_max", self.session_age_max, 60_000, 31 * DAY)?;
        let counts = [
            ("requests_max", self.requests_max, 1, 1024),
            ("connections_max", self.connections_max, 1, 65_536),
            ("streams_max", self.streams_max, 1, 65_536),
            ("history.subjects_max", subjects_max, 0, 4096),
            ("history.runs_max", runs_max, 0, 20_000),
        ];
        for (name, value, low, high) in counts {
            ensure!((low..=high).contains(&value), "{name} = {value}: choose from {low} to {high}");
        }
        let bytes = self.request_bytes_max.0;
        ensure!(
            (1 << 10..=64 << 20).contains(&bytes),
            "request_bytes_max = {bytes}: choose from 1 KiB to 64 MiB"
        );
        self.alerts.check()
    }

    /// Refuses to serve other machines without TLS.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn check_safe(&self) -> Result<()> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), Some(_)) => Ok(()),
            (None, None) if self.listen.ip().is_loopback() => Ok(()),
            (None, None) => bail!(
                "{}: other machines reach this address, so it needs TLS: give --tls-cert FILE and --tls-key FILE, or a \
                 loopback address",
                self.listen
            ),
            (Some(_), None) => bail!("--tls-cert needs --tls-key, the key of the certificate"),
            (None, Some(_)) => bail!("--tls-key needs --tls-cert, the certificate of the key"),
        }
    }

    /// What links begin with.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        let own = || format!("{scheme}://{}", self.listen);
        self.url.as_ref().map_or_else(own, |url| url.trim_end_matches('/').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_the_settings_is_told_with_its_line() {
        let fault = |text: &str| Settings::of(text).unwrap_err().to_string();
        assert!(
            fault("listen = \"127.0.0.1:1\"\nlisen = 3\n").starts_with("line 2: unknown field")
        );
        assert!(fault("[history]\ninterval = \"1 ms\"\n").contains("history.interval"));
        assert!(fault("requests_max = 0\n").contains("choose from 1 to 1024"));
        assert_eq!(Settings::of("").unwrap(), Settings::default());
    }

    #[test]
    fn an_address_that_other_machines_reach_needs_tls() {
        assert_eq!(address("8787").unwrap().to_string(), "127.0.0.1:8787");
        assert!(address("0").is_err() && address("host:1").is_err());
        let near = Settings::default();
        near.check_safe().unwrap();
        let far = Settings { listen: address("0.0.0.0:8787").unwrap(), ..near };
        assert!(far.check_safe().unwrap_err().to_string().contains("--tls-cert"));
        let half = Settings { tls_cert: Some("c".into()), ..far.clone() };
        assert!(half.check_safe().unwrap_err().to_string().contains("--tls-key"));
        let whole = Settings { tls_key: Some("k".into()), ..half };
        whole.check_safe().unwrap();
        assert_eq!(whole.url(), "https://0.0.0.0:8787");
    }
}

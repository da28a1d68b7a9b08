//! `forebay web` and `forebay alerts`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::home::GridHome;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;
use forebay_web::door::{self, Answer, Ask};
use forebay_web::settings::{Settings, address};
use forebay_web::{app, serve};

use super::grid::home_of;
use crate::background::log_to_standard_error;
use crate::monitors::Monitors;
use crate::output::{Table, put_json};
use crate::watched::System;

/// Serve a grid over HTTP: web pages and a REST API.
///
/// The server shows and changes what the commands do: each user sees the own jobs, and admins of the grid see all. Without a
/// certificate it serves this machine alone (http://127.0.0.1:8787). Settings are in ROOT/grid/web.toml.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web serve /srv/jobs                    serve http://127.0.0.1:8787
  forebay web login                              print a link that logs a browser in
  curl -H \"Authorization: Bearer $(forebay web token --for '1 d')\" http://127.0.0.1:8787/api/v1/jobs")]
pub struct Web {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(Box<ServeWeb>),
    Login(Login),
    Token(TokenNew),
    Tokens(TokenList),
    Revoke(Revoke),
}

/// Run the web server of a grid until SIGTERM.
///
/// Root or the user whose grid it is runs it. Other users than that one can use it only if root runs it, as with the grid. Options
/// override ROOT/grid/web.toml.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web serve /srv/jobs
  forebay web serve /srv/jobs --listen 0.0.0.0:8443 --tls-cert web.pem --tls-key web.key
  forebay web serve /srv/jobs --files /mnt/forebay
  forebay web serve /srv/jobs --metrics 9470         answer Prometheus too")]
struct ServeWeb {
    /// Folder of the grid.
    root: PathBuf,
    /// Address to serve: a port of this machine, or an IP address and a port, which needs TLS unless it is a loopback
    /// address [default: 127.0.0.1:8787].
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// File with the certificate of the server and those above it, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// What login links begin with, where a proxy or another name leads to the server, such as `https://grid.example.com`.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Mount point or home folder of the file system to show [default: ROOT, if a file system has its home there; otherwise
    /// that of the cluster on whose nodes the grid runs].
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Folder whose study reports are listed; may be repeated.
    #[arg(long, value_name = "DIR")]
    studies: Vec<PathBuf>,
    #[command(flatten)]
    monitors: Monitors,
}

/// Print a link that logs a browser in as you.
///
/// The link can be used once, within five minutes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web login
  xdg-open \"$(forebay web login)\"")]
struct Login {
    #[command(flatten)]
    which: WhichWeb,
}

/// Make a token with which a program asks the REST API as you, and print it.
///
/// The token is shown this once: the server keeps only its hash. Programs send it as `Authorization: Bearer TOKEN`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web token --for '30 d' --name ci
  TOKEN=$(forebay web token)")]
struct TokenNew {
    #[command(flatten)]
    which: WhichWeb,
    /// Name by which you recognize it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// How long it is valid: '12 h', '30 d'.
    #[arg(long = "for", value_name = "TIME", default_value = "30 d", value_parser = |text: &str| text.parse::<Period>())]
    age: Period,
}

/// List your tokens.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web tokens
  forebay web tokens --all --json     those of all users, as an admin")]
struct TokenList {
    #[command(flatten)]
    which: WhichWeb,
    /// List the tokens of all users; for admins of the grid.
    #[arg(long)]
    all: bool,
}

/// Revoke a token: requests with it are refused from now on.
///
/// Admins of the grid can revoke the tokens of all users.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay web revoke 3")]
struct Revoke {
    #[command(flatten)]
    which: WhichWeb,
    /// Number of the token, as `forebay web tokens` shows it.
    token: u32,
}

/// Show alerts of a grid and its file system, and mute them.
///
/// The web server raises them by the thresholds in ROOT/grid/web.toml; --mute silences one for a time: it is listed, and nobody is notified. Only admins of the
/// grid can mute. Exit codes: 0 nothing is wrong, 1 an alert fires that is not muted, 2 the server is unreachable.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay alerts
  forebay alerts --all                     resolved ones too
  forebay alerts --mute fill/nvme0 --for '2 d'
  forebay alerts --mute host_unreachable --for '4 h'    all hosts
  forebay alerts --unmute fill/nvme0")]
pub struct Alerts {
    #[command(flatten)]
    which: WhichWeb,
    /// Show resolved alerts too.
    #[arg(long)]
    all: bool,
    /// Alert to mute: its code, or the part before the slash.
    #[arg(long, value_name = "CODE", requires = "time")]
    mute: Option<String>,
    /// How long it is muted: '4 h', '2 d'.
    #[arg(id = "time", long = "for", value_name = "TIME", requires = "mute", value_parser = |text: &str| text.parse::<Period>())]
    time: Option<Period>,
    /// Notify people of this alert again.
    #[arg(long, value_name = "CODE", conflicts_with = "mute")]
    unmute: Option<String>,
}

#[derive(clap::Args)]
struct WhichWeb {
    /// Folder of the grid [default: the environment variable FOREBAY_GRID].
    #[arg(long, value_name = "ROOT")]
    grid: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl WhichWeb {
    fn ask(&self, ask: &Ask) -> Result<Answer> {
        door::ask(&home_of(self.grid.clone())?, ask)
    }
}

fn no_sense(answer: &Answer) -> anyhow::Error {
    anyhow::anyhow!("unexpected answer of the web server (another version?): {answer:?}")
}

fn time(moment: Moment) -> String {
    super::grid::time_of(moment)
}

impl Web {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Serve(command) => command.run(),
            Action::Login(command) => command.run(),
            Action::Token(command) => command.run(),
            Action::Tokens(command) => command.run(),
            Action::Revoke(command) => command.run(),
        }
    }
}

impl ServeWeb {
    fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        let home = GridHome::guarded(&self.root)?;
        let mut settings = Settings::read(&app::settings_file(&home))?;
        settings.listen = self.listen.unwrap_or(settings.listen);
        if self.tls_cert.is_some() {
            (settings.tls_cert, settings.tls_key) = (self.tls_cert, self.tls_key);
        }
        settings.url = self.url.or(settings.url);
        settings.studies.extend(self.studies);
        let monitors = self.monitors.listen()?;
        let system = System::new(&self.root, self.files.as_deref())?;
        // SAFETY: ignoring a signal is always sound. A peer that is gone is found out by the error of a write.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        crate::tuning::raise_file_limit();
        let ready = |url: &str| {
            // Without a standard output the address is in the log.
            let _ = crate::output::put_text(&format!("{url}\n"));
        };
        serve::run(&home, settings, Box::new(system), monitors, ready)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Login {
    fn run(self) -> Result<ExitCode> {
        let Answer::Link { url, seconds } = self.which.ask(&Ask::Login)? else {
            bail!("the web server gave no link; is it of another version?")
        };
        if self.which.json {
            put_json(&serde_json::json!({ "url": url, "seconds": seconds }))?;
        } else {
            outln!("{url}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl TokenNew {
    fn run(self) -> Result<ExitCode> {
        let ask = Ask::Token { name: self.name, age_ms: self.age.as_ms() };
        match self.which.ask(&ask)? {
            Answer::Token { id, token, expires } if self.which.json => {
                put_json(&serde_json::json!({ "id": id, "token": token, "expires": expires }))?;
            }
            Answer::Token { id, token, expires } => {
                outln!("{token}");
                note!("forebay: token {id} expires {}", time(expires));
            }
            answer => return Err(no_sense(&answer)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl TokenList {
    fn run(self) -> Result<ExitCode> {
        let answer = self.which.ask(&Ask::Tokens { all: self.all })?;
        let Answer::Tokens { tokens } = answer else { return Err(no_sense(&answer)) };
        if self.which.json {
            put_json(&tokens)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&["token", "user", "name", "made", "expires"]);
        for token in tokens {
            table.row(vec![
                token.id.to_string(),
                token.user,
                token.name,
                time(token.made),
                time(token.expires),
            ]);
        }
        out!("{}", table.render());
        Ok(ExitCode::SUCCESS)
    }
}

impl Revoke {
    fn run(self) -> Result<ExitCode> {
        match self.which.ask(&Ask::Revoke { id: self.token })? {
            Answer::Done if self.which.json => {
                put_json(&serde_json::json!({ "revoked": self.token }))?;
            }
            Answer::Done => {}
            answer => return Err(no_sense(&answer)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Alerts {
    pub fn run(self) -> Result<ExitCode> {
        if let Some(code) = self.mute {
            let age = self.time.context("--for is missing")?;
            let until = Moment::from(SystemClock.now()).after(age.as_ms());
            self.which.ask(&Ask::Mute { code, until })?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(code) = self.unmute {
            self.which.ask(&Ask::Unmute { code })?;
            return Ok(ExitCode::SUCCESS);
        }
        let answer = self.which.ask(&Ask::Alerts)?;
        let Answer::Alerts { mut alerts } = answer else { return Err(no_sense(&answer)) };
        if !self.all {
            alerts.retain(|alert| alert.firing);
        }
        let is_wrong = alerts.iter().any(|alert| alert.firing && alert.muted_until.is_none());
        if self.which.json {
            put_json(&alerts)?;
        } else if alerts.is_empty() {
            outln!("no alerts");
        } else {
            let mut table = Table::new(&["alert", "since", "state", "what"]);
            for alert in alerts {
                let state = match (alert.resolved, alert.muted_until) {
                    (Some(at), _) => format!("over since {at}"),
                    (None, Some(until)) => format!("muted until {until}"),
                    (None, None) => "firing".to_owned(),
                };
                table.row(vec![alert.code, alert.since, state, alert.text]);
            }
            out!("{}", table.render());
        }
        Ok(ExitCode::from(u8::from(is_wrong)))
    }
}

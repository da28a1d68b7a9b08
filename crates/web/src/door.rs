//! The socket on which commands reach the server: ROOT/grid/web.sock, one line of JSON asks, one line answers.
//!
//! The kernel says which user asks. Tokens, login links and mutes are made here and nowhere else, so a token cannot make another one.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::home::GridHome;
use forebay_engine::protocol::{Reader, connect, listen, write};
use forebay_engine::trust;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;
use forebay_process::user::is_root;
use serde::{Deserialize, Serialize};

use crate::app::{App, Who, socket};

/// Longest time of a question and its answer.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Connections that are served at the same time; further ones wait.
const THREADS: usize = 4;

/// What commands ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Make a token for the user who asks.
    Token {
        /// What the user calls it.
        name: String,
        /// How long it is good for.
        age_ms: u64,
    },
    /// List the tokens of the user who asks, or of all users for an admin.
    Tokens {
        /// Whether those of all users are wanted.
        all: bool,
    },
    /// Revoke a token.
    Revoke {
        /// Its number.
        id: u32,
    },
    /// Make a login link for the user who asks.
    Login,
    /// List alerts.
    Alerts,
    /// Have nobody notified of an alert until a time.
    Mute {
        /// Its code, or what it begins with.
        code: String,
        /// The time.
        until: Moment,
    },
    /// End that.
    Unmute {
        /// As it was muted.
        code: String,
    },
}

/// A token in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Its number.
    pub id: u32,
    /// Name of its user.
    pub user: String,
    /// What the user calls it.
    pub name: String,
    /// When it was made.
    pub made: Moment,
    /// When it expires.
    pub expires: Moment,
}

/// An alert in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Raised {
    /// Its code.
    pub code: String,
    /// What is wrong.
    pub text: String,
    /// Whether it is so still.
    pub firing: bool,
    /// Since when, as RFC 3339 writes it.
    pub since: String,
    /// When it was over.
    pub resolved: Option<String>,
    /// Until when nobody is notified of it.
    pub muted_until: Option<String>,
}

/// What the server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Refused; nothing was changed.
    Refused {
        /// Why.
        reason: String,
    },
    /// The secret of a new token.
    Token {
        /// Its number.
        id: u32,
        /// The secret.
        token: String,
        /// When it expires.
        expires: Moment,
    },
    /// Tokens.
    Tokens {
        /// They.
        tokens: Vec<Listed>,
    },
    /// A login link.
    Link {
        /// The link.
        url: String,
        /// How long it is good for, in seconds.
        seconds: u64,
    },
    /// Alerts.
    Alerts {
        /// They.
        alerts: Vec<Raised>,
    },
}

/// Asks the server of a grid.
///
/// # Errors
/// If it does not answer, belongs to another user than root and this one, or refuses: with its reason.
pub fn ask(home: &GridHome, ask: &Ask) -> Result<Answer> {
    let stream = connect(&socket(home)).with_context(|| {
        let folder = home.folder().display();
        format!("the web server of {folder} does not answer; start it: forebay web serve ROOT")
    })?;
    trust::check_peer(&stream).context("the web server")?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    write(&stream, ask)?;
    match Reader::new(stream).read()?.context("the web server disconnected before it answered")? {
        Answer::Refused { reason } => bail!(reason),
        answer => Ok(answer),
    }
}

/// Serves the socket, in threads that end with the process.
///
/// # Errors
/// If it cannot be made.
pub fn serve(app: &Arc<App>) -> Result<()> {
    let mode = if is_root() { 0o666 } else { 0o600 };
    let listener = Arc::new(listen(&socket(&app.home), mode)?);
    for _ in 0..THREADS {
        let (app, listener) = (Arc::clone(app), Arc::clone(&listener));
        std::thread::Builder::new()
            .name("web-door".to_owned())
            .spawn(move || accept(&app, &listener))?;
    }
    Ok(())
}

fn accept(app: &App, listener: &UnixListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: others may close theirs.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if let Err(error) = converse(app, &stream) {
            tracing::debug!("a command: {error:#}");
        }
    }
}

fn converse(app: &App, stream: &UnixStream) -> Result<()> {
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let asked = Reader::new(stream.try_clone()?).read::<Ask>();
    let answer = match asked {
        Ok(None) => return Ok(()),
        Ok(Some(ask)) => app.who(peer.uid.as_raw()).and_then(|who| answer(app, &who, ask)),
        Err(error) => Err(error),
    };
    let answer = answer.unwrap_or_else(|error| Answer::Refused { reason: format!("{error:#}") });
    write(stream, &answer)
}

fn answer(app: &App, who: &Who, ask: Ask) -> Result<Answer> {
    let now = app.now();
    let of = if who.admin { None } else { Some(who.uid) };
    Ok(match ask {
        Ask::Token { name, age_ms } => {
            let most = app.settings.token_age_max;
            ensure!(
                age_ms > 0 && age_ms <= most.as_ms(),
                "a token is good for at most {most} here (token_age_max in web.toml), and {} was requested",
                Period(age_ms)
            );
            let (token, secret) = app.tokens.lock().make(who.uid, &name, now, age_ms)?;
            tracing::info!(id = token.id, user = %who.user, "a token was made");
            Answer::Token { id: token.id, token: secret, expires: token.expires }
        }
        Ask::Tokens { all } => {
            let of = if all { of } else { Some(who.uid) };
            let found = app.tokens.lock().list(of, now);
            let listed = |token: crate::token::Token| Listed {
                user: user_name(token.uid),
                id: token.id,
                name: token.name,
                made: token.made,
                expires: token.expires,
            };
            Answer::Tokens { tokens: found.into_iter().map(listed).collect() }
        }
        Ask::Revoke { id } => {
            app.tokens.lock().revoke(of, id)?;
            tracing::info!(id, user = %who.user, "a token was revoked");
            Answer::Done
        }
        Ask::Login => {
            let key = app.sessions.lock().invite(who.uid, now)?;
            let url = format!("{}/login?key={key}", app.settings.url());
            Answer::Link { url, seconds: crate::token::KEY_AGE_MS / 1000 }
        }
        Ask::Alerts => {
            let raised = |alert: crate::api::views::AlertView| Raised {
                code: alert.code,
                text: alert.text,
                firing: alert.firing,
                since: alert.since.0,
                resolved: alert.resolved.map(|time| time.0),
                muted_until: alert.muted_until.map(|time| time.0),
            };
            Answer::Alerts { alerts: app.alerts.list().into_iter().map(raised).collect() }
        }
        Ask::Mute { code, until } => {
            ensure!(who.admin, "{} may not mute alerts: only admins of the grid may", who.user);
            ensure!(until > now, "the end of the mute has passed");
            let is_plain =
                !code.is_empty() && code.len() <= 256 && !code.contains(char::is_control);
            ensure!(is_plain, "\"{code}\" is not the code of an alert");
            app.alerts.mute(&code, until)?;
            Answer::Done
        }
        Ask::Unmute { code } => {
            ensure!(who.admin, "{} may not unmute alerts: only admins of the grid may", who.user);
            ensure!(app.alerts.unmute(&code)?, "\"{code}\" is not muted");
            Answer::Done
        }
    })
}

fn user_name(uid: u32) -> String {
    forebay_engine::user::name_of(uid).map_or_else(|_| uid.to_string(), |name| name.to_string())
}

//! What answers requests: the grid behind its socket, and all that the server itself keeps.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use forebay_base::Clock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::user;
use forebay_grid::vocabulary::{Moment, UserName};
use forebay_process::user::Account;
use parking_lot::Mutex;

use crate::alerts::Alerts;
use crate::feed::Feed;
use crate::history::History;
use crate::history::runs::Runs;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::token::{Sessions, Tokens};
use crate::watched::Watched;

/// Everything that requests need.
pub struct App {
    /// Folder of the grid.
    pub home: GridHome,
    /// Settings.
    pub settings: Settings,
    /// Tokens of programs.
    pub tokens: Mutex<Tokens>,
    /// Browsers that are logged in.
    pub sessions: Mutex<Sessions>,
    /// Changes of jobs and hosts.
    pub feed: Arc<Feed>,
    /// Samples of the past.
    pub history: History,
    /// What running jobs used over time.
    pub runs: Runs,
    /// What is wrong.
    pub alerts: Alerts,
    /// The file system and the machine.
    pub watched: Box<dyn Watched>,
    /// Time.
    pub clock: Arc<dyn Clock + Send + Sync>,
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Who {
    /// Number of the user.
    pub uid: u32,
    /// Name.
    pub user: UserName,
    /// Whether it is an admin of the grid.
    pub admin: bool,
    /// The token with which was asked.
    pub token: Option<u32>,
    /// What forms have to show, in a browser.
    pub form_key: Option<String>,
}

/// Folder in which the server keeps what it must not forget.
#[must_use]
pub fn folder(home: &GridHome) -> PathBuf {
    home.folder().join("web")
}

/// Socket on which commands reach the server.
#[must_use]
pub fn socket(home: &GridHome) -> PathBuf {
    home.folder().join("web.sock")
}

/// File of its settings.
#[must_use]
pub fn settings_file(home: &GridHome) -> PathBuf {
    home.folder().join("web.toml")
}

impl App {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now().into()
    }

    /// A user by number.
    ///
    /// # Errors
    /// If the user database does not answer, or the user cannot be one of the grid.
    pub fn who(&self, uid: u32) -> Result<Who> {
        let user = user::name_of(uid)?;
        let admin = match forebay_engine::server::settings::read(&self.home) {
            Ok(config) => config.general.admins.contains(&user),
            // The controller goes on with its former settings; what it refuses is refused.
            Err(_) => uid == 0 || uid == rustix::process::geteuid().as_raw(),
        };
        Ok(Who { uid, user, admin, token: None, form_key: None })
    }

    /// A connection to the controller that asks for a user.
    ///
    /// # Errors
    /// If it is unreachable.
    pub fn client(&self, who: &Who) -> Result<Client> {
        Client::connect_for(&self.home, who.uid)
    }

    /// The account of a user on this machine.
    ///
    /// # Errors
    /// If there is none.
    pub fn account(&self, who: &Who) -> Result<Account> {
        user::account_of(&who.user)
    }

    /// Calls `act` with the rights of a user on files.
    ///
    /// # Errors
    /// If they cannot be taken, or what `act` says.
    pub fn as_user<T: Send>(
        &self,
        who: &Who,
        act: impl FnOnce() -> Result<T, Problem> + Send,
    ) -> Result<T, Problem> {
        let account = self.account(who)?;
        let done = account.act(act).context("cannot act as the user");
        done.map_err(|error| Problem::own("internal", format!("{error:#}")))?
    }

    /// The user of a token.
    ///
    /// # Errors
    /// If there is no such token any more.
    pub fn by_token(&self, secret: &str) -> Result<Who, Problem> {
        let unknown = "the token is unknown, expired or revoked: forebay web token makes one";
        let found = self.tokens.lock().find(secret, self.now()).map(|token| (token.uid, token.id));
        let (uid, id) = found.ok_or_else(|| Problem::own("unauthorized", unknown))?;
        let who =
            self.who(uid).map_err(|error| Problem::own("unauthorized", format!("{error:#}")))?;
        Ok(Who { token: Some(id), ..who })
    }
}

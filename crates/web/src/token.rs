//! Who asks: tokens of programs, one-time keys of login links, and sessions of browsers.
//!
//! The server keeps hashes (SHA-256) of secrets, never the secrets. Tokens are kept in a file, which is replaced as a whole when one
//! is made or revoked: a crash leaves the old or the new one. Keys and sessions are in memory; after a restart people log in again.

use std::collections::HashMap;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_grid::vocabulary::Moment;
use serde::{Deserialize, Serialize};

/// The most tokens of one user that have not expired.
pub const TOKENS_MAX: usize = 100;
/// The most sessions of browsers; the oldest ends for a further one.
const SESSIONS_MAX: usize = 10_000;
/// The most login links of one user that were not used.
const KEYS_MAX: usize = 10;
/// How long a login link is good for.
pub const KEY_AGE_MS: u64 = 5 * 60_000;
/// The most characters of a token's name.
pub const NAME_MAX: usize = 64;
/// What a token begins with, so that it is recognized where it should not be.
const PREFIX: &str = "fbt_";

type Hash = String;

/// A secret, as it is given out once.
#[must_use]
pub fn secret() -> String {
    let mut bytes = [0_u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("the kernel gives random bytes");
    hex(&bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(secret: &str) -> Hash {
    hex(ring::digest::digest(&ring::digest::SHA256, secret.as_bytes()).as_ref())
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Number, never used again.
    pub id: u32,
    /// Number of its user.
    pub uid: u32,
    /// What its user calls it.
    pub name: String,
    /// When it was made.
    pub made: Moment,
    /// When it expires.
    pub expires: Moment,
    hash: Hash,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    next: u32,
    tokens: Vec<Token>,
}

/// The version of the file of tokens.
const VERSION: u32 = 1;

/// All tokens.
pub struct Tokens {
    path: PathBuf,
    file: File,
}

impl Tokens {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or is of another version.
    pub fn open(path: &Path) -> Result<Tokens> {
        let shown = || path.display().to_string();
        let file = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} is damaged; remove it to revoke all tokens", shown())
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                File { version: VERSION, next: 1, tokens: Vec::new() }
            }
            Err(error) => return Err(error).with_context(shown),
        };
        ensure!(
            file.version == VERSION,
            "{} has version {}, and this program reads version {VERSION}: remove it to revoke all tokens",
            shown(),
            file.version
        );
        Ok(Tokens { path: path.to_owned(), file })
    }

    /// Makes a token; the secret is told this once.
    ///
    /// # Errors
    /// If its name cannot be used, its user has too many, or the file cannot be written.
    pub fn make(
        &mut self,
        uid: u32,
        name: &str,
        now: Moment,
        age_ms: u64,
    ) -> Result<(Token, String)> {
        ensure!(
            name.chars().count() <= NAME_MAX && !name.chars().any(char::is_control),
            "the name of a token has at most {NAME_MAX} characters, without control characters"
        );
        self.file.tokens.retain(|token| token.expires > now);
        let count = self.file.tokens.iter().filter(|token| token.uid == uid).count();
        ensure!(
            count < TOKENS_MAX,
            "you have {count} tokens, and {TOKENS_MAX} are the most: revoke one"
        );
        let secret = format!("{PREFIX}{}", secret());
        let token = Token {
            id: self.file.next,
            uid,
            name: name.to_owned(),
            made: now,
            expires: now.after(age_ms),
            hash: hash(&secret),
        };
        self.file.next += 1;
        self.file.tokens.push(token.clone());
        if let Err(error) = self.save() {
            self.file.tokens.pop();
            return Err(error);
        }
        Ok((token, secret))
    }

    /// The token with this secret, if it has not expired.
    #[must_use]
    pub fn find(&self, secret: &str, now: Moment) -> Option<&Token> {
        let hash = hash(secret);
        self.file.tokens.iter().find(|token| token.hash == hash && token.expires > now)
    }

    /// Those of a user, or all, that have not expired.
    #[must_use]
    pub fn list(&self, uid: Option<u32>, now: Moment) -> Vec<Token> {
        let wanted = |token: &&Token| token.expires > now && uid.is_none_or(|uid| token.uid == uid);
        self.file.tokens.iter().filter(wanted).cloned().collect()
    }

    /// Revokes a token of a user, or of anybody.
    ///
    /// # Errors
    /// If there is none, or the file cannot be written: then it is still good.
    pub fn revoke(&mut self, uid: Option<u32>, id: u32) -> Result<()> {
        let place = self
            .file
            .tokens
            .iter()
            .position(|token| token.id == id && uid.is_none_or(|uid| token.uid == uid));
        let Some(place) = place else { bail!("there is no token {id} of yours") };
        let token = self.file.tokens.remove(place);
        let saved = self.save();
        if saved.is_err() {
            self.file.tokens.insert(place, token);
        }
        saved
    }

    fn save(&self) -> Result<()> {
        replace(&self.path, &serde_json::to_vec(&self.file)?)
    }
}

/// Replaces a file as a whole, readable by its owner only.
///
/// # Errors
/// If it cannot be written; the old one stays then.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let write = || {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A browser that is logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Number of its user.
    pub uid: u32,
    /// What its forms have to show, which no other site knows.
    pub form_key: String,
    expires: Moment,
}

/// Keys of login links and sessions of browsers.
#[derive(Default)]
pub struct Sessions {
    keys: HashMap<Hash, (u32, Moment)>,
    sessions: HashMap<Hash, Session>,
}

impl Sessions {
    /// Makes a key for one log-in.
    ///
    /// # Errors
    /// If the user has too many that were not used.
    pub fn invite(&mut self, uid: u32, now: Moment) -> Result<String> {
        self.keys.retain(|_, (_, expires)| *expires > now);
        let count = self.keys.values().filter(|(of, _)| *of == uid).count();
        ensure!(count < KEYS_MAX, "{count} login links are open: use one, or wait five minutes");
        let key = secret();
        self.keys.insert(hash(&key), (uid, now.after(KEY_AGE_MS)));
        Ok(key)
    }

    /// Uses a key up; the user whose it was.
    pub fn accept(&mut self, key: &str, now: Moment) -> Option<u32> {
        let (uid, expires) = self.keys.remove(&hash(key))?;
        (expires > now).then_some(uid)
    }

    /// Begins a session; the secret for the browser.
    pub fn begin(&mut self, uid: u32, now: Moment, age_ms: u64) -> String {
        self.sessions.retain(|_, session| session.expires > now);
        if self.sessions.len() >= SESSIONS_MAX {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.expires);
            if let Some(oldest) = oldest.map(|(hash, _)| hash.clone()) {
                self.sessions.remove(&oldest);
            }
        }
        let key = secret();
        let session = Session { uid, form_key: secret(), expires: now.after(age_ms) };
        self.sessions.insert(hash(&key), session);
        key
    }

    /// The session of a browser.
    #[must_use]
    pub fn find(&self, key: &str, now: Moment) -> Option<Session> {
        self.sessions.get(&hash(key)).filter(|session| session.expires > now).cloned()
    }

    /// How many browsers are logged in.
    #[must_use]
    pub fn count(&self, now: Moment) -> usize {
        self.sessions.values().filter(|session| session.expires > now).count()
    }

    /// Ends a session.
    pub fn end(&mut self, key: &str) {
        self.sessions.remove(&hash(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let mut tokens = Tokens::open(&path).unwrap();
        let (token, secret) = tokens.make(7, "ci", Moment(1000), 500).unwrap();
        let (other, _) = tokens.make(8, "", Moment(1000), 500).unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains(&secret));
        // As after a restart.
        let mut tokens = Tokens::open(&path).unwrap();
        assert_eq!(tokens.find(&secret, Moment(1499)), Some(&token));
        assert_eq!(tokens.find(&secret, Moment(1500)), None);
        assert_eq!(tokens.find(&token.hash, Moment(1000)), None);
        assert_eq!(tokens.list(Some(7), Moment(1000)), std::slice::from_ref(&token));
        tokens.revoke(Some(7), other.id).unwrap_err();
        tokens.revoke(Some(7), token.id).unwrap();
        assert_eq!(Tokens::open(&path).unwrap().find(&secret, Moment(1000)), None);
        let (third, _) = tokens.make(7, "", Moment(1000), 500).unwrap();
        assert_eq!(third.id, 3, "numbers are not used again");
    }

    #[test]
    fn a_damaged_file_of_tokens_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        std::fs::write(&path, "{").unwrap();
        assert!(format!("{:#}", Tokens::open(&path).err().unwrap()).contains("is damaged"));
        std::fs::write(&path, r#"{"version":2,"next":1,"tokens":[]}"#).unwrap();
        assert!(Tokens::open(&path).err().unwrap().to_string().contains("has version 2"));
    }

    #[test]
    fn a_login_link_is_good_once() {
        let mut sessions = Sessions::default();
        let key = sessions.invite(7, Moment(0)).unwrap();
        assert_eq!(sessions.accept("x", Moment(1)), None);
        assert_eq!(sessions.accept(&key, Moment(1)), Some(7));
        assert_eq!(sessions.accept(&key, Moment(1)), None);
        let late = sessions.invite(7, Moment(0)).unwrap();
        assert_eq!(sessions.accept(&late, Moment(KEY_AGE_MS)), None);
        let browser = sessions.begin(7, Moment(0), 100);
        assert_eq!(sessions.find(&browser, Moment(99)).unwrap().uid, 7);
        assert_eq!(sessions.find(&browser, Moment(100)), None);
        sessions.end(&browser);
        assert_eq!(sessions.find(&browser, Moment(1)), None);
    }
}

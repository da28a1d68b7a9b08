//! Alerts: what is wrong, who is notified, and what is muted.
//!
//! [`rules`] says what is wrong, [`book`] when it is an alert and when it is over, `send` notifies people. The book is kept in a file
//! that is replaced as a whole, so after a restart alerts are neither forgotten nor sent again.

pub mod book;
pub mod rules;
mod send;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::Moment;
use parking_lot::Mutex;

use self::book::{Alert, Book, Note, Seen};
use self::rules::Rules;
use self::send::Sender;
use crate::api::views::AlertView;
use crate::token::replace;

/// All alerts.
pub struct Alerts {
    path: PathBuf,
    persist_ms: u64,
    book: Mutex<Book>,
    sender: Sender,
    now: Mutex<Moment>,
}

impl Alerts {
    /// Reads what is known from before. `grid` is what messages call the grid.
    ///
    /// # Errors
    /// If the file cannot be read, or there can be no thread that sends.
    pub fn open(path: &Path, rules: &Rules, grid: &str) -> Result<Alerts> {
        let shown = || path.display().to_string();
        let book = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} is damaged; remove it to forget all alerts", shown())
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => Book::default(),
            Err(error) => return Err(error).with_context(shown),
        };
        Ok(Alerts {
            path: path.to_owned(),
            persist_ms: rules.persist.as_ms(),
            book: Mutex::new(book),
            sender: Sender::start(rules, grid)?,
            now: Mutex::default(),
        })
    }

    /// Takes in what is seen now.
    pub fn take(&self, now: Moment, seen: Seen<'_>) {
        *self.now.lock() = now;
        let mut book = self.book.lock();
        let notes = book.take(now, seen, self.persist_ms);
        if notes.is_empty() {
            return;
        }
        if let Err(error) = self.save(&book) {
            tracing::warn!("{error:#}");
        }
        drop(book);
        for note in notes {
            log(&note);
            if !note.muted {
                self.sender.send(note);
            }
        }
    }

    fn save(&self, book: &Book) -> Result<()> {
        replace(&self.path, &serde_json::to_vec(book)?)
    }

    /// Has nobody notified of an alert until a time.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub fn mute(&self, code: &str, until: Moment) -> Result<()> {
        let mut book = self.book.lock();
        let before = book.mutes.insert(code.to_owned(), until);
        let saved = self.save(&book);
        if saved.is_err() {
            match before {
                Some(before) => book.mutes.insert(code.to_owned(), before),
                None => book.mutes.remove(code),
            };
        }
        saved
    }

    /// Ends a mute. Whether there was one.
    ///
    /// # Errors
    /// If that cannot be kept.
    pub fn unmute(&self, code: &str) -> Result<bool> {
        let mut book = self.book.lock();
        let Some(before) = book.mutes.remove(code) else { return Ok(false) };
        let saved = self.save(&book);
        if saved.is_err() {
            book.mutes.insert(code.to_owned(), before);
        }
        saved.map(|()| true)
    }

    /// How many fire.
    #[must_use]
    pub fn firing(&self) -> usize {
        self.book.lock().firing.len()
    }

    /// Those that fire, then those that are over, the latest first.
    #[must_use]
    pub fn list(&self) -> Vec<AlertView> {
        let (book, now) = (self.book.lock(), *self.now.lock());
        let view = |code: &str, alert: &Alert| AlertView {
            muted_until: book.muted_until(code, now).map(Into::into),
            code: code.to_owned(),
            text: alert.text.clone(),
            firing: alert.resolved.is_none(),
            since: alert.since.into(),
            resolved: alert.resolved.map(Into::into),
        };
        let firing = book.firing.iter().map(|(code, alert)| view(code, alert));
        let over = book.over.iter().rev().map(|(code, alert)| view(code, alert));
        firing.chain(over).collect()
    }
}

fn log(note: &Note) {
    let Note { code, alert, .. } = note;
    if alert.resolved.is_some() {
        tracing::info!(code, "resolved: {}", alert.text);
    } else {
        tracing::warn!(code, "alert: {}", alert.text);
    }
}

//! Alerts as they come, stay and go: decisions without I/O.

use std::collections::BTreeMap;

use forebay_grid::vocabulary::Moment;
use serde::{Deserialize, Serialize};

use super::rules::Condition;

/// The most alerts that are over and still listed.
const OVER_MAX: usize = 200;
/// How long they are.
const OVER_AGE_MS: u64 = 7 * 86_400_000;
/// The most alerts that fire.
const FIRING_MAX: usize = 1000;

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// What is wrong, in words.
    pub text: String,
    /// Since when.
    pub since: Moment,
    /// When it was over.
    pub resolved: Option<Moment>,
}

/// What people are notified of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Code of the alert.
    pub code: String,
    /// The alert.
    pub alert: Alert,
    /// Whether nobody is to be notified now.
    pub muted: bool,
}

/// All alerts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Book {
    /// Those that fire, by code.
    pub firing: BTreeMap<String, Alert>,
    /// Those that are over, the latest last.
    pub over: Vec<(String, Alert)>,
    /// Codes, or what they begin with, of which nobody is notified, and until when.
    pub mutes: BTreeMap<String, Moment>,
    /// What is wrong and has not been so for long enough, and since when.
    #[serde(skip)]
    pending: BTreeMap<String, Moment>,
}

/// What was seen at one time.
pub struct Seen<'a> {
    /// What is wrong.
    pub found: Vec<Condition>,
    /// What nobody could say: codes, or what they begin with.
    pub unknown: &'a [&'a str],
    /// Why the alert with a code is over, if not because it was mended.
    pub end_of: &'a dyn Fn(&str) -> Option<&'a str>,
}

impl Book {
    /// Takes in what is wrong now; an alert is raised when it has been so for `persist_ms`. What is unknown stays as it was. What people
    /// are to be told.
    pub fn take(&mut self, now: Moment, seen: Seen<'_>, persist_ms: u64) -> Vec<Note> {
        let Seen { found, unknown, end_of } = seen;
        let mut notes = Vec::new();
        let is_over = |code: &str| {
            let is_found = found.iter().any(|condition| condition.code == code);
            !is_found && !unknown.iter().any(|name| is_of(code, name))
        };
        let gone: Vec<String> = self.firing.keys().filter(|code| is_over(code)).cloned().collect();
        for code in gone {
            if let Some(mut alert) = self.firing.remove(&code) {
                alert.resolved = Some(now);
                if let Some(why) = end_of(&code) {
                    alert.text = format!("{} (no longer monitored: {why})", alert.text);
                }
                self.over.push((code.clone(), alert.clone()));
                notes.push(Note { muted: self.muted_until(&code, now).is_some(), code, alert });
            }
        }
        self.pending.retain(|code, _| !is_over(code));
        for Condition { code, text } in found {
            if let Some(alert) = self.firing.get_mut(&code) {
                alert.text = text;
                continue;
            }
            let since = *self.pending.entry(code.clone()).or_insert(now);
            if now.since(since) < persist_ms || self.firing.len() >= FIRING_MAX {
                continue;
            }
            self.pending.remove(&code);
            let alert = Alert { text, since, resolved: None };
            self.firing.insert(code.clone(), alert.clone());
            notes.push(Note { muted: self.muted_until(&code, now).is_some(), code, alert });
        }
        self.over.retain(|(_, alert)| alert.resolved.is_some_and(|at| now.since(at) < OVER_AGE_MS));
        let many = self.over.len().saturating_sub(OVER_MAX);
        self.over.drain(..many);
        self.mutes.retain(|_, until| *until > now);
        notes
    }

    /// Until when nobody is notified of an alert.
    #[must_use]
    pub fn muted_until(&self, code: &str, now: Moment) -> Option<Moment> {
        self.mutes
            .iter()
            .filter(|(name, until)| is_of(code, name) && **until > now)
            .map(|(_, at)| *at)
            .max()
    }
}

/// Whether a code is this one, or begins with it.
pub(super) fn is_of(code: &str, name: &str) -> bool {
    code.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(codes: &[&str]) -> Seen<'static> {
        let condition = |code: &&str| Condition { code: (*code).into(), text: format!("{code}!") };
        let found = codes.iter().map(condition).collect();
        Seen { found, unknown: &[], end_of: &|_| None }
    }

    #[test]
    fn an_alert_that_ends_without_being_mended_says_why() {
        let mut book = Book::default();
        book.take(Moment(0), wrong(&["fill/d", "x"]), 0);
        let end_of = |code: &str| code.starts_with("fill").then_some("/srv was unmounted");
        let over = book.take(Moment(5), Seen { end_of: &end_of, ..wrong(&[]) }, 0);
        let texts: Vec<&str> = over.iter().map(|note| &*note.alert.text).collect();
        assert_eq!(texts, ["fill/d! (no longer monitored: /srv was unmounted)", "x!"]);
        assert_eq!(book.over[0].1.text, texts[0]);
    }

    #[test]
    fn an_alert_is_raised_once_it_persists_and_says_when_it_is_over() {
        let mut book = Book::default();
        assert_eq!(book.take(Moment(0), wrong(&["a", "b"]), 10), []);
        // What was over before is not an alert, and begins anew.
        assert_eq!(book.take(Moment(9), wrong(&["b"]), 10), []);
        let raised = book.take(Moment(10), wrong(&["a", "b"]), 10);
        assert_eq!((raised.len(), &*raised[0].code, raised[0].alert.since), (1, "b", Moment(0)));
        assert_eq!(book.take(Moment(15), wrong(&["a", "b"]), 10), []);
        let over = book.take(Moment(16), wrong(&["a"]), 10);
        assert_eq!((over.len(), over[0].alert.resolved), (1, Some(Moment(16))));
        assert_eq!(book.over.len(), 1);
        book.take(Moment(16 + OVER_AGE_MS), wrong(&[]), 10);
        assert!(book.over.is_empty());
    }

    #[test]
    fn what_nobody_could_say_is_neither_over_nor_new() {
        let mut book = Book::default();
        book.take(Moment(0), wrong(&["copies/x", "a"]), 0);
        book.take(Moment(5), wrong(&["copies/x", "copies/y", "a"]), 10);
        let silent = Seen { unknown: &["copies"], ..wrong(&[]) };
        let over = book.take(Moment(6), silent, 10);
        assert_eq!(over.iter().map(|note| &*note.code).collect::<Vec<_>>(), ["a"]);
        assert!(book.firing.contains_key("copies/x"));
        let raised = book.take(Moment(15), wrong(&["copies/x", "copies/y"]), 10);
        assert_eq!((raised.len(), raised[0].alert.since), (1, Moment(5)), "it has lasted");
        let over = book.take(Moment(16), wrong(&["copies/y"]), 10);
        assert_eq!((over.len(), &*over[0].code), (1, "copies/x"));
    }

    #[test]
    fn a_mute_holds_for_what_it_names_until_its_end() {
        let mut book = Book::default();
        book.mutes.insert("fill".to_owned(), Moment(100));
        assert_eq!(book.muted_until("fill/a", Moment(99)), Some(Moment(100)));
        assert_eq!(book.muted_until("fill/a", Moment(100)), None);
        assert_eq!(book.muted_until("filled", Moment(0)), None);
        let raised = book.take(Moment(5), wrong(&["fill/a", "x"]), 0);
        assert_eq!(raised.iter().map(|note| note.muted).collect::<Vec<_>>(), [true, false]);
    }
}

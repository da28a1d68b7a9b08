//! Notifying people: a webhook, and mail by the machine's own program.
//!
//! One thread sends, so that nothing else waits. Each note is tried [`TRIES`] times; if more than [`WAITING_MAX`] wait, further ones are
//! dropped, which the log says.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::Result;
use forebay_engine::notify::send::{Letter, post};
use serde_json::json;

use super::book::Note;
use super::rules::Rules;
use crate::api::shape::Time;

const WAITING_MAX: usize = 256;
const TRIES: u32 = 3;
/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends notes.
pub struct Sender(Option<SyncSender<Note>>);

impl Sender {
    /// Begins; nothing is sent if nobody is to be reached.
    pub fn start(rules: &Rules, grid: &str) -> Result<Sender> {
        if rules.webhook.is_none() && rules.mail.is_empty() {
            return Ok(Sender(None));
        }
        let (sender, notes) = sync_channel(WAITING_MAX);
        let (rules, grid) = (rules.clone(), grid.to_owned());
        std::thread::Builder::new()
            .name("alerts".to_owned())
            .spawn(move || run(&rules, &grid, &notes))?;
        Ok(Sender(Some(sender)))
    }

    /// Sends a note soon.
    pub fn send(&self, note: Note) {
        if let Some(sender) = &self.0
            && let Err(TrySendError::Full(note) | TrySendError::Disconnected(note)) =
                sender.try_send(note)
        {
            tracing::error!(
                code = note.code,
                "nobody was notified: too many alerts wait to be sent"
            );
        }
    }
}

fn run(rules: &Rules, grid: &str, notes: &Receiver<Note>) {
    for note in notes {
        if let Some(url) = &rules.webhook {
            attempt(&note, "the webhook", || call(url, grid, &note));
        }
        if !rules.mail.is_empty() {
            attempt(&note, &rules.sendmail, || {
                letter(rules, grid, &note).mail(&rules.sendmail, None)
            });
        }
    }
}

fn attempt(note: &Note, way: &str, act: impl Fn() -> Result<()>) {
    for number in 1..=TRIES {
        match act() {
            Ok(()) => return,
            Err(error) if number == TRIES => {
                tracing::error!(code = note.code, "nobody was notified by {way}: {error:#}");
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn state(note: &Note) -> &'static str {
    if note.alert.resolved.is_some() { "resolved" } else { "firing" }
}

fn call(url: &str, grid: &str, note: &Note) -> Result<()> {
    let body = json!({
        "grid": grid,
        "code": note.code,
        "state": state(note),
        "text": note.alert.text,
        "since": Time::from(note.alert.since),
        "resolved": note.alert.resolved.map(Time::from),
    });
    post(url, &body)
}

fn letter(rules: &Rules, grid: &str, note: &Note) -> Letter {
    let over = note.alert.resolved.map(|at| format!("Over:  {}\n", Time::from(at).0));
    Letter {
        to: rules.mail.clone(),
        subject: format!("{}: {}", state(note), note.code),
        text: format!(
            "{}\n\nGrid:  {grid}\nSince: {}\n{}",
            note.alert.text,
            Time::from(note.alert.since).0,
            over.unwrap_or_default(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;

    use forebay_grid::vocabulary::Moment;

    use super::super::book::Alert;
    use super::*;

    fn note(resolved: Option<Moment>) -> Note {
        let alert = Alert { text: "disk data is 95 % full".to_owned(), since: Moment(0), resolved };
        Note { code: "fill/data".to_owned(), alert, muted: false }
    }

    #[test]
    fn a_webhook_is_told_when_an_alert_is_raised() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            while !String::from_utf8_lossy(&request).contains("\"text\"") {
                let length = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            String::from_utf8(request).unwrap()
        });
        let rules = Rules { webhook: Some(url), ..Rules::default() };
        Sender::start(&rules, "/srv/jobs").unwrap().send(note(None));
        let request = served.join().unwrap();
        assert!(request.starts_with("POST /hook "), "{request}");
        assert!(
            request.contains("\"state\":\"firing\"") && request.contains("95 % full"),
            "{request}"
        );
    }

    #[test]
    fn mail_goes_through_the_program_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let (program, letter) = (folder.path().join("sendmail"), folder.path().join("letter"));
        let script = format!("#!/bin/sh\ncat > {}\n", letter.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let rules = Rules {
            mail: vec!["ops@example.com".to_owned()],
            sendmail: program.display().to_string(),
            ..Rules::default()
        };
        let told = super::letter(&rules, "/srv/jobs", &note(Some(Moment(1000))));
        told.mail(&rules.sendmail, None).unwrap();
        let letter = std::fs::read_to_string(letter).unwrap();
        assert!(
            letter.starts_with("To: ops@example.com\nSubject: [forebay] resolved: fill/data\n"),
            "{letter}"
        );
        assert!(letter.contains("Over:  1970-01-01T00:00:01Z"), "{letter}");
    }
}

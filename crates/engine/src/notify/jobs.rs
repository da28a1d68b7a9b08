//! What jobs notify people of: that they have begun, ended or failed.
//!
//! The controller hands a note over and goes on. A few threads send; what fails is tried again twice, after a pause in which
//! others have their turn. At most `notifications_max` notes wait, a quarter of that of one user; further ones are dropped,
//! which the log says. The journal holds of which ends people were told, so the next controller says what this one could not;
//! a note comes twice if the controller is killed after it was sent and before that was written. That a job has begun is lost
//! with the controller, or said twice.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use forebay_grid::account::AttemptRecord;
use forebay_grid::config::General;
use forebay_grid::event::About;
use forebay_grid::notify::{Moments, Notify};
use forebay_grid::spec::Exit;
use forebay_grid::vocabulary::{JobId, Moment, TaskId, UserName};
use serde_json::json;

use super::send::{Letter, post};
use crate::engine::{Engine, JobEnd};
use crate::run::uptime_ms;
use crate::user::account_of;

/// Threads that send.
const THREADS: usize = 4;
/// How often a note is tried.
const TRIES: u32 = 3;
/// Time before the second try; twice as long before the third.
const PAUSE_MS: u64 = 5_000;
/// The part of all notes that one user's may be.
const SHARE_OF_USER: usize = 4;

/// Something to be told.
#[derive(Clone, Debug)]
struct Note {
    user: UserName,
    to: Notify,
    event: &'static str,
    subject: String,
    job: JobId,
    /// When all of it had ended, if this is said of its end.
    ended: Option<Moment>,
    /// What is known of the job, for people and for programs.
    facts: Vec<(&'static str, serde_json::Value)>,
    sendmail: String,
}

struct Waiting {
    due_ms: u64,
    tries: u32,
    note: Note,
}

/// Hears of which end of which job those were told whom it notifies, or that it was tried in vain.
pub(crate) type Told = Box<dyn Fn(JobId, Moment) + Send + Sync>;

struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    changed: Condvar,
    told: Told,
}

/// Sends what jobs notify of.
pub(crate) struct Notifier {
    /// What messages call the grid.
    grid: String,
    queue: Arc<Queue>,
    has_threads: bool,
    /// Jobs of which it was said that they have begun.
    begun: BTreeSet<JobId>,
}

impl Notifier {
    /// One for a grid that messages call by this name. Threads begin with the first note.
    pub fn new(grid: String, told: Told) -> Notifier {
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(Queue { waiting, changed, told });
        Notifier { grid, queue, has_threads: false, begun: BTreeSet::new() }
    }

    /// A task was started on its host.
    pub fn started(&mut self, engine: &dyn Engine, task: TaskId, host: Option<String>) {
        let notify = engine.spec(task.job).and_then(|spec| spec.notify.as_ref());
        if notify.is_none_or(|to| !to.of(Moments::Begin)) || !self.begun.insert(task.job) {
            return;
        }
        let Some(about) = engine.about(task.job) else { return };
        let facts = host.map(|host| ("host", json!(host))).into_iter().collect();
        let begun = ("begin", "has begun".to_owned(), facts);
        self.tell(engine.settings(), (task.job, None), &about, begun);
    }

    /// An attempt ended. A short job is not said to have started before.
    pub fn attempt_ended(&mut self, engine: &dyn Engine, record: &AttemptRecord) {
        let ran = !matches!(record.exit, None | Some(Exit::NotStarted(_)));
        if ran && record.attempt.0 == 1 {
            self.started(engine, record.task, Some(record.host.to_string()));
        }
    }

    /// All of a job has ended, which may be forgotten by now.
    pub fn finished(&mut self, settings: &General, (job, end): (JobId, JobEnd), about: &About) {
        self.begun.remove(&job);
        let Some(to) = &about.spec.notify else { return };
        let failed = end.value != 0;
        if !(to.of(Moments::End) || (failed && to.of(Moments::Fail))) {
            return;
        }
        let how = match end.value {
            0 => "succeeded".to_owned(),
            value => format!("failed with exit code {value}"),
        };
        let facts = vec![("exit_code", json!(end.value)), ("ended", time(end.at))];
        let event = if failed { "fail" } else { "end" };
        self.tell(settings, (job, Some(end.at)), about, (event, how, facts));
    }

    fn tell(
        &mut self,
        settings: &General,
        (job, ended): (JobId, Option<Moment>),
        about: &About,
        (event, how, more): (&'static str, String, Vec<(&'static str, serde_json::Value)>),
    ) {
        let About { user, spec, submitted, host } = about;
        let Some(to) = spec.notify.as_deref().cloned() else { return };
        let name = if spec.name.is_empty() { String::new() } else { format!(" ({})", spec.name) };
        let mut facts = vec![
            ("grid", json!(self.grid)),
            ("job", json!(job)),
            ("name", json!(spec.name)),
            ("user", json!(user)),
            ("event", json!(event)),
            ("tasks", json!(spec.tasks())),
            ("submitted", time(*submitted)),
        ];
        facts.extend(more);
        if spec.array.is_none() && spec.interactive.is_none() {
            let path = spec.output_path(TaskId::only(job), host.as_ref());
            facts.push(("output", json!(path)));
        }
        let note = Note {
            user: user.clone(),
            to,
            event,
            subject: format!("job {job}{name} {how}"),
            job,
            ended,
            facts,
            sendmail: settings.sendmail.clone(),
        };
        let most = usize::try_from(settings.notifications_max).unwrap_or(usize::MAX);
        if let Err(why) = self.add(note, most) {
            tracing::error!(%job, "nobody was notified: {why}");
        }
    }

    fn add(&mut self, note: Note, most: usize) -> Result<(), String> {
        if !self.has_threads {
            self.begin_threads().map_err(|error| format!("no thread can be started: {error}"))?;
        }
        let mut waiting = self.queue.lock();
        let own = waiting.iter().filter(|other| other.note.user == note.user).count();
        if waiting.len() >= most || own >= (most / SHARE_OF_USER).max(1) {
            let why = "too many notifications wait to be sent (notifications_max of this grid)";
            return Err(why.to_owned());
        }
        waiting.push_back(Waiting { due_ms: 0, tries: 0, note });
        self.queue.changed.notify_one();
        Ok(())
    }

    fn begin_threads(&mut self) -> std::io::Result<()> {
        for _ in 0..THREADS {
            let queue = Arc::clone(&self.queue);
            std::thread::Builder::new().name("notices".to_owned()).spawn(move || queue.work())?;
            self.has_threads = true;
        }
        Ok(())
    }
}

fn time(at: Moment) -> serde_json::Value {
    let known = i64::try_from(at.0).ok();
    let time = known.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    json!(time.map(|time| time.to_string()))
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next note that is due; waits for one.
    fn next(&self) -> Waiting {
        let mut waiting = self.lock();
        loop {
            let now_ms = uptime_ms();
            let due = waiting.iter().position(|one| one.due_ms <= now_ms);
            if let Some(next) = due.and_then(|place| waiting.remove(place)) {
                return next;
            }
            let soonest = waiting.iter().map(|one| one.due_ms - now_ms).min();
            let patience = Duration::from_millis(soonest.unwrap_or(60_000));
            let woken = self.changed.wait_timeout(waiting, patience);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn work(&self) {
        loop {
            let Waiting { mut note, tries, .. } = self.next();
            let tries = tries + 1;
            let sent = note.send();
            if sent.is_ok() || tries >= TRIES {
                note.ended.into_iter().for_each(|ended| (self.told)(note.job, ended));
            }
            let Err(error) = sent else { continue };
            if tries < TRIES {
                let due_ms = uptime_ms() + PAUSE_MS * u64::from(tries);
                self.lock().push_back(Waiting { due_ms, tries, note });
                self.changed.notify_one();
            } else {
                let (job, event) = (note.job, note.event);
                tracing::warn!(%job, event, "nobody was notified of a job: {error:#}");
            }
        }
    }
}

impl Note {
    /// Sends it by the ways by which it has not been sent yet.
    fn send(&mut self) -> Result<()> {
        let mut result = Ok(());
        if let Some(url) = &self.to.webhook {
            let body = self.facts.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            match post(url, &serde_json::Value::Object(body.collect())) {
                Ok(()) => self.to.webhook = None,
                Err(error) => result = Err(error.context("the webhook")),
            }
        }
        if !self.to.mail.is_empty() {
            let letter = Letter {
                to: self.to.mail.clone(),
                subject: self.subject.clone(),
                text: self.text(),
            };
            // It is sent by the user, not by whoever runs the controller.
            let sent = account_of(&self.user)
                .and_then(|account| letter.mail(&self.sendmail, Some(&account)));
            match sent {
                Ok(()) => self.to.mail.clear(),
                Err(error) => result = Err(error.context("mail")),
            }
        }
        result
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.subject);
        let known = self.facts.iter().filter(|(_, value)| value.as_str() != Some(""));
        for (key, value) in known {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let value = value.replace(|c: char| c.is_control(), " ");
            text.push_str(&format!("{:<10} {value}\n", format!("{}:", key.replace('_', " "))));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(user: &str) -> Note {
        Note {
            user: user.parse().unwrap(),
            to: Notify::default(),
            event: "end",
            subject: "job 1 succeeded".to_owned(),
            job: JobId(1),
            ended: None,
            facts: vec![("job", json!(1)), ("exit_code", json!(0)), ("name", json!("a\nb"))],
            sendmail: "/nowhere".to_owned(),
        }
    }

    #[test]
    fn one_user_does_not_take_the_place_of_all_others() {
        let mut notifier = Notifier::new("/srv/jobs".to_owned(), Box::new(|_, _| {}));
        // Nobody sends.
        notifier.has_threads = true;
        notifier.add(note("ann"), 8).unwrap();
        notifier.add(note("ann"), 8).unwrap();
        let refused = notifier.add(note("ann"), 8).unwrap_err();
        assert!(refused.contains("notifications_max"), "{refused}");
        for user in ["b", "b", "c", "c", "d", "d"] {
            notifier.add(note(user), 8).unwrap();
        }
        assert!(notifier.add(note("e"), 8).is_err());
    }

    #[test]
    fn the_text_has_a_line_for_each_fact() {
        let text = note("ann").text();
        assert_eq!(text, "job 1 succeeded\n\njob:       1\nexit code: 0\nname:      a b\n");
    }
}

//! Changes of jobs and hosts, for those who follow them.
//!
//! As long as somebody does, a thread lists unfinished jobs and hosts once a second, whoever many follow, and sends what differs from the
//! list before. A connection ends after a quarter of an hour, so that a token that was revoked is noticed. A follower who leaves [`UNREAD_MAX`] events unread is cut off: it connects and reads the lists again. Lists are
//! compared up to [`JOBS_MAX`] lines; if there are more, `lost` says that some changes do not appear.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostView, JobView};
use forebay_grid::vocabulary::{HostName, UserName};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::{Sender, channel};

use crate::api::views::{Host, Job};
use crate::http::Events;

/// The most events that a follower has not read.
pub const UNREAD_MAX: usize = 1024;
/// The most lines that are compared.
pub const JOBS_MAX: u32 = 20_000;
/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a follower hears something, so that a broken connection is noticed.
const BEATS: u32 = 15;
/// The most looks of one connection.
const LOOKS_MAX: u32 = 900;
/// The most jobs of one look whose end is looked up.
const ENDS_MAX: usize = 1000;

struct Follower {
    user: UserName,
    /// Whether jobs of other users are wanted.
    all: bool,
    /// How many looks it has left: it connects again after those, so that a token that was revoked is noticed.
    left: u32,
    sender: Sender<Bytes>,
}

/// Those who follow.
pub struct Feed {
    home: GridHome,
    followers_max: usize,
    followers: Mutex<Vec<Follower>>,
    came: Condvar,
}

#[derive(Default)]
struct Seen {
    jobs: HashMap<String, JobView>,
    hosts: HashMap<HostName, HostView>,
    more: bool,
}

/// Something that changed: whose it is, if it is one user's, and its text.
type Change = (Option<UserName>, Bytes);

impl Feed {
    /// Begins.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(home: &GridHome, followers_max: usize) -> Result<Arc<Feed>> {
        let feed = Arc::new(Feed {
            home: home.clone(),
            followers_max,
            followers: Mutex::default(),
            came: Condvar::new(),
        });
        let thread = Arc::clone(&feed);
        std::thread::Builder::new().name("feed".to_owned()).spawn(move || thread.run())?;
        Ok(feed)
    }

    /// One more follower; none if there are too many.
    #[must_use]
    pub fn subscribe(&self, user: &UserName, all: bool) -> Option<Events> {
        let (sender, events) = channel(UNREAD_MAX);
        let mut followers = self.followers.lock();
        followers.retain(|follower| !follower.sender.is_closed());
        if followers.len() >= self.followers_max {
            return None;
        }
        let _ = sender.try_send(Bytes::from_static(b"event: ready\ndata: {}\n\n"));
        followers.push(Follower { user: user.clone(), all, left: LOOKS_MAX, sender });
        self.came.notify_all();
        Some(events)
    }

    /// How many follow.
    #[must_use]
    pub fn followers(&self) -> usize {
        let mut followers = self.followers.lock();
        followers.retain(|follower| !follower.sender.is_closed());
        followers.len()
    }

    fn run(&self) {
        let (mut seen, mut beats) = (None, 0_u32);
        loop {
            let mut followers = self.followers.lock();
            if followers.is_empty() {
                seen = None;
                self.came.wait(&mut followers);
            }
            drop(followers);
            match self.look() {
                Ok(now) => {
                    if let Some(before) = &seen {
                        self.tell(&self.changes(before, &now));
                    }
                    seen = Some(now);
                }
                // The controller comes again; what changed meanwhile is found then.
                Err(error) => tracing::debug!("the controller: {error:#}"),
            }
            self.age();
            beats += 1;
            if beats.is_multiple_of(BEATS) {
                self.tell(&[(None, Bytes::from_static(b": still here\n\n"))]);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&self) -> Result<Seen> {
        let mut client = Client::connect(&self.home)?;
        let (jobs, total) = client.jobs(None, false, Some(JOBS_MAX))?;
        let hosts = match client.ask(&Ask::Hosts)? {
            Answer::Hosts { hosts, .. } => hosts,
            answer => return Err(forebay_engine::protocol::client::makes_no_sense(&answer)),
        };
        Ok(Seen {
            more: total > jobs.len() as u64,
            jobs: jobs.into_iter().map(|job| (job.id.clone(), job)).collect(),
            hosts: hosts.into_iter().map(|host| (host.name.clone(), host)).collect(),
        })
    }

    fn changes(&self, before: &Seen, now: &Seen) -> Vec<Change> {
        let mut all = Vec::new();
        let gone: Vec<&JobView> =
            before.jobs.values().filter(|job| !now.jobs.contains_key(&job.id)).collect();
        let mut lost = now.more || gone.len() > ENDS_MAX;
        match self.ends(&gone[..gone.len().min(ENDS_MAX)]) {
            Ok(ended) => all.extend(ended),
            Err(_) => lost = true,
        }
        for job in now.jobs.values() {
            // How much was used changes all the time and is not sent for it alone.
            let same = |old: &JobView| {
                (old.state, &old.host, old.attempts, old.tasks, old.started)
                    == (job.state, &job.host, job.attempts, job.tasks, job.started)
            };
            if !before.jobs.get(&job.id).is_some_and(same) {
                all.push(change_of(job.clone()));
            }
        }
        for host in now.hosts.values() {
            let same = |old: &HostView| {
                (old.state, old.switch, old.used_slots, old.slots)
                    == (host.state, host.switch, host.used_slots, host.slots)
            };
            if !before.hosts.get(&host.name).is_some_and(same) {
                all.push((None, event("host", &Host::from(host.clone()))));
            }
        }
        if lost {
            all.push((None, Bytes::from_static(b"event: lost\ndata: {}\n\n")));
        }
        all
    }

    /// What became of jobs that are no longer among the unfinished ones.
    fn ends(&self, gone: &[&JobView]) -> Result<Vec<Change>> {
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        let mut client = Client::connect(&self.home)?;
        let mut all = Vec::new();
        for job in gone {
            let target = job.id.parse().ok().context("a job has a number")?;
            // One that is no longer known is told of as it was last.
            let found = client.jobs(Some(target), true, Some(1)).map(|(jobs, _)| jobs);
            if let Ok([ended]) = found.as_deref() {
                all.push(change_of(ended.clone()));
            }
        }
        Ok(all)
    }

    /// Lets those go who have followed for long enough.
    fn age(&self) {
        self.followers.lock().retain_mut(|follower| {
            follower.left -= 1;
            follower.left > 0
        });
    }

    fn tell(&self, changes: &[Change]) {
        let mut followers = self.followers.lock();
        followers.retain(|follower| {
            changes.iter().all(|(user, text)| {
                let wanted =
                    follower.all || user.as_ref().is_none_or(|user| *user == follower.user);
                !wanted || follower.sender.try_send(text.clone()).is_ok()
            }) && !follower.sender.is_closed()
        });
    }
}

fn change_of(job: JobView) -> Change {
    let user = job.user.clone();
    (Some(user), event("job", &Job::from(job)))
}

fn event(name: &str, value: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(value).unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_hears_of_own_jobs_alone_and_is_cut_off_if_it_reads_nothing() {
        let home = GridHome::of(std::path::Path::new("/")).unwrap();
        let feed =
            Feed { home, followers_max: 2, followers: Mutex::default(), came: Condvar::new() };
        let (ann, bob): (UserName, UserName) = ("ann".parse().unwrap(), "bob".parse().unwrap());
        let mut own = feed.subscribe(&ann, false).unwrap();
        let mut all = feed.subscribe(&bob, true).unwrap();
        assert!(feed.subscribe(&bob, true).is_none(), "there are two already");
        own.try_recv().unwrap();
        all.try_recv().unwrap();
        let of = |user: &UserName| (Some(user.clone()), Bytes::from(user.to_string()));
        feed.tell(&[of(&ann), of(&bob)]);
        assert_eq!(own.try_recv().unwrap(), "ann");
        assert!(own.try_recv().is_err());
        assert_eq!(
            (all.try_recv().unwrap(), all.try_recv().unwrap()),
            ("ann".into(), "bob".into())
        );
        for _ in 0..=UNREAD_MAX {
            feed.tell(&[of(&ann)]);
        }
        assert_eq!(feed.followers.lock().len(), 0);
        let _events = feed.subscribe(&ann, false).unwrap();
        for _ in 0..LOOKS_MAX {
            assert_eq!(feed.followers.lock().len(), 1);
            feed.age();
        }
        assert_eq!(feed.followers.lock().len(), 0, "it has to show its token again");
    }
}

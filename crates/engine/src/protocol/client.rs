//! How commands talk to the controller.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::account::AttemptRecord;
use forebay_grid::flow::{FlowId, FlowSpec};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, Target};
use uuid::Uuid;

use crate::home::GridHome;
use crate::protocol::flow::{FlowAnswer, FlowAsk, FlowView};
use crate::protocol::socket::{self, Reader};
use crate::protocol::{Answer, Ask, Detail, JobView, Page, Refusal, RefusalKind};
use crate::trust;

/// How long a submission is repeated whose answer was lost.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(10);

/// The same on a cluster, where another controller takes over; one may have to be started by hand.
const CLUSTER_PATIENCE: Duration = Duration::from_mins(10);

/// How long after a connection was lost it is made again.
const SUBMIT_PAUSE: Duration = Duration::from_millis(100);

/// What is said of a submission without an answer.
const UNSURE: &str = "it is not known whether the job was accepted: see forebay jobs";

/// As [`UNSURE`], of a flow.
const UNSURE_FLOW: &str = "it is not known whether the flow was accepted: see forebay flow list";

/// A connection to the controller.
pub struct Client {
    home: GridHome,
    stream: UnixStream,
    reader: Reader,
    /// The user for whom is asked, if it is not the one who asks.
    represented: Option<u32>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// If no controller answers, or one of somebody else than root and this user: its answers name files to read
    /// and sockets to serve.
    pub fn connect(home: &GridHome) -> Result<Client> {
        let stream = socket::connect(&home.socket()).with_context(|| {
            let folder = home.folder().display();
            format!("the controller of {folder} does not answer; is the grid up?")
        })?;
        trust::check_peer(&stream)
            .with_context(|| format!("the controller of {}", home.folder().display()))?;
        let reader = Reader::of_answers(stream.try_clone()?);
        Ok(Client { home: home.clone(), stream, reader, represented: None })
    }

    /// Connects to ask for another user, by number. Only root and the user whose grid it is may do so.
    ///
    /// # Errors
    /// As [`Client::connect`], and if the controller refuses.
    pub fn connect_for(home: &GridHome, uid: u32) -> Result<Client> {
        let mut client = Client::connect(home)?;
        client.represented = Some(uid);
        match client.exchange(&Ask::For { uid })? {
            Answer::Here => Ok(client),
            Answer::Refused(refusal) => Err(refusal.into()),
            answer => Err(makes_no_sense(&answer)),
        }
    }

    /// Connects once more, for the same user.
    fn again(&self) -> Result<Client> {
        match self.represented {
            Some(uid) => Client::connect_for(&self.home, uid),
            None => Client::connect(&self.home),
        }
    }

    /// Whether the grid is one of a cluster, where another controller may take over.
    fn is_of_cluster(&self) -> bool {
        self.home.cluster().exists()
    }

    /// Asks and waits for the answer. What only looks is asked again if another controller of a cluster takes over meanwhile.
    ///
    /// # Errors
    /// If the controller went away or has too many connections, or refused: [`Refusal`] with its reason.
    pub fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        let mut answer = self.exchange(ask);
        if answer.is_err() && ask.only_looks() && self.is_of_cluster() {
            // The controller that led may be gone; the relay waits for the next one.
            *self = self.again()?;
            answer = self.exchange(ask);
        }
        match answer? {
            Answer::Refused(refusal) => Err(refusal.into()),
            answer => Ok(answer),
        }
    }

    /// Submits a job. If the connection is lost before the answer came, or no controller of a cluster leads, it is asked again
    /// for ten seconds (on a cluster ten minutes), with the same key, so that the job is not taken twice.
    ///
    /// # Errors
    /// As [`Client::ask`], once that time is over.
    pub fn submit(&mut self, spec: JobSpec) -> Result<JobId> {
        let mut taken = None;
        self.submit_all(vec![spec], |_, answer| {
            taken = Some(match answer {
                Answer::Accepted { job } => job,
                Answer::Refused(refusal) => return Err(refusal.into()),
                answer => return Err(makes_no_sense(&answer)),
            });
            Ok(())
        })?;
        taken.context("the controller gave no answer")
    }

    /// Submits jobs as [`Client::submit`] does, together, and calls `each` with every answer in the same order; it may be a
    /// refusal.
    ///
    /// # Errors
    /// As [`Client::ask_all`], once that time has passed without an answer.
    pub fn submit_all(
        &mut self,
        specs: Vec<JobSpec>,
        each: impl FnMut(usize, Answer) -> Result<()>,
    ) -> Result<()> {
        let keyed = |spec| Ask::Submit { spec: Box::new(spec), key: Some(Uuid::new_v4()) };
        let asks: Vec<Ask> = specs.into_iter().map(keyed).collect();
        self.ask_until_answered(&asks, UNSURE, each)
    }

    /// Starts a flow. It is asked again as in [`Client::submit`], so that it is not started twice.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn run_flow(&mut self, spec: Box<FlowSpec>) -> Result<FlowId> {
        let ask = Ask::Flow { flow: FlowAsk::Run { spec, key: Some(Uuid::new_v4()) } };
        let mut begun = None;
        self.ask_until_answered(&[ask], UNSURE_FLOW, |_, answer| {
            begun = Some(match answer {
                Answer::Flow { flow: FlowAnswer::Accepted(flow) } => flow,
                Answer::Refused(refusal) => return Err(refusal.into()),
                answer => return Err(makes_no_sense(&answer)),
            });
            Ok(())
        })?;
        begun.context("the controller gave no answer")
    }

    /// Asks what has a key, again where answers were lost, and calls `each` with every answer in the same order. `unsure` is
    /// said where none came.
    fn ask_until_answered(
        &mut self,
        asks: &[Ask],
        unsure: &'static str,
        mut each: impl FnMut(usize, Answer) -> Result<()>,
    ) -> Result<()> {
        let (mut answered, mut is_refused) = (0, false);
        let mut heard = SystemClock.instant();
        let patience = if self.is_of_cluster() { CLUSTER_PATIENCE } else { SUBMIT_PATIENCE };
        loop {
            let from = answered;
            let asked = self.ask_all(&asks[from..], |place, answer| {
                (answered, heard) = (from + place + 1, SystemClock.instant());
                each(from + place, answer).inspect_err(|_| is_refused = true)
            });
            let Err(error) = asked else { return Ok(()) };
            if is_refused {
                return Err(error);
            }
            if SystemClock.instant() - heard > patience {
                return Err(error.context(unsure));
            }
            std::thread::sleep(SUBMIT_PAUSE);
            // While there is none, the questions above fail at once.
            if let Ok(client) = self.again() {
                *self = client;
            }
        }
    }

    /// Whether a controller answers. One that has just been killed may still be connected to, but says nothing.
    #[must_use]
    pub fn is_answered(home: &GridHome) -> bool {
        Client::connect(home).and_then(|mut client| client.ask(&Ask::Ping)).is_ok()
    }

    /// A list of jobs, page by page, of at most so many lines; and how many there are in all.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn jobs(
        &mut self,
        target: Option<Target>,
        ended: bool,
        most: Option<u32>,
    ) -> Result<(Vec<JobView>, u64)> {
        self.jobs_in(Detail::Line, target, ended, most)
    }

    /// The latest `most` lines of all jobs, the oldest first, and how many lines there are.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn latest_jobs(&mut self, ended: bool, most: u32) -> Result<(Vec<JobView>, u64)> {
        let page = Page { latest: Some(most), ..Page::default() };
        self.pages(page, None, ended, most as usize)
    }

    /// As [`Client::jobs`], with so much of each job.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn jobs_in(
        &mut self,
        detail: Detail,
        target: Option<Target>,
        ended: bool,
        most: Option<u32>,
    ) -> Result<(Vec<JobView>, u64)> {
        let most = most.map_or(usize::MAX, |most| most as usize);
        self.pages(Page { detail, ..Page::default() }, target, ended, most)
    }

    fn pages(
        &mut self,
        mut page: Page,
        target: Option<Target>,
        ended: bool,
        most: usize,
    ) -> Result<(Vec<JobView>, u64)> {
        let (mut lines, mut lines_in_all) = (Vec::new(), 0);
        loop {
            page.most = u32::try_from(most - lines.len()).ok();
            match self.ask(&Ask::Jobs { target, ended, page })? {
                Answer::Jobs { jobs, next, total } => {
                    lines.extend(jobs);
                    page.from = next;
                    lines_in_all = total.unwrap_or(lines_in_all);
                }
                answer => return Err(makes_no_sense(&answer)),
            }
            if page.from.is_none() || lines.len() >= most {
                lines.truncate(most);
                return Ok((lines, lines_in_all));
            }
        }
    }

    /// All pages of the runs of flows.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn flows(&mut self, ended: bool) -> Result<Vec<FlowView>> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            match self.ask(&Ask::Flow { flow: FlowAsk::List { ended, from } })? {
                Answer::Flow { flow: FlowAnswer::Listed { flows, next } } => {
                    all.extend(flows);
                    from = next;
                }
                answer => return Err(makes_no_sense(&answer)),
            }
            if from.is_none() {
                return Ok(all);
            }
        }
    }

    /// All pages of the history of a job or of one element.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn history(&mut self, target: Target) -> Result<Vec<AttemptRecord>> {
        let mut all = Vec::new();
        let mut from = None;
        loop {
            match self.ask(&Ask::History { target, from })? {
                Answer::History { attempts, next } => {
                    all.extend(attempts);
                    from = next;
                }
                answer => return Err(makes_no_sense(&answer)),
            }
            if from.is_none() {
                return Ok(all);
            }
        }
    }

    /// The last attempt that ended of each task of a job or of one element, as far as the history knows it: of jobs that the controller has
    /// forgotten as well. Nothing if nobody knows the job, or nothing of it was ever started.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn last_attempts(&mut self, target: Target) -> Result<Vec<AttemptRecord>> {
        let attempts = match self.history(target) {
            Err(error) if is_no_job(&error) => return Ok(Vec::new()),
            attempts => attempts?,
        };
        // In the order of element and attempt.
        let mut last: Vec<AttemptRecord> = Vec::new();
        for attempt in attempts {
            match last.last_mut().filter(|before| before.task == attempt.task) {
                Some(before) => *before = attempt,
                None => last.push(attempt),
            }
        }
        Ok(last)
    }

    /// As [`Client::ask`], but a refusal is an answer.
    ///
    /// # Errors
    /// If the controller went away or has too many connections: there may be no answer any more.
    pub fn exchange(&mut self, ask: &Ask) -> Result<Answer> {
        let sent = socket::write(&self.stream, ask);
        // Who serves nobody here may have said so, and closed, before it was asked.
        match self.reader.read() {
            Ok(Some(said)) => heard(said),
            nothing => {
                sent?;
                heard(nothing?.context(DISCONNECTED)?)
            }
        }
    }

    /// A connection on which jobs are watched: one end asks, the other hears, each in a thread of its own.
    #[must_use]
    pub fn into_watch(self) -> (Watching, Notices) {
        (Watching { stream: self.stream }, Notices { reader: self.reader })
    }

    /// The connection itself, for a peer that is no command.
    #[must_use]
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Asks many things without waiting in between, and calls `each` with every answer in the same order;
    /// it may be a refusal.
    ///
    /// # Errors
    /// If the controller went away, or what `each` says: then the connection is of no more use.
    pub fn ask_all(
        &mut self,
        asks: &[Ask],
        mut each: impl FnMut(usize, Answer) -> Result<()>,
    ) -> Result<()> {
        let Client { stream, reader, .. } = self;
        // Written by a thread of its own, so that neither side waits for the other to read.
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| socket::write_all(stream, asks));
            let answered = (0..asks.len()).try_for_each(|place| each(place, answer(reader)?));
            if answered.is_err() {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
            let sent = sent.join().expect("writing does not panic");
            answered.and(sent)
        })
    }
}

/// The end of a connection that asks for jobs to be watched. When it is dropped the connection ends.
pub struct Watching {
    stream: UnixStream,
}

impl Watching {
    /// Asks for all that happens to a job, from how it is now until it has ended.
    ///
    /// # Errors
    /// If the controller went away.
    pub fn watch(&self, job: JobId) -> Result<()> {
        socket::write(&self.stream, &Ask::Watch { job })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The end that hears shall notice.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// The end of a connection that hears what happens to jobs.
pub struct Notices {
    reader: Reader,
}

impl Notices {
    /// The next answer, mostly [`Answer::Noticed`]; none at the end of the connection.
    pub fn hear(&mut self) -> Option<Answer> {
        self.reader.read().ok().flatten()
    }
}

/// Whether something was refused because there is no such job for the asker, or it is no longer known.
#[must_use]
pub fn is_no_job(error: &anyhow::Error) -> bool {
    let refusal = error.downcast_ref::<Refusal>();
    refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoJob)
}

/// An answer that does not fit the question.
#[must_use]
pub fn makes_no_sense(answer: &Answer) -> anyhow::Error {
    anyhow::anyhow!("unexpected answer from the controller; is it a different version? {answer:?}")
}

/// Why there is no answer.
const DISCONNECTED: &str = "the controller disconnected before it answered";

fn answer(reader: &mut Reader) -> Result<Answer> {
    heard(reader.read()?.context(DISCONNECTED)?)
}

fn heard(said: Answer) -> Result<Answer> {
    match said {
        // Not heard, so not refused: as if it were away.
        Answer::Busy { reason } => bail!(reason),
        Answer::Refused(refusal) => Ok(Answer::Refused(refusal.explained())),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client, and the end of its controller.
    fn connected() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reader = Reader::of_answers(ours.try_clone().unwrap());
        let home = GridHome::of(std::path::Path::new("/")).unwrap();
        (Client { home, stream: ours, reader, represented: None }, theirs)
    }

    #[test]
    fn too_many_connections_are_no_refusal_of_what_was_asked() {
        let (mut client, theirs) = connected();
        let reason = "256 connections are open".to_owned();
        socket::write(&theirs, &Answer::Busy { reason: reason.clone() }).unwrap();
        socket::write(&theirs, &Answer::refused(RefusalKind::NotAllowed, "it is closed")).unwrap();
        let busy = client.ask(&Ask::Ping).unwrap_err();
        assert_eq!((busy.is::<Refusal>(), busy.to_string()), (false, reason));
        assert!(client.ask(&Ask::Ping).unwrap_err().is::<Refusal>());
    }

    #[test]
    fn what_was_said_before_the_question_could_be_asked_is_heard() {
        let (mut client, theirs) = connected();
        let reason = "this node was removed".to_owned();
        socket::write(&theirs, &Answer::Busy { reason: reason.clone() }).unwrap();
        drop(theirs);
        assert_eq!(client.ask(&Ask::Ping).unwrap_err().to_string(), reason);
        assert!(client.ask(&Ask::Ping).is_err());
    }
}

//! What is submitted, from the texts of a request.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use forebay_engine::shim::VARIABLES;
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::flow::FlowSpec;
use forebay_grid::flow::file::Surroundings;
use forebay_grid::notify::{Moments, Notify};
use forebay_grid::parse::array::name_and_array;
use forebay_grid::parse::memory::Memory;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Checkpoint, JobSpec, Rerun, Sharing};
use forebay_grid::vocabulary::{Moment, UserName};
use forebay_process::user::Account;

use super::views::{NewFlow, NewJob, NewReservation};
use crate::problem::Problem;

/// The file mode creation mask where none is given.
const UMASK: u32 = 0o022;

/// Reads a text of the request by the rules of the command line.
pub(super) fn read<T: FromStr>(field: &str, text: Option<String>) -> Result<Option<T>, Problem>
where
    T::Err: Display,
{
    text.map(|text| one(field, &text)).transpose()
}

/// Reads a text that has to be there.
pub(super) fn one<T: FromStr>(field: &str, text: &str) -> Result<T, Problem>
where
    T::Err: Display,
{
    text.parse().map_err(|error| Problem::invalid(format!("{field} = \"{text}\": {error}")))
}

/// Reads a point in time as RFC 3339 writes it.
pub(super) fn moment(field: &str, text: Option<String>) -> Result<Option<Moment>, Problem> {
    let read = |text: String| {
        let at = text.parse::<jiff::Timestamp>().ok();
        let at = at.and_then(|at| u64::try_from(at.as_millisecond()).ok()).map(Moment);
        at.ok_or_else(|| {
            Problem::invalid(format!(
                "{field} = \"{text}\": give a date and time with a zone, such as 2027-01-31T18:00:00Z"
            ))
        })
    };
    text.map(read).transpose()
}

/// The variables that a job gets: those of a log-in, and those that are given.
fn environment(
    (user, account): (&UserName, &Account),
    given: Option<BTreeMap<String, String>>,
) -> Result<Vec<(String, String)>, Problem> {
    let own = [
        ("HOME", account.home.clone()),
        ("USER", user.to_string()),
        ("LOGNAME", user.to_string()),
        ("SHELL", "/bin/sh".to_owned()),
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
    ];
    let mut all: BTreeMap<String, String> =
        own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    for (key, value) in given.unwrap_or_default() {
        if VARIABLES.contains(&key.as_str()) {
            let reason = format!("environment: {key} is set by the grid and cannot be changed");
            return Err(Problem::invalid(reason));
        }
        all.insert(key, value);
    }
    Ok(all.into_iter().collect())
}

/// Whom the job of a user notifies: that user, if no address is given.
fn notify(
    user: &UserName,
    (on, mail, webhook): (Option<Vec<String>>, Option<Vec<String>>, Option<String>),
) -> Result<Option<Box<Notify>>, Problem> {
    let on = on.unwrap_or_default().iter().map(|text| one("notify", text)).collect();
    let on: Result<Vec<Moments>, Problem> = on;
    Ok(Notify::asked(on?, mail.unwrap_or_default(), webhook, || user.to_string()))
}

fn directory(account: &Account, given: Option<String>) -> Result<String, Problem> {
    match given {
        None => Ok(account.home.clone()),
        Some(path) if path.starts_with('/') => Ok(path),
        Some(path) => {
            Err(Problem::invalid(format!("directory = \"{path}\": give an absolute path")))
        }
    }
}

impl NewJob {
    /// The job of a user.
    ///
    /// # Errors
    /// The first field that cannot be read.
    pub fn into_spec(self, user: &UserName, account: &Account) -> Result<JobSpec, Problem> {
        let name = self.name.unwrap_or_default();
        let (name, array) = name_and_array(&name)
            .map_err(|error| Problem::invalid(format!("name = \"{name}\": {error}")))?;
        let octal = |text: &String| u32::from_str_radix(text, 8).ok().filter(|mask| *mask <= 0o777);
        let umask = match &self.umask {
            None => UMASK,
            Some(text) => octal(text).ok_or_else(|| {
                Problem::invalid(format!("umask = \"{text}\": give an octal number such as 022"))
            })?,
        };
        let yes = |given: Option<bool>| given == Some(true);
        Ok(JobSpec {
            name: name.to_owned(),
            array,
            command: self.command,
            script: self.script,
            queue: read("queue", self.queue)?,
            slots: self.slots.unwrap_or(1),
            hosts: read("hosts", self.hosts)?.unwrap_or_default(),
            memory: read("memory", self.memory)?.map(|Memory(bytes)| bytes),
            depends: read("depends", self.depends)?,
            priority: self.priority.unwrap_or(0),
            project: self.project.unwrap_or_default(),
            time_limit: read("time_limit", self.time_limit)?,
            environment: environment((user, account), self.environment)?.into(),
            directory: directory(account, self.directory)?,
            umask,
            output: self.output,
            error: self.error,
            rerun: if yes(self.rerunnable) { Rerun::Rerunnable } else { Rerun::AsQueue },
            requeue_exits: read("requeue_exit", self.requeue_exit)?.unwrap_or_default(),
            checkpoint: if yes(self.checkpoint) { Checkpoint::Steps } else { Checkpoint::None },
            held: yes(self.hold),
            reservation: read("reservation", self.reservation)?,
            group: read("group", self.group)?,
            resources: read("resources", self.resources)?.unwrap_or_default(),
            sharing: if yes(self.exclusive) { Sharing::Exclusive } else { Sharing::Shared },
            begin: moment("begin", self.begin)?,
            deadline: moment("deadline", self.deadline)?,
            warning: read("warning", self.warning)?,
            features: read("features", self.features)?,
            on_never: read("dependency_never", self.dependency_never)?,
            pre: self.pre,
            post: self.post,
            profile: read("profile", self.profile)?,
            io_heavy: yes(self.io_heavy),
            notify: notify(user, (self.notify, self.mail, self.webhook))?,
            ..JobSpec::default()
        })
    }
}

impl NewReservation {
    /// The reservation; what starts now starts at `now`.
    ///
    /// # Errors
    /// The first field that cannot be read, or if its end is missing or given twice.
    pub fn into_reservation(self, now: Moment) -> Result<AdvanceReservation, Problem> {
        let start = moment("start", self.start)?.unwrap_or(now);
        let lasts: Option<Period> = read("duration", self.duration)?;
        let end = match (moment("end", self.end)?, lasts) {
            (Some(end), None) => end,
            (None, Some(lasts)) => start.after(lasts.as_ms()),
            (Some(_), Some(_)) | (None, None) => {
                return Err(Problem::invalid("give either end or duration of the reservation"));
            }
        };
        Ok(AdvanceReservation {
            name: one("name", &self.name)?,
            users: self
                .users
                .into_iter()
                .map(|user| one("users", &user))
                .collect::<Result<_, _>>()?,
            hosts: self
                .hosts
                .into_iter()
                .map(|host| one("hosts", &host))
                .collect::<Result<_, _>>()?,
            slots: self.slots,
            start,
            end,
        })
    }
}

impl NewFlow {
    /// The flow of a user.
    ///
    /// # Errors
    /// The first fault in its file, with its line.
    pub fn into_spec(self, user: &UserName, account: &Account) -> Result<FlowSpec, Problem> {
        let around = Surroundings {
            directory: directory(account, self.directory)?,
            umask: UMASK,
            environment: environment((user, account), self.environment)?,
        };
        FlowSpec::read(&self.file, &around)
            .map_err(|error| Problem::invalid(format!("file: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<JobSpec, Problem> {
        let account = Account { uid: 7, gid: 7, groups: vec![7], home: "/h/ann".to_owned() };
        let job: NewJob = serde_json::from_str(text).unwrap();
        job.into_spec(&"ann".parse().unwrap(), &account)
    }

    #[test]
    fn a_job_of_a_request_is_read_as_the_command_line_reads_it() {
        let job = spec(
            r#"{"command":["true"],"name":"load[1-3]%2","memory":"2G","time_limit":"90 s","umask":"077",
                "environment":{"A":"1","PATH":"/x"},"checkpoint":true}"#,
        )
        .unwrap();
        assert_eq!((job.name.as_str(), job.tasks()), ("load", 3));
        assert_eq!((job.memory_bytes(), job.umask, job.slots), (2 << 30, 0o077, 1));
        assert_eq!((job.directory.as_str(), job.checkpoint), ("/h/ann", Checkpoint::Steps));
        let variable =
            |name: &str| job.environment.iter().find(|(key, _)| key == name).unwrap().1.clone();
        assert_eq!(
            (variable("A"), variable("PATH"), variable("USER")),
            ("1".into(), "/x".into(), "ann".into())
        );
    }

    #[test]
    fn a_job_notifies_its_user_unless_an_address_is_given() {
        let notify = |text: &str| spec(text).unwrap().notify.map(|notify| *notify);
        assert_eq!(notify(r#"{"command":["a"]}"#), None);
        let own = notify(r#"{"command":["a"],"notify":["begin","fail"]}"#).unwrap();
        assert_eq!((own.on, own.mail), (vec![Moments::Begin, Moments::Fail], vec!["ann".into()]));
        let hook = notify(r#"{"command":["a"],"webhook":"http://h/x"}"#).unwrap();
        assert_eq!((hook.on, hook.mail), (vec![Moments::End], Vec::<String>::new()));
    }

    #[test]
    fn a_field_that_cannot_be_read_is_named() {
        for (text, named) in [
            (r#"{"command":["a"],"memory":"much"}"#, "memory = \"much\""),
            (r#"{"command":["a"],"time_limit":"soon"}"#, "time_limit = \"soon\""),
            (r#"{"command":["a"],"umask":"999"}"#, "umask = \"999\""),
            (r#"{"command":["a"],"directory":"x"}"#, "directory = \"x\""),
            (r#"{"command":["a"],"reservation":"a b"}"#, "reservation = \"a b\""),
            (r#"{"command":["a"],"group":"risk"}"#, "group = \"risk\""),
            (r#"{"command":["a"],"warning":"KILL"}"#, "warning = \"KILL\""),
            (r#"{"command":["a"],"features":"a &&"}"#, "features = \"a &&\""),
            (r#"{"command":["a"],"begin":"noon"}"#, "begin = \"noon\""),
            (r#"{"command":["a"],"profile":"a b"}"#, "profile = \"a b\""),
            (r#"{"command":["a"],"notify":["noon"]}"#, "notify = \"noon\""),
            (r#"{"command":["a"],"dependency_never":"wait"}"#, "dependency_never = \"wait\""),
            (r#"{"command":["a"],"environment":{"FOREBAY_JOB":"1"}}"#, "FOREBAY_JOB"),
        ] {
            let problem = spec(text).unwrap_err();
            assert!(problem.detail.contains(named), "{}", problem.detail);
            assert_eq!(problem.status, 422);
        }
    }

    #[test]
    fn a_reservation_has_one_end() {
        let read = |rest: &str| {
            let text = format!(r#"{{"name":"r","users":["ann"],"hosts":["h1"]{rest}}}"#);
            serde_json::from_str::<NewReservation>(&text).unwrap().into_reservation(Moment(1000))
        };
        let lasts = read(r#","duration":"2 h""#).unwrap();
        assert_eq!((lasts.start, lasts.end), (Moment(1000), Moment(7_201_000)));
        let from = read(r#","start":"1970-01-01T00:00:02Z","end":"1970-01-01T00:00:03Z""#).unwrap();
        assert_eq!((from.start, from.end), (Moment(2000), Moment(3000)));
        for rest in ["", r#","end":"1970-01-01T00:00:03Z","duration":"2 h""#, r#","end":"noon""#] {
            assert_eq!(read(rest).unwrap_err().status, 422, "{rest}");
        }
    }
}

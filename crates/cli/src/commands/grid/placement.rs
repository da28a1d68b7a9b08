//! Options that `forebay submit` and `forebay run` share: where and when a job runs, and with which
//! environment.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::inputs::inputs;
use forebay_grid::config::OnNever;
use forebay_grid::dialect::Dialect;
use forebay_grid::group::JobGroup;
use forebay_grid::parse::array::name_and_array;
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::parse::features::Features;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::parse::memory::Memory;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::resources::Resources;
use forebay_grid::spec::{JobSpec, Sharing};
use forebay_grid::vocabulary::{Moment, QueueName, ReservationName};
use forebay_grid::warning::Warning;

use super::clock;

/// Where and when a job runs, and with which environment.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Placement {
    /// Queue [default: the first queue, or the setting queue_default].
    #[arg(short, long, value_parser = |text: &str| text.parse::<QueueName>())]
    queue: Option<QueueName>,
    /// Number of slots, all on one host [default: 1].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: Option<u32>,
    /// Hosts on which it may run, with preferences, such as 'gridn1+1 others+2'.
    #[arg(short = 'm', long, value_parser = |text: &str| text.parse::<HostList>())]
    hosts: Option<HostList>,
    /// Memory to reserve for the job, and its limit on hosts that enforce it (see `forebay hosts`): a number of MiB, as in
    /// Slurm, or 4G, 512M (powers of 1024), '8 GiB', '8 GB'.
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| text.parse::<Memory>())]
    mem: Option<Memory>,
    /// Name of the job; 'load[1-100]%10' makes an array of 100 elements, ten at a time.
    #[arg(short = 'J', long)]
    name: Option<String>,
    /// Condition under which the job may start, such as 'done(12) && ended(load*)'. 'done(12[*])': each element waits for
    /// the element of array 12 with the same index. 'started(12, 5 min)': 5 minutes after job 12 started. 'singleton()':
    /// one job with this name at a time.
    #[arg(short = 'w', long, value_name = "CONDITION", value_parser = |text: &str| text.parse::<Dependency>())]
    depends: Option<Dependency>,
    /// What to do with the job when --depends can no longer become true: end it without starting it (exit code 127),
    /// or keep it waiting [default: the grid's setting dependency_never, which is end].
    #[arg(long, value_name = "end|keep", value_parser = |text: &str| text.parse::<OnNever>())]
    dependency_never: Option<OnNever>,
    /// Priority among your own jobs, higher first [default: 0].
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i32>,
    /// Project to charge the job to in `forebay usage`.
    #[arg(short = 'P', long)]
    project: Option<String>,
    /// Time limit: '90 s', '2 h', '1:30:00', or a number of minutes.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| text.parse::<Period>())]
    time_limit: Option<Period>,
    /// Start the job at this time at the earliest: 18:00 (the next time it is that late), 2027-01-31T18:00, or '+2 h'.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = clock::read)]
    begin: Option<Moment>,
    /// End the job at this time, whether it runs or still waits; written as for --begin.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = clock::read)]
    deadline: Option<Moment>,
    /// Counted resources of the grid that the job needs, such as gpu:2,sas:1 (see forebay resources).
    #[arg(long, value_name = "LIST", value_parser = |text: &str| text.parse::<Resources>())]
    resource: Option<Resources>,
    /// Run no other job on its host while it runs.
    #[arg(short = 'x', long)]
    exclusive: bool,
    /// Run in this advance reservation of the grid (see forebay reservation).
    #[arg(long, value_name = "NAME", value_parser = |text: &str| text.parse::<ReservationName>())]
    reservation: Option<ReservationName>,
    /// Put the job into this job group of yours, such as /risk/daily; groups lie in each other like directories (see forebay
    /// group).
    #[arg(long, value_name = "PATH", value_parser = |text: &str| text.parse::<JobGroup>())]
    group: Option<JobGroup>,
    /// Send the job a signal before it is ended for its time limit or its deadline, so that it can save what it has:
    /// 'USR1@5min' to all of its processes, 'program:TERM@90 s' to its program alone, 'steps:INT' to what srun has
    /// started; a minute before if the time is omitted.
    #[arg(long, value_name = "SIGNAL[@TIME]", value_parser = |text: &str| text.parse::<Warning>())]
    warn: Option<Warning>,
    /// Features that its host must have, such as ssd or 'avx512 && !slow' (`forebay hosts` lists them).
    #[arg(long, value_name = "FEATURES", value_parser = |text: &str| text.parse::<Features>())]
    feature: Option<Features>,
    /// File or directory that the job reads; may be repeated. Of hosts that are wanted alike, the job prefers the one that is the home
    /// of most of them: in a cluster the node that owns their fileset, or has them in its native scratch.
    #[arg(long, value_name = "PATH")]
    input: Vec<PathBuf>,
    /// Which of your environment variables the job inherits: ALL, NONE, or a list such as 'A,B=value';
    /// 'ALL,B=value' adds to all [default: ALL].
    #[arg(long, value_name = "LIST", value_parser = Export::read)]
    export: Option<Export>,
    /// Environment variable for the job: K=V, or K for its current value; may be repeated.
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
}

/// Which variables a job gets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Export {
    scope: Scope,
    /// As `--env` has them.
    more: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Listed,
}

impl Export {
    fn read(text: &str) -> Result<Export, String> {
        if text == "NONE" {
            return Ok(Export { scope: Scope::Listed, more: Vec::new() });
        }
        let mut export = Export { scope: Scope::Listed, more: Vec::new() };
        for part in text.split(',') {
            match part {
                "ALL" => export.scope = Scope::All,
                "NONE" => return Err("NONE cannot be combined with anything".to_owned()),
                part if part.is_empty() || part.starts_with('=') => {
                    return Err(
                        "expected ALL, NONE, or names and K=V separated by commas".to_owned()
                    );
                }
                part => export.more.push(part.to_owned()),
            }
        }
        Ok(export)
    }
}

impl Placement {
    /// These options, and those of `other` for what they leave open.
    pub fn over(self, other: Placement) -> Placement {
        Placement {
            queue: self.queue.or(other.queue),
            slots: self.slots.or(other.slots),
            hosts: self.hosts.or(other.hosts),
            mem: self.mem.or(other.mem),
            name: self.name.or(other.name),
            depends: self.depends.or(other.depends),
            dependency_never: self.dependency_never.or(other.dependency_never),
            priority: self.priority.or(other.priority),
            project: self.project.or(other.project),
            time_limit: self.time_limit.or(other.time_limit),
            begin: self.begin.or(other.begin),
            deadline: self.deadline.or(other.deadline),
            resource: self.resource.or(other.resource),
            exclusive: self.exclusive || other.exclusive,
            reservation: self.reservation.or(other.reservation),
            group: self.group.or(other.group),
            warn: self.warn.or(other.warn),
            feature: self.feature.or(other.feature),
            input: if self.input.is_empty() { other.input } else { self.input },
            export: self.export.or(other.export),
            // A later variable of one name wins.
            env: [other.env, self.env].concat(),
        }
    }

    /// A job that runs `command` in the current directory.
    pub fn into_spec(self, command: Vec<String>) -> Result<JobSpec> {
        let directory = std::env::current_dir().context("cannot find the current directory")?;
        let directory =
            directory.to_str().context("the current directory's path is not UTF-8")?.to_owned();
        let environment = self.environment()?.into();
        let base = JobSpec { command, slots: 1, environment, directory, ..JobSpec::default() };
        self.onto(JobSpec { umask: umask(), ..base })
    }

    /// A job that is described already, with these options over what it says.
    pub fn onto(self, base: JobSpec) -> Result<JobSpec> {
        let environment = match (&self.export, &self.env[..]) {
            (None, []) => base.environment,
            _ => self.environment()?.into(),
        };
        let (name, array, dialect) = match &self.name {
            None => (base.name, base.array, base.dialect),
            Some(name) => {
                let (name, array) = name_and_array(name)?;
                // The indices are those of this notation.
                let dialect = base.dialect.map(|of| Dialect { index_shift: 0, ..of });
                (name.to_owned(), array, dialect)
            }
        };
        Ok(JobSpec {
            name,
            array,
            dialect,
            queue: self.queue.or(base.queue),
            slots: self.slots.unwrap_or(base.slots),
            hosts: self.hosts.unwrap_or(base.hosts),
            memory: self.mem.map(|Memory(bytes)| bytes).or(base.memory),
            depends: self.depends.or(base.depends),
            on_never: self.dependency_never.or(base.on_never),
            priority: self.priority.unwrap_or(base.priority),
            project: self.project.unwrap_or(base.project),
            time_limit: self.time_limit.or(base.time_limit),
            begin: self.begin.or(base.begin),
            deadline: self.deadline.or(base.deadline),
            resources: self.resource.unwrap_or(base.resources),
            sharing: if self.exclusive { Sharing::Exclusive } else { base.sharing },
            reservation: self.reservation.or(base.reservation),
            group: self.group.or(base.group),
            warning: self.warn.or(base.warning),
            features: self.feature.or(base.features),
            inputs: if self.input.is_empty() { base.inputs } else { inputs(&self.input)? },
            environment,
            ..base
        })
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let (scope, listed) = match &self.export {
            None => (Scope::All, &[][..]),
            Some(export) => (export.scope, &export.more[..]),
        };
        let mut variables = std::collections::BTreeMap::new();
        if scope == Scope::All {
            for (key, value) in std::env::vars_os() {
                match (key.into_string(), value.into_string()) {
                    (Ok(key), Ok(value)) => drop(variables.insert(key, value)),
                    (Ok(key), Err(_)) => {
                        note!("forebay: {key} is not UTF-8: the job does not inherit it");
                    }
                    (Err(_), _) => {}
                }
            }
            // What the grid sets itself, for another job if this is one.
            variables.retain(|key, _| !forebay_engine::shim::VARIABLES.contains(&key.as_str()));
        }
        let given = listed.iter().map(|text| ("--export", text));
        for (option, text) in given.chain(self.env.iter().map(|text| ("--env", text))) {
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, value.to_owned()),
                None => {
                    let value = std::env::var(text);
                    (
                        text.as_str(),
                        value.ok().with_context(|| {
                            format!("{option} {text}: {text} is not set here, or is not UTF-8")
                        })?,
                    )
                }
            };
            ensure!(!key.is_empty(), "{option} {text}: the name of the variable is missing");
            if forebay_engine::shim::VARIABLES.contains(&key) {
                bail!("{option} {text}: {key} is set by the grid and cannot be changed");
            }
            variables.insert(key.to_owned(), value);
        }
        Ok(variables.into_iter().collect())
    }
}

/// Variables that jobs of flows and workloads get, which may run when the user who started them is gone.
const FEW: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TERM"];

/// The environment of such a job: a few variables, and what is given as K=V or K.
pub fn environment(given: &[String]) -> Result<Vec<(String, String)>> {
    let few = FEW.iter().filter(|key| std::env::var(key).is_ok());
    let export = Export { scope: Scope::Listed, more: few.map(|key| (*key).to_owned()).collect() };
    Placement { export: Some(export), env: given.to_vec(), ..Placement::default() }.environment()
}

/// The file mode creation mask of this process.
pub fn umask() -> u32 {
    // SAFETY: umask always succeeds; it is put back at once, before there is another thread.
    unsafe {
        let umask = libc::umask(0o077);
        libc::umask(umask);
        umask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_all_none_or_a_list() {
        let read = |text| Export::read(text).map(|export| (export.scope, export.more));
        assert_eq!(read("ALL"), Ok((Scope::All, vec![])));
        assert_eq!(read("NONE"), Ok((Scope::Listed, vec![])));
        assert_eq!(read("A,B=x=y"), Ok((Scope::Listed, vec!["A".into(), "B=x=y".into()])));
        assert_eq!(read("B=1,ALL"), Ok((Scope::All, vec!["B=1".into()])));
        for bad in ["", ",", "A,", "=x", "ALL,NONE"] {
            assert!(Export::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_given_wins_over_what_a_file_says() {
        let given = Placement { slots: Some(2), env: vec!["A=2".into()], ..Default::default() };
        let file = Placement {
            slots: Some(1),
            priority: Some(7),
            env: vec!["A=1".into(), "B=1".into()],
            ..Default::default()
        };
        let both = given.over(file);
        assert_eq!((both.slots, both.priority), (Some(2), Some(7)));
        assert_eq!(both.env, ["A=1", "B=1", "A=2"]);
    }
}

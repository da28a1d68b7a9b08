//! `forebay service`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::{Answer, Ask, JobView, ServiceView};
use forebay_grid::event::Verb as JobVerb;
use forebay_grid::modify::Changes;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::parse::period::Period;
use forebay_grid::service::{Service as Wanted, ServicePort};
use forebay_grid::spec::JobSpec;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{HostName, JobId, Moment, ServiceName, Target, UserName};

use super::detail::time;
use super::jobs::Output;
use super::submit::Options;
use super::{Listing, Which, memory, no_sense, or_dash, print_json};
use crate::output::{Table, on_one_line, put};

/// Run services: jobs that are kept running under a name, such as a database or a notebook server.
///
/// A service is a job that starts again whenever it ends: after a pause that doubles with each failure in a row, and at once
/// on another host if its own is lost. It runs until it is stopped, or has failed more often in a row than the grid's setting
/// service_failures_max. Clients find its host and port by its name.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay service start notebook --port auto -- sh -c 'exec jupyter lab --port=$FOREBAY_PORT'
  forebay service show notebook              where it runs, and whether it is ready
  curl http://$(forebay service show notebook --address --wait)/
  forebay service logs notebook -f
  forebay service move notebook --to gridn2
  forebay service stop notebook")]
pub struct Service {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Start(Box<Start>),
    List(List),
    Show(Show),
    Stop(Stop),
    Restart(Restart),
    Move(Move),
    Logs(Logs),
}

/// Start a service under a name.
///
/// It runs in the current directory, as the current user, with your environment, as a job of forebay submit does, and takes
/// the same options. It finds its name in FOREBAY_SERVICE and its port in FOREBAY_PORT. It is ready when --check succeeds;
/// without --check, when its port accepts connections; without a port, when it runs. A service that is not ready for the
/// grid's setting service_unready_max is ended and started again. It should listen on all addresses of its host (0.0.0.0)
/// if other hosts are to reach it.
///
/// Exit code: 0 if the service was accepted; with --wait, 1 if it is not ready after --timeout; 2 if it was refused.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay service start db --port 5432 --check 'pg_isready -q -p 5432' -- postgres -D /data/db
  forebay service start api --port auto --address-file ~/api.json --wait -- ./serve.sh
  forebay service start loader -q services --mem 4G -- ./watch-folder")]
struct Start {
    #[command(flatten)]
    which: Which,
    /// Name of the service, unique among your own.
    #[arg(value_name = "NAME", value_parser = |text: &str| text.parse::<ServiceName>())]
    service: ServiceName,
    #[command(flatten)]
    options: Options,
    /// Port on which it listens: a number, or auto for one that the grid chooses and keeps for it.
    #[arg(long, value_name = "PORT", value_parser = read_port)]
    port: Option<ServicePort>,
    /// Shell command that succeeds when the service is ready; it runs on the host of the service, as the user, at the interval
    /// service_check_interval.
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// File in which to keep the address of the service as JSON while it is ready; on a directory that its clients see.
    #[arg(long, value_name = "FILE")]
    address_file: Option<String>,
    /// Wait until it is ready.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most.
    #[arg(long, value_name = "TIME", default_value = "60 s", requires = "wait", value_parser = |text: &str| text.parse::<Period>())]
    timeout: Period,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// List services: your own, or everybody's for an admin.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay service list\n  forebay service list --all --json")]
struct List {
    #[command(flatten)]
    listing: Listing,
    /// Also list services that were stopped or have failed.
    #[arg(long)]
    all: bool,
}

/// Which service.
#[derive(clap::Args)]
struct Named {
    #[command(flatten)]
    which: Which,
    /// Name of the service.
    #[arg(value_parser = |text: &str| text.parse::<ServiceName>())]
    name: ServiceName,
    /// Its user, if there are several services with this name.
    #[arg(long, value_parser = |text: &str| text.parse::<UserName>())]
    user: Option<UserName>,
}

/// Show a service: its state, host and port.
///
/// Exit code: 0; with --address or --wait, 1 if the service is not ready; 2 if there is no such service.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay service show db
  forebay service show db --json
  psql -h $(forebay service show db --address | cut -d: -f1)
  forebay service show db --wait --timeout '2 min'")]
struct Show {
    #[command(flatten)]
    named: Named,
    /// Print only ADDRESS:PORT, or the address of a service without a port.
    #[arg(long, conflicts_with = "json")]
    address: bool,
    /// Wait until it is ready.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most.
    #[arg(long, value_name = "TIME", default_value = "60 s", requires = "wait", value_parser = |text: &str| text.parse::<Period>())]
    timeout: Period,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Stop a service for good: SIGTERM first, SIGKILL after 10 seconds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay service stop db")]
struct Stop {
    #[command(flatten)]
    named: Named,
}

/// Start a service again, on any host that it may use; one that pauses after a failure starts at once.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay service restart db")]
struct Restart {
    #[command(flatten)]
    named: Named,
}

/// Move a service to another host: it is ended and starts there, under the same name and port.
///
/// If the host cannot take it, or is lost later, it runs on another one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay service move db                to any other host, if one has room
  forebay service move db --to gridn2")]
struct Move {
    #[command(flatten)]
    named: Named,
    /// Host that is preferred from now on.
    #[arg(long, value_name = "HOST", value_parser = |text: &str| text.parse::<HostName>())]
    to: Option<HostName>,
}

/// Print what a service has printed, over all its starts.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay service logs db\n  forebay service logs db -f")]
struct Logs {
    #[command(flatten)]
    named: Named,
    /// Follow the output until the service ends.
    #[arg(short, long)]
    follow: bool,
    /// Print the error file of a service that was started with -e.
    #[arg(long)]
    errors: bool,
}

fn read_port(text: &str) -> Result<ServicePort, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(ServicePort::Chosen),
        (_, Ok(port)) if port > 0 => Ok(ServicePort::Fixed(port)),
        _ => Err("give a number from 1 to 65535, or auto".to_owned()),
    }
}

impl Service {
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::Start(start) => start.run(),
            Verb::List(list) => list.run(),
            Verb::Show(show) => show.run(),
            Verb::Stop(Stop { named }) => named.command(JobVerb::Kill),
            Verb::Restart(Restart { named }) => named.command(JobVerb::Requeue),
            Verb::Move(relocate) => relocate.run(),
            Verb::Logs(Logs { named, follow, errors }) => {
                let (job, _) = named.find_last()?;
                Output::of(named.which, number(&job)?.into(), follow, errors).run()
            }
        }
    }
}

impl Start {
    fn run(self) -> Result<ExitCode> {
        let service = Wanted {
            name: self.service.clone(),
            port: self.port.unwrap_or_default(),
            check: self.check,
            address_file: self.address_file.as_deref().map(absolute).transpose()?,
        };
        let spec = self.options.into_spec(self.command)?;
        let spec = JobSpec {
            name: if spec.name.is_empty() { self.service.to_string() } else { spec.name.clone() },
            service: Some(Box::new(service)),
            ..spec
        };
        let mut client = self.which.client()?;
        memory::warn_if_not_enforced(&mut client, &spec);
        let job = client.submit(spec)?;
        if !self.wait {
            let text = match self.json {
                true => serde_json::json!({ "service": self.service, "job": job }).to_string(),
                false => job.to_string(),
            };
            put(format!("{text}\n").as_bytes())
                .with_context(|| format!("service {} was started as job {job}", self.service))?;
            return Ok(ExitCode::SUCCESS);
        }
        let named = Named { which: self.which, name: self.service, user: None };
        let show =
            Show { named, address: !self.json, wait: true, timeout: self.timeout, json: self.json };
        show.run()
    }
}

/// A path from the root on: the service runs elsewhere.
fn absolute(path: &str) -> Result<String> {
    let absolute = std::path::absolute(path).with_context(|| path.to_owned())?;
    absolute.into_os_string().into_string().ok().with_context(|| format!("{path}: not UTF-8"))
}

/// The job of a service.
fn number(job: &JobView) -> Result<JobId> {
    let target: Target = job.id.parse().map_err(anyhow::Error::msg)?;
    Ok(target.job)
}

impl Named {
    /// The service that is meant among those that are known.
    fn find_in(&self, ended: bool) -> Result<Option<(JobView, ServiceView)>> {
        let found = services(&self.which, ended)?;
        let found = found.into_iter().filter_map(|job| {
            let service = *job.service.clone()?;
            (service.name == self.name).then_some((job, service))
        });
        let mut found: Vec<(JobView, ServiceView)> = match &self.user {
            Some(user) => found.filter(|(job, _)| job.user == *user).collect(),
            None => found.collect(),
        };
        let own = forebay_engine::user::name_of(rustix::process::getuid().as_raw()).ok();
        if self.user.is_none() && found.iter().any(|(job, _)| Some(&job.user) == own.as_ref()) {
            found.retain(|(job, _)| Some(&job.user) == own.as_ref());
        }
        let users: std::collections::BTreeSet<&UserName> =
            found.iter().map(|(job, _)| &job.user).collect();
        if users.len() > 1 {
            let users: Vec<&str> = users.into_iter().map(UserName::as_str).collect();
            bail!("several users have a service {}: give --user {}", self.name, users.join(" or "));
        }
        // The latest of those that have ended, or the one that has not.
        Ok(found.pop())
    }

    fn find(&self) -> Result<(JobView, ServiceView)> {
        self.find_in(false)?.with_context(|| {
            format!("there is no service {}; forebay service list --all lists all", self.name)
        })
    }

    /// One that has not ended, or else the last that has.
    fn find_last(&self) -> Result<(JobView, ServiceView)> {
        match self.find_in(false)? {
            Some(found) => Ok(found),
            None => {
                self.find_in(true)?.with_context(|| format!("there is no service {}", self.name))
            }
        }
    }

    fn command(self, verb: JobVerb) -> Result<ExitCode> {
        let (job, _) = self.find()?;
        command(&self.which, number(&job)?, verb)
    }
}

fn command(which: &Which, job: JobId, verb: JobVerb) -> Result<ExitCode> {
    match which.ask(&Ask::Command { target: job.into(), verb })? {
        Answer::Obeyed { .. } => Ok(ExitCode::SUCCESS),
        answer => Err(no_sense(&answer)),
    }
}

fn services(which: &Which, ended: bool) -> Result<Vec<JobView>> {
    match which.ask(&Ask::Services { ended })? {
        Answer::Jobs { jobs, .. } => Ok(jobs),
        answer => Err(no_sense(&answer)),
    }
}

impl Move {
    fn run(self) -> Result<ExitCode> {
        let (line, _) = self.named.find()?;
        let job = number(&line)?;
        let which = &self.named.which;
        let asked = which.client()?.jobs(Some(job.into()), true, Some(1))?.0;
        let before = asked.first().and_then(|line| line.asked.as_ref());
        let before = before.map_or(String::new(), |asked| asked.hosts.clone());
        let before: HostList = before.parse().context("the hosts of the service")?;
        let hosts = preferring(&before, self.to.as_ref(), line.host.as_ref())?;
        let changes = Box::new(Changes { hosts: Some(hosts), ..Changes::default() });
        match which.ask(&Ask::Modify { job, changes })? {
            Answer::Obeyed { .. } => command(which, job, JobVerb::Requeue),
            answer => Err(no_sense(&answer)),
        }
    }
}

/// The hosts of a list, with one preferred to all others, or all others to the present one.
fn preferring(
    before: &HostList,
    to: Option<&HostName>,
    now: Option<&HostName>,
) -> Result<HostList> {
    let text = before.to_string();
    let is_open = before.is_empty() || text.contains("others") || text.contains("all");
    let weight = |host: &HostName| match to {
        Some(to) => u32::from(host == to),
        None => u32::from(Some(host) != now),
    };
    let named: Vec<String> =
        before.allowed().map(|host| format!("{host}+{}", weight(host))).collect();
    if !is_open {
        if let Some(to) = to.filter(|to| !before.allowed().any(|host| host == *to)) {
            bail!("host {to} is not among the hosts of the service: {text}");
        }
        return named.join(" ").parse().context("the hosts of the service");
    }
    let list = match (to, now) {
        (Some(to), _) => format!("{to}+1 others"),
        (None, Some(now)) => format!("others+1 {now}"),
        (None, None) => "others".to_owned(),
    };
    list.parse().context("the hosts of the service")
}

impl List {
    fn run(self) -> Result<ExitCode> {
        let found = services(&self.listing.which, self.all)?;
        if self.listing.json {
            let all: Vec<serde_json::Value> = found.iter().filter_map(json).collect();
            return print_json(&all);
        }
        let mut table = Table::new(&[
            "service", "user", "state", "host", "address", "port", "job", "starts", "failures",
            "since",
        ]);
        for job in &found {
            let Some(service) = &job.service else { continue };
            table.row(vec![
                service.name.to_string(),
                job.user.to_string(),
                state(job, service),
                or_dash(job.host.as_ref()),
                or_dash(service.address.as_ref()),
                or_dash(service.port),
                job.id.clone(),
                job.attempts.to_string(),
                service.failures.to_string(),
                or_dash(job.started.map(time)),
            ]);
        }
        out!("{}", table.render());
        Ok(ExitCode::SUCCESS)
    }
}

/// How a service is, in a word or two.
fn state(job: &JobView, service: &ServiceView) -> String {
    match (job.state, service.ready) {
        (JobState::Running, Some(true)) => "ready".to_owned(),
        (JobState::Running, Some(false)) => "not ready".to_owned(),
        (JobState::Running, None) => "starting".to_owned(),
        (JobState::Pending, _) if service.next_start.is_some() => "pausing".to_owned(),
        (JobState::Killed, _) => "stopped".to_owned(),
        (JobState::AttemptsMax, _) => "failed".to_owned(),
        (state, _) => state.to_string(),
    }
}

fn json(job: &JobView) -> Option<serde_json::Value> {
    let service = job.service.as_ref()?;
    Some(serde_json::json!({
        "service": service.name,
        "user": job.user,
        "job": job.id,
        "queue": job.queue,
        "state": state(job, service),
        "ready": service.ready.unwrap_or(false),
        "why": service.why,
        "host": job.host,
        "address": service.address,
        "port": service.port,
        "address_file": service.address_file,
        "starts": job.attempts,
        "failures": service.failures,
        "started": job.started.map(time),
        "next_start": service.next_start.map(time),
        "output": job.output,
    }))
}

impl Show {
    fn run(self) -> Result<ExitCode> {
        const PAUSE: Duration = Duration::from_millis(200);
        let now = || Moment::from(SystemClock.now());
        let until = now().after(self.timeout.as_ms());
        let (job, service) = loop {
            let (job, service) =
                if self.wait { self.named.find()? } else { self.named.find_last()? };
            if !self.wait || service.ready == Some(true) || now() >= until {
                break (job, service);
            }
            std::thread::sleep(PAUSE);
        };
        let is_ready = service.ready == Some(true);
        if self.address {
            match service.address.as_ref().filter(|_| is_ready) {
                Some(address) => outln!("{}", address_of(address, service.port)),
                None => note!(
                    "forebay: service {} is not ready: {}",
                    service.name,
                    reason(&job, &service)
                ),
            }
        } else if self.json {
            print_json(&json(&job))?;
        } else {
            print_block(&job, &service)?;
        }
        let must_be_ready = self.address || self.wait;
        Ok(if is_ready || !must_be_ready { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// As clients write it; the number of an IPv6 host is in brackets before a port.
fn address_of(address: &str, port: Option<u16>) -> String {
    match port {
        None => address.to_owned(),
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
    }
}

/// Why a service is not ready.
fn reason(job: &JobView, service: &ServiceView) -> String {
    match (&service.why, service.next_start) {
        (Some(why), _) => why.clone(),
        (None, Some(at)) => format!(
            "it failed {} times in a row and starts again at {}",
            service.failures,
            time(at)
        ),
        (None, None) => match &job.exit {
            Some(exit) => format!("it is {} ({exit})", state(job, service)),
            None => format!("it is {}; forebay explain {} says more", state(job, service), job.id),
        },
    }
}

fn print_block(job: &JobView, service: &ServiceView) -> Result<()> {
    let text = |value: Option<String>| value.unwrap_or_default();
    let lines = [
        ("service", service.name.to_string()),
        ("user", job.user.to_string()),
        ("state", state(job, service)),
        ("why", text(service.why.clone())),
        ("host", text(job.host.as_ref().map(ToString::to_string))),
        ("address", text(service.address.as_ref().map(|host| address_of(host, service.port)))),
        ("port", text(service.port.map(|port| port.to_string()))),
        ("address file", text(service.address_file.clone())),
        ("job", job.id.clone()),
        ("queue", job.queue.to_string()),
        ("command", job.command.join(" ")),
        ("starts", job.attempts.to_string()),
        ("failures", service.failures.to_string()),
        ("started", text(job.started.map(time))),
        ("next start", text(service.next_start.map(time))),
        ("last exit", text(job.exit.as_ref().map(ToString::to_string))),
        ("output", job.output.clone()),
    ];
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        outln!("{name:<13} {}", on_one_line(value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_prefers_a_host_and_keeps_to_the_hosts_that_the_service_may_use() {
        let list = |text: &str| text.parse::<HostList>().unwrap();
        let host = |text: &str| text.parse::<HostName>().unwrap();
        let (a, b) = (host("a"), host("b"));
        let moved = preferring(&list(""), Some(&b), Some(&a)).unwrap();
        assert!(moved.preference(&b) > moved.preference(&a) && moved.preference(&a).is_some());
        let moved = preferring(&list(""), None, Some(&a)).unwrap();
        assert!(moved.preference(&b) > moved.preference(&a) && moved.preference(&a).is_some());
        let moved = preferring(&list("a b+3"), Some(&a), Some(&b)).unwrap();
        assert!(moved.preference(&a) > moved.preference(&b));
        assert_eq!(moved.preference(&host("c")), None);
        assert!(preferring(&list("a b"), Some(&host("c")), Some(&b)).is_err());
    }

    #[test]
    fn an_address_can_be_used_as_it_is_printed() {
        assert_eq!(address_of("10.0.0.2", Some(80)), "10.0.0.2:80");
        assert_eq!(address_of("fd00::1", Some(80)), "[fd00::1]:80");
        assert_eq!(address_of("gridn1", None), "gridn1");
    }
}

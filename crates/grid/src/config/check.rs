//! Checks of settings that reading them does not make, and the lines to blame.

use std::fmt::Display;

use forebay_base::ByteSize;
use toml::de::{DeTable, DeValue};

use super::{
    Config, ConfigError, Dispatch, FairShare, General, LoadIndex, QueueConfig, Thresholds, Unlisted,
};
use crate::parse::line_of;
use crate::parse::resources::{COUNT_MAX, GPU, GPUS_MAX};
use crate::vocabulary::{HostName, ResourceName, UserName};

/// One message of the greatest length fits, a command with its environment.
const MESSAGES_BYTES_MIN: u64 = 16 << 20;

/// A journal with more space than this beyond what it holds is a mistake.
const JOURNAL_RESERVE_LIMIT: u64 = 16 << 30;

/// A fault and the path of the key to blame.
pub(super) struct Fault {
    path: Vec<Step>,
    value: String,
    allowed: String,
}

enum Step {
    Key(&'static str),
    Place(usize),
}

use Step::{Key, Place};

impl Fault {
    fn at<const N: usize>(
        path: [Step; N],
        value: impl Display,
        allowed: impl Into<String>,
    ) -> Fault {
        Fault { path: path.into(), value: format!("{value}"), allowed: allowed.into() }
    }

    fn below(mut self, steps: impl IntoIterator<Item = Step>) -> Fault {
        self.path.splice(0..0, steps);
        self
    }

    /// The fault as a message with the line of its key, or of the closest table around it.
    pub(super) fn in_text(self, text: &str) -> ConfigError {
        let key = self
            .path
            .iter()
            .map(|step| match step {
                Key(key) => format!(".{key}"),
                Place(place) => format!("[{place}]"),
            })
            .collect::<String>();
        let key = key.trim_start_matches('.');
        let reason = format!("{key} = {}: must be {}", self.value, self.allowed);
        ConfigError { line: self.line(text), reason }
    }

    fn line(&self, text: &str) -> Option<usize> {
        let root = DeTable::parse(text).ok()?;
        let mut found = None;
        let mut table = Some(root.get_ref());
        let mut value: Option<&DeValue<'_>> = None;
        for step in &self.path {
            let next = match step {
                Key(key) => {
                    let (name, next) = table?.iter().find(|(name, _)| name.get_ref() == key)?;
                    found = Some(name.span().start);
                    next
                }
                Place(place) => {
                    let next = value?.as_array()?.get(*place)?;
                    found = Some(next.span().start);
                    next
                }
            };
            value = Some(next.get_ref());
            table = next.get_ref().as_table();
            if table.is_none() && value.and_then(DeValue::as_array).is_none() {
                break;
            }
        }
        found.map(|byte| line_of(text, byte))
    }
}

impl Config {
    /// The first thing that is wrong.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.general
            .fault()
            .map(|fault| fault.below([Key("general")]))
            .or_else(|| self.fair_share.fault().map(|fault| fault.below([Key("fair_share")])))
            .or_else(|| self.queue_fault())
            .or_else(|| self.preempt_fault())
            .or_else(|| self.host_fault())
            .or_else(|| self.resource_fault())
            .or_else(|| self.profile_fault())
            .or_else(|| self.queue_host_fault())
    }

    fn queue_fault(&self) -> Option<Fault> {
        if self.queues.is_empty() {
            return Some(Fault::at([Key("queue")], "[]", "at least one queue"));
        }
        for (place, queue) in self.queues.iter().enumerate() {
            if self.queues[..place].iter().any(|before| before.name == queue.name) {
                let allowed = "unique: two queues have this name";
                let path = [Key("queue"), Place(place), Key("name")];
                return Some(Fault::at(path, &queue.name, allowed));
            }
            if let Some(fault) = queue.fault() {
                return Some(fault.below([Key("queue"), Place(place)]));
            }
        }
        let name = self.general.queue_default.as_ref()?;
        if self.queue(name).is_none() {
            let path = [Key("general"), Key("queue_default")];
            return Some(Fault::at(path, name, "the name of a queue"));
        }
        None
    }

    /// The first queue that cannot be preempted by the one that says so.
    fn preempt_fault(&self) -> Option<Fault> {
        self.queues.iter().enumerate().find_map(|(place, queue)| {
            let (at, name) = queue.preempt.iter().enumerate().find(|(_, name)| {
                self.queue(name).is_none_or(|other| other.priority >= queue.priority)
            })?;
            let allowed = match self.queue(name) {
                None => "the name of a queue".to_owned(),
                Some(other) => format!(
                    "a queue of lower priority than {}, which is {}: {name} has {}",
                    queue.name, queue.priority, other.priority
                ),
            };
            let path = [Key("queue"), Place(place), Key("preempt"), Place(at)];
            Some(Fault::at(path, name, allowed))
        })
    }

    /// The first user that there is not.
    pub(super) fn user_fault(&self, exists: &dyn Fn(&UserName) -> bool) -> Option<Fault> {
        let allowed = "the name of a user of this machine";
        let admins = &self.general.admins;
        if let Some(place) = admins.iter().position(|user| !exists(user)) {
            let path = [Key("general"), Key("admins"), Place(place)];
            return Some(Fault::at(path, &admins[place], allowed));
        }
        if let Some(user) = self.fair_share.shares.keys().find(|user| !exists(user)) {
            return Some(Fault::at([Key("fair_share"), Key("shares")], user, allowed));
        }
        self.queues.iter().enumerate().find_map(|(queue, config)| {
            [("users", &config.users), ("admins", &config.admins)].into_iter().find_map(
                |(key, users)| {
                    let place = users.iter().position(|user| !exists(user))?;
                    let path = [Key("queue"), Place(queue), Key(key), Place(place)];
                    Some(Fault::at(path, &users[place], allowed))
                },
            )
        })
    }

    /// The first host of a queue that cannot ever be used.
    fn queue_host_fault(&self) -> Option<Fault> {
        if self.general.unlisted_hosts == Unlisted::Accept {
            return None;
        }
        let listed = |name: &HostName| self.hosts.iter().any(|host| host.name == *name);
        self.queues.iter().enumerate().find_map(|(place, queue)| {
            let name = queue.hosts.named().find(|name| !listed(name))?;
            let allowed = format!(
                "hosts that a [[host]] lists, because unlisted_hosts is \"close\"; {name} is not listed"
            );
            let path = [Key("queue"), Place(place), Key("hosts")];
            Some(Fault::at(path, &queue.hosts, allowed))
        })
    }

    fn host_fault(&self) -> Option<Fault> {
        for (place, host) in self.hosts.iter().enumerate() {
            let fault = if self.hosts[..place].iter().any(|before| before.name == host.name) {
                Some(Fault::at([Key("name")], &host.name, "unique: two hosts have this name"))
            } else if host.slots.is_some_and(|slots| slots > crate::spec::SLOTS_MAX) {
                let allowed = format!("0 to {}", crate::spec::SLOTS_MAX);
                Some(Fault::at([Key("slots")], host.slots.unwrap_or(0), allowed))
            } else {
                processes_fault(host.processes_max).or_else(|| thresholds_fault(&host.load))
            };
            if let Some(fault) = fault {
                return Some(fault.below([Key("host"), Place(place)]));
            }
        }
        None
    }
}

impl Config {
    fn profile_fault(&self) -> Option<Fault> {
        self.profiles.iter().enumerate().find_map(|(place, profile)| {
            let unknown = profile.queue.as_ref().filter(|queue| self.queue(queue).is_none());
            let fault = if self.profiles[..place].iter().any(|other| other.name == profile.name) {
                let allowed = "unique: two profiles have this name";
                Some(Fault::at([Key("name")], &profile.name, allowed))
            } else if let Some(queue) = unknown {
                Some(Fault::at([Key("queue")], queue, "the name of a queue"))
            } else {
                wrap_fault([("pre", profile.pre.as_ref()), ("post", profile.post.as_ref())])
            };
            Some(fault?.below([Key("profile"), Place(place)]))
        })
    }

    /// A resource belongs to the grid or to hosts, and there is a sensible number of it.
    fn resource_fault(&self) -> Option<Fault> {
        let most = |name: &ResourceName| if name.as_str() == GPU { GPUS_MAX } else { COUNT_MAX };
        let fine = |name: &ResourceName, count: u32| count <= most(name);
        let wrong = |(name, count): (&ResourceName, &u32)| {
            let allowed = format!("at most {} for {name}", most(name));
            (!fine(name, *count)).then(|| Fault::at([Key("resources")], count, allowed))
        };
        if let Some(fault) = self.resources.iter().find_map(wrong) {
            return Some(fault);
        }
        if let Some(count) = self.resources.get(GPU) {
            let allowed = "in a [[host]]: devices belong to hosts, as in resources = { gpu = 4 }";
            return Some(Fault::at([Key("resources")], format!("gpu = {count}"), allowed));
        }
        self.hosts.iter().enumerate().find_map(|(place, host)| {
            let twice = host.resources.keys().find(|name| self.resources.contains_key(*name));
            let fault = match twice {
                Some(name) => {
                    let allowed = "either in [resources] or in [[host]], not in both";
                    Some(Fault::at([Key("resources")], name, allowed))
                }
                None => host.resources.iter().find_map(wrong),
            };
            Some(fault?.below([Key("host"), Place(place)]))
        })
    }
}

impl General {
    fn fault(&self) -> Option<Fault> {
        const SHORTEST: u64 = 100;
        if self.lease.as_ms() < SHORTEST {
            return Some(Fault::at([Key("lease")], self.lease, "at least 100 ms"));
        }
        if self.host_timeout <= self.lease {
            let allowed = format!("longer than the lease, which is {}", self.lease);
            return Some(Fault::at([Key("host_timeout")], self.host_timeout, allowed));
        }
        if let Dispatch::Interval { sleep, .. } = self.dispatch
            && sleep.as_ms() < 10
        {
            let path = [Key("dispatch"), Key("interval"), Key("sleep")];
            return Some(Fault::at(path, sleep, "at least 10 ms"));
        }
        if self.reap_interval.as_ms() < 1000 {
            return Some(Fault::at([Key("reap_interval")], self.reap_interval, "at least 1 s"));
        }
        let most = crate::spec::SCRIPT_BYTES_LIMIT;
        if self.script_bytes_max > most {
            let allowed = format!("at most {most}");
            return Some(Fault::at([Key("script_bytes_max")], self.script_bytes_max, allowed));
        }
        let least = ByteSize(MESSAGES_BYTES_MIN);
        if self.user_messages_bytes_max < least {
            let path = [Key("user_messages_bytes_max")];
            return Some(Fault::at(
                path,
                self.user_messages_bytes_max,
                format!("at least {least}"),
            ));
        }
        if !(0.0..=1.0).contains(&self.io_pressure_max) {
            let path = [Key("io_pressure_max")];
            return Some(Fault::at(path, self.io_pressure_max, "a number from 0 to 1"));
        }
        if self.journal_reserve.0 > JOURNAL_RESERVE_LIMIT {
            let allowed = format!("at most {}", ByteSize(JOURNAL_RESERVE_LIMIT));
            return Some(Fault::at([Key("journal_reserve")], self.journal_reserve, allowed));
        }
        if let Some(program) = self.submit_filter.as_ref().filter(|path| !path.starts_with('/')) {
            return Some(Fault::at([Key("submit_filter")], program, "an absolute path"));
        }
        if let Some(fault) = self.service_fault() {
            return Some(fault);
        }
        let at_least_one = [
            ("notifications_max", self.notifications_max),
            ("tasks_max", self.tasks_max),
            ("user_tasks_max", self.user_tasks_max),
            ("attempts_max", self.attempts_max),
            ("days_max", self.days_max),
        ];
        at_least_one
            .into_iter()
            .find(|(_, value)| *value == 0)
            .map(|(key, value)| Fault::at([Key(key)], value, "at least 1"))
    }
}

impl General {
    fn service_fault(&self) -> Option<Fault> {
        if self.service_port_min == 0 {
            return Some(Fault::at([Key("service_port_min")], 0, "1 to 65535"));
        }
        if self.service_port_max < self.service_port_min {
            let allowed = format!("at least service_port_min, which is {}", self.service_port_min);
            return Some(Fault::at([Key("service_port_max")], self.service_port_max, allowed));
        }
        let intervals = [
            ("service_pause", self.service_pause),
            ("service_check_interval", self.service_check_interval),
            ("submit_filter_time_max", self.submit_filter_time_max),
        ];
        let short = intervals.into_iter().find(|(_, period)| period.as_ms() < 100);
        short.map(|(key, period)| Fault::at([Key(key)], period, "at least 100 ms"))
    }
}

impl FairShare {
    fn fault(&self) -> Option<Fault> {
        if self.half_life.as_ms() < 1000 {
            return Some(Fault::at([Key("half_life")], self.half_life, "at least 1 s"));
        }
        let weights = [
            ("run_time_weight", self.run_time_weight),
            ("cpu_time_weight", self.cpu_time_weight),
            ("running_weight", self.running_weight),
        ];
        let fine = |weight: f64| weight.is_finite() && (0.0..=1e6).contains(&weight);
        if let Some((key, value)) = weights.into_iter().find(|(_, weight)| !fine(*weight)) {
            return Some(Fault::at([Key(key)], value, "a number from 0 to 1000000"));
        }
        if self.share_default == 0 {
            return Some(Fault::at([Key("share_default")], 0, "at least 1"));
        }
        if let Some((user, _)) = self.shares.iter().find(|(_, shares)| **shares == 0) {
            return Some(Fault::at(
                [Key("shares")],
                format!("0 for {user}"),
                "at least 1 for each",
            ));
        }
        None
    }
}

impl QueueConfig {
    fn fault(&self) -> Option<Fault> {
        let limits = [
            ("time_limit_default", self.time_limit_default),
            ("time_limit_max", self.time_limit_max),
        ];
        if let Some((key, zero)) = limits.iter().find(|(_, limit)| limit.is_some_and(|l| l.0 == 0))
        {
            let allowed = "longer than 0; omit it for no limit";
            return Some(Fault::at([Key(key)], zero.unwrap_or_default(), allowed));
        }
        if let (Some(default), Some(max)) = (self.time_limit_default, self.time_limit_max)
            && default > max
        {
            let allowed = format!("at most time_limit_max, which is {max}");
            return Some(Fault::at([Key("time_limit_default")], default, allowed));
        }
        if self.area_limit == Some(ByteSize(0)) {
            return Some(Fault::at([Key("area_limit")], 0, "more than 0; omit it for no limit"));
        }
        if let Some(fault) = processes_fault(self.processes_max) {
            return Some(fault);
        }
        let wraps = [
            ("pre", self.pre.as_ref()),
            ("post", self.post.as_ref()),
            ("starter", self.starter.as_ref()),
        ];
        let mut options = self.slurm.iter();
        let unfit = options.find_map(|option| Some((option, crate::slurm::option_fault(option)?)));
        if let Some((option, allowed)) = unfit {
            return Some(Fault::at([Key("slurm")], format!("{option:?}"), allowed));
        }
        wrap_fault(wraps).or_else(|| thresholds_fault(&self.load))
    }
}

/// A limit with which no job could start.
fn processes_fault(most: Option<u32>) -> Option<Fault> {
    let allowed = "at least 1; omit it for no limit";
    (most == Some(0)).then(|| Fault::at([Key("processes_max")], 0, allowed))
}

/// The first command that is not one.
fn wrap_fault<const N: usize>(commands: [(&'static str, Option<&String>); N]) -> Option<Fault> {
    commands.into_iter().find_map(|(key, command)| {
        let allowed = crate::wrap::fault(command?)?;
        Some(Fault::at([Key(key)], format!("{:?}", command?), allowed))
    })
}

fn thresholds_fault(load: &Thresholds) -> Option<Fault> {
    for index in LoadIndex::ALL {
        let threshold = load.get(index);
        let fine = |value: f64| value.is_finite() && value >= 0.0;
        for (key, value) in [("schedule", threshold.schedule), ("stop", threshold.stop)] {
            if let Some(bad) = value.filter(|value| !fine(*value)) {
                let path = [Key("load"), Key(index.name()), Key(key)];
                return Some(Fault::at(path, bad, "a number, 0 or more"));
            }
        }
        if let (Some(schedule), Some(stop)) = (threshold.schedule, threshold.stop)
            && index.is_worse(schedule, stop)
        {
            let path = [Key("load"), Key(index.name()), Key("stop")];
            let allowed = format!("as bad as schedule or worse; schedule is {schedule}");
            return Some(Fault::at(path, stop, allowed));
        }
    }
    None
}

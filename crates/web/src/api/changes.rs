//! What is changed of a job that was submitted, from the texts of a request.

use std::fmt::Display;
use std::str::FromStr;

use forebay_grid::group::JobGroup;
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::parse::features::Features;
use forebay_grid::parse::memory::Memory;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::resources::Resources;
use forebay_grid::spec::{Rerun, Sharing};
use forebay_grid::vocabulary::{Moment, ReservationName};
use forebay_grid::warning::Warning;

use super::new_job::{moment, one, read};
use super::shape::requests;
use crate::problem::Problem;

requests! {
    /// Changes of a job. What is omitted stays as it is, and the text none removes what was set. Texts have the forms that
    /// `forebay modify` takes.
    JobChanges {
        /// Queue to move it to.
        queue: Option<String>,
        /// Name.
        name: Option<String>,
        /// Number of slots.
        slots: Option<u32>,
        /// Hosts it may run on; all for every host of its queue.
        hosts: Option<String>,
        /// Memory to reserve; or none.
        memory: Option<String>,
        /// Counted resources; or none.
        resources: Option<String>,
        /// Whether no other job may run beside it.
        exclusive: Option<bool>,
        /// Condition to wait for; or none.
        depends: Option<String>,
        /// When it may start at the earliest; or none.
        begin: Option<String>,
        /// When it is ended at the latest; or none.
        deadline: Option<String>,
        /// Time limit; or none for that of its queue.
        time_limit: Option<String>,
        /// Reservation in which it runs; or none.
        reservation: Option<String>,
        /// Job group in which it is; or none.
        group: Option<String>,
        /// Signal that it gets before it is ended; or none.
        warning: Option<String>,
        /// Features that its host must have; or none.
        features: Option<String>,
        /// Priority among the jobs of its user, higher first.
        priority: Option<i32>,
        /// top moves it before all jobs of its user that wait in its queue, bottom behind them.
        rank: Option<String>,
        /// Project.
        project: Option<String>,
        /// Whether it may start again after its host was lost.
        rerunnable: Option<bool>,
        /// How many elements of an array may be on hosts at once; 0 for all.
        running_max: Option<u32>,
    }

    /// A signal for the processes of a job.
    NewSignal {
        /// HUP, QUIT, USR1, USR2 or WINCH.
        signal: String,
    }
}

/// Reads a value, or the word none.
fn set<T: FromStr>(field: &str, text: Option<String>) -> Result<Option<Set<T>>, Problem>
where
    T::Err: Display,
{
    let value = |text: String| match &*text {
        "none" => Ok(Set::Nothing),
        text => one(field, text).map(Set::To),
    };
    text.map(value).transpose()
}

/// Reads a point in time, or the word none.
fn set_moment(field: &str, text: Option<String>) -> Result<Option<Set<Moment>>, Problem> {
    if text.as_deref() == Some("none") {
        return Ok(Some(Set::Nothing));
    }
    Ok(moment(field, text)?.map(Set::To))
}

impl JobChanges {
    /// The changes.
    ///
    /// # Errors
    /// The first field that cannot be read, or if there is none.
    pub fn into_changes(self) -> Result<Changes, Problem> {
        let memory = set::<Memory>("memory", self.memory)?;
        let resources = set::<Resources>("resources", self.resources)?;
        let rank = match self.rank.as_deref() {
            None => None,
            Some("top") => Some(Rank::Top),
            Some("bottom") => Some(Rank::Bottom),
            Some(text) => {
                return Err(Problem::invalid(format!("rank = \"{text}\": choose top or bottom")));
            }
        };
        if rank.is_some() && self.priority.is_some() {
            return Err(Problem::invalid("give either priority or rank"));
        }
        let changes = Changes {
            queue: read("queue", self.queue)?,
            name: self.name,
            slots: self.slots,
            hosts: read("hosts", self.hosts)?,
            memory: memory.map(|memory| memory.map(|Memory(bytes)| bytes)),
            resources: resources.map(|resources| resources.value().unwrap_or_default()),
            sharing: self
                .exclusive
                .map(|alone| if alone { Sharing::Exclusive } else { Sharing::Shared }),
            depends: set::<Dependency>("depends", self.depends)?,
            begin: set_moment("begin", self.begin)?,
            deadline: set_moment("deadline", self.deadline)?,
            time_limit: set::<Period>("time_limit", self.time_limit)?,
            priority: self.priority,
            project: self.project,
            rerun: self.rerunnable.map(|again| if again { Rerun::Rerunnable } else { Rerun::Once }),
            reservation: set::<ReservationName>("reservation", self.reservation)?,
            group: set::<JobGroup>("group", self.group)?,
            warning: set::<Warning>("warning", self.warning)?,
            features: set::<Features>("features", self.features)?,
            running_max: self
                .running_max
                .map(|most| if most > 0 { Set::To(most) } else { Set::Nothing }),
            rank,
        };
        if changes.is_empty() {
            return Err(Problem::invalid("nothing to change was given, such as time_limit"));
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> Result<Changes, Problem> {
        serde_json::from_str::<JobChanges>(text).unwrap().into_changes()
    }

    #[test]
    fn changes_of_a_request_are_read_as_the_command_line_reads_them() {
        let found = changes(
            r#"{"queue":"night","memory":"2G","time_limit":"none","depends":"done(3)","begin":"1970-01-01T00:00:02Z",
                "deadline":"none","resources":"none","exclusive":false,"rerunnable":false,"running_max":0,"rank":"top"}"#,
        )
        .unwrap();
        assert_eq!(found.queue, Some("night".parse().unwrap()));
        assert_eq!(found.memory, Some(Set::To(forebay_base::ByteSize::gib(2))));
        assert_eq!((found.time_limit, found.deadline), (Some(Set::Nothing), Some(Set::Nothing)));
        assert_eq!(found.begin, Some(Set::To(Moment(2000))));
        assert_eq!(found.depends, Some(Set::To("done(3)".parse().unwrap())));
        assert_eq!(found.resources, Some(Resources::default()));
        assert_eq!((found.sharing, found.rerun), (Some(Sharing::Shared), Some(Rerun::Once)));
        assert_eq!((found.running_max, found.rank), (Some(Set::Nothing), Some(Rank::Top)));
    }

    #[test]
    fn a_change_that_cannot_be_read_is_named() {
        for (text, named) in [
            ("{}", "nothing to change"),
            (r#"{"memory":"much"}"#, "memory = \"much\""),
            (r#"{"time_limit":"soon"}"#, "time_limit = \"soon\""),
            (r#"{"begin":"noon"}"#, "begin = \"noon\""),
            (r#"{"rank":"first"}"#, "rank = \"first\""),
            (r#"{"rank":"top","priority":3}"#, "either priority or rank"),
            (r#"{"queue":"a b"}"#, "queue = \"a b\""),
        ] {
            let problem = changes(text).unwrap_err();
            assert!(problem.detail.contains(named), "{}", problem.detail);
            assert_eq!(problem.status, 422);
        }
    }
}

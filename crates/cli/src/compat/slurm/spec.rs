//! A job of the grid from what sbatch or srun was given.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::ByteSize;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::config::OnNever;
use forebay_grid::dialect::{Dialect, OldOutput, System};
use forebay_grid::notify::{Moments, Notify};
use forebay_grid::parse::array::ArraySpec;
use forebay_grid::parse::features::Features;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::resources::GPU;
use forebay_grid::spec::{JobSpec, Rerun, Sharing};
use forebay_grid::vocabulary::{Moment, NAME_BYTES_MAX, ProfileName, QueueName};
use forebay_grid::warning::{Warned, Warning};
use forebay_process::user::{group_number_of as group_number, number_of as user_number};

use super::super::input;
use super::super::row::me;
use super::super::words::Given;
use super::units::{begin_time, memory, time_limit};
use super::{CLUSTER, dependency, resources};
use crate::commands::grid::placement::umask;
use crate::commands::grid::submit::notification;
use crate::compat::addresses;

/// Variables of another job, or of a submission, which a job does not inherit.
const OF_A_JOB: [&str; 2] = ["SLURM_", "SLURMD_"];

/// How many processes a job has, and how many slots each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Processes that srun starts.
    pub tasks: u32,
    /// Slots of each.
    pub cpus_per_task: u32,
}

/// A number of at least one.
fn count(given: &Given, option: &'static str) -> Result<Option<u32>> {
    let Some(text) = given.value(option) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| *number > 0);
    Ok(Some(number.with_context(|| format!("invalid number \"{text}\" of --{option}"))?))
}

impl Shape {
    /// What the options say.
    ///
    /// # Errors
    /// If more than one host is wanted, or a number is not one.
    pub fn of(given: &Given) -> Result<Shape> {
        if let Some(nodes) = given.value("nodes") {
            let least = nodes.split('-').next().unwrap_or_default();
            ensure!(
                least.parse() == Ok(1),
                "--nodes={nodes}: a job of a Forebay grid runs on one host"
            );
        }
        let per_node = count(given, "ntasks-per-node")?.or(count(given, "tasks-per-node")?);
        let tasks = count(given, "ntasks")?.or(per_node).unwrap_or(1);
        Ok(Shape { tasks, cpus_per_task: count(given, "cpus-per-task")?.unwrap_or(1) })
    }

    /// The same for a job with GPUs, if a number of CPUs is wanted for each of them.
    fn with_gpus(self, given: &Given, gpus: u32) -> Result<Shape> {
        let Some(each) = count(given, "cpus-per-gpu")? else { return Ok(self) };
        ensure!(gpus > 0, "--cpus-per-gpu: the job asks for no GPU; add --gpus");
        ensure!(
            !given.has("cpus-per-task"),
            "--cpus-per-gpu and --cpus-per-task exclude each other"
        );
        let all = each.checked_mul(gpus).context("too many CPUs")?;
        Ok(Shape { cpus_per_task: all.div_ceil(self.tasks), ..self })
    }

    fn slots(self) -> Result<u32> {
        self.tasks.checked_mul(self.cpus_per_task).context("too many CPUs")
    }
}

/// Refuses what would change where or when a job runs, and is not done here.
fn refuse_what_is_not_done(given: &Given) -> Result<()> {
    if given.has("nodefile") {
        bail!("--nodefile is not supported: use --nodelist");
    }
    if let Some(clusters) = given.value("clusters") {
        refuse_other_clusters(clusters)?;
    }
    let is_other = |option: &str, own: u32, number_of: NumberOf| {
        given.value(option).is_some_and(|text| {
            let number = text.parse().ok().or_else(|| number_of(text).ok().flatten());
            number != Some(own)
        })
    };
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    for (option, is_other) in [
        ("uid", is_other("uid", user.as_raw(), user_number)),
        ("gid", is_other("gid", group.as_raw(), group_number)),
    ] {
        ensure!(
            !is_other,
            "--{option} is not supported: a job runs as the user who submits it, with his groups"
        );
    }
    Ok(())
}

/// What finds the number of a user or a group.
type NumberOf = fn(&str) -> std::io::Result<Option<u32>>;

/// Refuses clusters of which this grid is none.
///
/// # Errors
/// If one is named.
pub fn refuse_other_clusters(clusters: &str) -> Result<()> {
    let is_other = |name: &&str| ![CLUSTER, "all"].contains(name);
    if let Some(other) = clusters.split(',').map(str::trim).find(is_other) {
        bail!("--clusters={other} is not supported: a Forebay grid is one cluster, {CLUSTER}");
    }
    Ok(())
}

/// What `--qos` stands for: an application profile or a queue with this name, which a site may have for each of its QOS. Another
/// one has no effect.
fn quality(
    command: &str,
    given: &Given,
    client: &mut Client,
) -> Result<(Option<ProfileName>, Option<QueueName>)> {
    let name = given.value("qos").unwrap_or_default();
    if name.is_empty() || name == "normal" {
        return Ok((None, None));
    }
    if let Answer::Limits { limits } = client.ask(&Ask::Limits)?
        && let Some(profile) = limits.profiles.into_iter().find(|of| of.as_str() == name)
    {
        return Ok((Some(profile), None));
    }
    if let Answer::Queues { queues, .. } = client.ask(&Ask::Queues)?
        && let Some(queue) = queues.into_iter().find(|queue| queue.name.as_str() == name)
    {
        return Ok((None, Some(queue.name)));
    }
    note!(
        "{command}: warning: --qos={name} has no effect: the grid has neither an application profile nor a partition with this name"
    );
    Ok((None, None))
}

/// Features that its host must have, as `--constraint` says; counts of hosts and sets of them are for jobs on several hosts.
fn features(given: &Given) -> Result<Option<Features>> {
    let text = given.value("constraint").unwrap_or_default().trim();
    if text.is_empty() || text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    ensure!(
        !text.contains(['*', '[', '{']),
        "--constraint={text}: numbers of hosts and [] are for jobs on several hosts; a job of a Forebay grid runs on one"
    );
    Features::of_slurm(text).map(Some).with_context(|| format!("--constraint={text}"))
}

/// The signal before the end of a job: `[R|B:]SIGNAL[@SECONDS]`, of which `B:` warns the batch script and nothing else, and
/// without it the processes of steps. A signal that Slurm knows and no job can be warned by has no effect.
fn warning(command: &str, given: &Given) -> Result<Option<Warning>> {
    let Some(text) = given.value("signal").filter(|text| !text.is_empty()) else { return Ok(None) };
    let refused = || format!("Invalid --signal specification: {text}");
    let (flags, rest) = text.rsplit_once(':').unwrap_or(("", text));
    ensure!(flags.chars().all(|flag| "BRbr".contains(flag)), refused());
    let (signal, before) = match rest.split_once('@') {
        Some((signal, seconds)) => {
            (signal, Some(seconds.parse::<u16>().ok().with_context(refused)?))
        }
        None => (rest, None),
    };
    let is_other =
        |name: &str| OTHER_SIGNALS.iter().any(|(known, of)| *known == name || *of == name);
    let upper = signal.to_ascii_uppercase();
    if is_other(upper.strip_prefix("SIG").unwrap_or(&upper)) {
        note!(
            "{command}: warning: --signal={text} has no effect: a Forebay grid does not warn jobs by this signal"
        );
        return Ok(None);
    }
    let signal = signal.parse().map_err(anyhow::Error::msg).with_context(refused)?;
    let to = if flags.contains(['B', 'b']) { Warned::Program } else { Warned::Steps };
    let before = before.map(|seconds| Period::seconds(seconds.into()));
    Ok(Some(Warning::new(signal, before, to)))
}

/// Signals that Slurm knows and no job can be warned by, with their numbers.
const OTHER_SIGNALS: [(&str, &str); 8] = [
    ("ABRT", "6"),
    ("KILL", "9"),
    ("PIPE", "13"),
    ("STOP", "19"),
    ("TSTP", "20"),
    ("TTIN", "21"),
    ("TTOU", "22"),
    ("XCPU", "24"),
];

/// Refuses a file for standard input where it cannot be opened for the job.
///
/// # Errors
/// If one is wanted.
pub fn refuse_input(given: &Given) -> Result<()> {
    input::refuse("--input", given.value("input").unwrap_or_default())
}

/// Where it may run, as the grid writes it.
fn hosts(given: &Given) -> Result<forebay_grid::parse::hosts::HostList> {
    let mut words = Vec::new();
    let names = |option: &str| -> Result<Vec<String>> {
        let Some(text) = given.value(option) else { return Ok(Vec::new()) };
        super::hostlist::expand(text).with_context(|| format!("--{option}"))
    };
    let only = names("nodelist")?;
    ensure!(only.len() <= 1, "--nodelist: a job of a Forebay grid runs on one host, so name one");
    words.extend(only);
    let without = names("exclude")?;
    if words.is_empty() && !without.is_empty() {
        words.push("all".to_owned());
    }
    words.extend(without.iter().map(|name| format!("~{name}")));
    Ok(words.join(" ").parse()?)
}

/// Which elements an array has, and what its indices are raised by.
///
/// # Errors
/// If it is not an array in Slurm's notation.
pub fn array(text: &str) -> Result<(ArraySpec, u32)> {
    let refused = || format!("invalid job array specification \"{text}\"");
    let (elements, most) = match text.split_once('%') {
        Some((elements, most)) => (elements, Some(most)),
        None => (text, None),
    };
    let mut ranges = Vec::new();
    for part in elements.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number =
            |text: &str| text.parse::<u32>().ok().filter(|n| *n < u32::MAX).with_context(refused);
        ranges.push((number(first)?, number(last)?, number(step)?));
    }
    ranges.sort_unstable();
    let shift = u32::from(ranges.iter().any(|(first, ..)| *first == 0));
    let shifted = ranges.iter().map(|(first, last, step)| {
        let (first, last) = (first + shift, last + shift);
        match (first == last, step) {
            (true, _) => first.to_string(),
            (false, 1) => format!("{first}-{last}"),
            (false, step) => format!("{first}-{last}:{step}"),
        }
    });
    let shifted = shifted.collect::<Vec<_>>().join(",");
    let most = most.map(|most| format!("%{most}")).unwrap_or_default();
    let array = format!("[{shifted}]{most}").parse::<ArraySpec>();
    Ok((array.map_err(|error| anyhow::anyhow!("{}: {error}", refused()))?, shift))
}

/// What `--export` says, as the names and values of the environment.
pub fn environment(export: Option<&str>) -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let all: BTreeMap<String, String> = all.collect();
    let mut variables = BTreeMap::new();
    for part in export.unwrap_or("ALL").split(',') {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                drop(variables.insert(key.to_owned(), value.to_owned()));
            }
            Some(_) => {}
            None if part == "ALL" => {
                for (key, value) in &all {
                    variables.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
            None => {
                if let Some(value) = all.get(part) {
                    variables.insert(part.to_owned(), value.clone());
                }
            }
        }
    }
    let is_of_a_job = |key: &str| OF_A_JOB.iter().any(|start| key.starts_with(start));
    variables.retain(|key, _| {
        !is_of_a_job(key) && !forebay_engine::shim::VARIABLES.contains(&key.as_str())
    });
    variables
}

/// A name that the grid takes: what it does not take becomes `_`.
fn name(text: &str) -> String {
    let fine = |c: char| if c.is_control() || "*\"[]".contains(c) { '_' } else { c };
    let mut name: String = text.chars().map(fine).collect();
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    name
}

/// Memory for all of the job.
fn memory_of(given: &Given, shape: Shape, gpus: u32) -> Result<Option<ByteSize>> {
    let read = |option: &str| -> Result<Option<ByteSize>> {
        let read = given.value(option).map(memory).transpose();
        Ok(read.map_err(anyhow::Error::msg).with_context(|| format!("--{option}"))?.flatten())
    };
    if let Some(of_all) = read("mem")? {
        return Ok(Some(of_all));
    }
    if let Some(each) = read("mem-per-gpu")? {
        ensure!(gpus > 0, "--mem-per-gpu: the job asks for no GPU; add --gpus");
        let of_all = each.0.checked_mul(u64::from(gpus)).map(ByteSize);
        return of_all.map(Some).context("--mem-per-gpu: too much memory");
    }
    let slots = u64::from(shape.slots()?);
    let of_all = read("mem-per-cpu")?.map(|each| each.0.checked_mul(slots).map(ByteSize));
    of_all.map(|of_all| of_all.context("--mem-per-cpu: too much memory")).transpose()
}

/// The pattern of a file's name, with what is known now in place of its letters.
fn file_name(pattern: &str, user: &str) -> String {
    let user = user.replace('%', "%%");
    // In %%u the signs are one that stands for itself.
    let parts = pattern.split("%%").map(|part| part.replace("%u", &user));
    parts.collect::<Vec<_>>().join("%%")
}

/// A job as the options of sbatch, srun or salloc describe it; it has no program yet. `command` is which of them it is.
///
/// # Errors
/// If an option has a bad value, or wants what a grid does not do.
pub fn job(command: &str, given: &Given, client: &mut Client) -> Result<JobSpec> {
    refuse_what_is_not_done(given)?;
    let shape = Shape::of(given)?;
    let resources = resources::of(given, shape.tasks)?;
    let gpus = resources.of(GPU);
    let shape = shape.with_gpus(given, gpus)?;
    let here = std::env::current_dir().context("cannot find the current directory")?;
    let directory = given.value("chdir").map_or(here.clone(), |to| here.join(to));
    let utf8 = |path: &std::path::Path| {
        path.to_str().map(str::to_owned).with_context(|| format!("{}: not UTF-8", path.display()))
    };
    let mut variables = environment(given.value("export"));
    let mut dialect = Dialect::of(System::Slurm);
    dialect.comment = given.value("comment").unwrap_or_default().to_owned();
    let is_appended = |mode: &str| mode.starts_with(['a', 'A']);
    if given.value("open-mode").is_some_and(is_appended) {
        dialect.old_output = OldOutput::Kept;
        variables.insert("SLURM_OPEN_MODE".to_owned(), "a".to_owned());
    }
    let array = given.value("array").map(array).transpose()?;
    if let Some((array, shift)) = &array {
        dialect.index_shift = *shift;
        describe_array(array, *shift, &mut variables);
    }
    let user = me();
    let file = |option: &str| given.value(option).map(|pattern| file_name(pattern, &user));
    let unnamed = if array.is_some() { "slurm-%A_%a.out" } else { "slurm-%j.out" };
    let depends = given.value("dependency").filter(|text| !text.is_empty());
    let name = name(given.value("job-name").unwrap_or_default());
    let time_limit = given.value("time").map(time_limit).transpose().map_err(anyhow::Error::msg)?;
    let partition = given.value("partition").map(|text| first_partition(command, text));
    let (profile, of_quality) = quality(command, given, client)?;
    let spec = JobSpec {
        queue: partition.transpose()?.or(of_quality),
        profile,
        slots: shape.slots()?.max(count(given, "mincpus")?.unwrap_or(1)),
        hosts: hosts(given)?,
        memory: memory_of(given, shape, gpus)?,
        array: array.map(|(array, _)| array),
        depends: depends.map(|text| dependency::read(text, client)).transpose()?,
        on_never: given.value("kill-on-invalid-dep").map(|answer| match answer {
            "yes" => OnNever::End,
            _ => OnNever::Keep,
        }),
        priority: given.value("nice").map_or(Ok(0), nice)?,
        rerun: rerun(given),
        time_limit: time_limit.flatten(),
        begin: moment(given, "begin")?.filter(|begin| *begin > super::now()),
        deadline: moment(given, "deadline")?,
        resources,
        features: features(given)?,
        warning: warning(command, given)?,
        sharing: if given.has("exclusive") { Sharing::Exclusive } else { Sharing::Shared },
        output: Some(file("output").unwrap_or_else(|| unnamed.to_owned())),
        error: file("error"),
        umask: umask(),
        held: given.has("hold"),
        reservation: given
            .value("reservation")
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .transpose()
            .map_err(anyhow::Error::msg)?,
        project: given.value("account").unwrap_or_default().to_owned(),
        dialect: Some(dialect),
        directory: utf8(&directory)?,
        notify: notify(given)?,
        name,
        ..JobSpec::default()
    };
    describe(&spec, given, shape, &utf8(&here)?, &mut variables);
    Ok(JobSpec { environment: variables.into_iter().collect(), ..spec })
}

/// Whom a job notifies: its user if nobody is named. Of what a grid does not know it notifies nobody.
fn notify(given: &Given) -> Result<Option<Box<Notify>>> {
    const OTHERS: [&str; 9] = [
        "NONE",
        "REQUEUE",
        "INVALID_DEPEND",
        "STAGE_OUT",
        "TIME_LIMIT",
        "TIME_LIMIT_90",
        "TIME_LIMIT_80",
        "TIME_LIMIT_50",
        "ARRAY_TASKS",
    ];
    let mut on = Vec::new();
    for kind in given.value("mail-type").unwrap_or("NONE").split(',') {
        match &*kind.trim().to_ascii_uppercase() {
            "ALL" => on.extend([Moments::Begin, Moments::End, Moments::Fail]),
            "BEGIN" => on.push(Moments::Begin),
            "END" => on.push(Moments::End),
            "FAIL" => on.push(Moments::Fail),
            other if OTHERS.contains(&other) => {}
            _ => anyhow::bail!("Invalid --mail-type specification"),
        }
    }
    if on.is_empty() {
        return Ok(None);
    }
    on.sort_unstable();
    on.dedup();
    let mail = given.value("mail-user").map(addresses);
    Ok(notification(on, mail.unwrap_or_default(), None))
}

/// A point in time that an option has.
fn moment(given: &Given, option: &'static str) -> Result<Option<Moment>> {
    let text = given.value(option).filter(|text| !text.is_empty());
    let read = |text: &str| begin_time(text, super::now(), &jiff::tz::TimeZone::system());
    let read =
        text.map(|text| read(text).with_context(|| format!("--{option}={text}: invalid time")));
    read.transpose()
}

/// The first of several partitions, without the star of the default one.
fn first_partition(command: &str, text: &str) -> Result<forebay_grid::vocabulary::QueueName> {
    let first = text.split(',').next().unwrap_or_default();
    if first.len() < text.len() {
        note!("{command}: warning: --partition={text}: only the first one is used");
    }
    first.trim_end_matches('*').parse().map_err(anyhow::Error::msg)
}

/// A higher number of nice is a lower priority.
fn nice(text: &str) -> Result<i32> {
    let number = if text.is_empty() {
        100
    } else {
        text.parse::<i32>().with_context(|| format!("--nice={text}"))?
    };
    Ok(number.saturating_neg())
}

fn rerun(given: &Given) -> Rerun {
    match (given.has("requeue"), given.has("no-requeue")) {
        (true, false) => Rerun::Rerunnable,
        (false, true) => Rerun::Once,
        _ => Rerun::AsQueue,
    }
}

/// What is known of a job when it is submitted, as variables of its environment.
fn describe(
    spec: &JobSpec,
    given: &Given,
    shape: Shape,
    here: &str,
    variables: &mut BTreeMap<String, String>,
) {
    let mut set = |key: &str, value: String| drop(variables.insert(key.to_owned(), value));
    set("SLURM_SUBMIT_DIR", here.to_owned());
    set("SLURM_JOB_NAME", spec.name.clone());
    if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        set("SLURM_SUBMIT_HOST", host.trim().to_owned());
    }
    set("SLURM_NTASKS", shape.tasks.to_string());
    set("SLURM_NPROCS", shape.tasks.to_string());
    set("SLURM_TASKS_PER_NODE", shape.tasks.to_string());
    if given.has("cpus-per-task") {
        set("SLURM_CPUS_PER_TASK", shape.cpus_per_task.to_string());
    }
    if !spec.project.is_empty() {
        set("SLURM_JOB_ACCOUNT", spec.project.clone());
    }
}

/// What programs ask of their array.
fn describe_array(array: &ArraySpec, shift: u32, variables: &mut BTreeMap<String, String>) {
    let count = array.count();
    let at = |place: u32| array.index_at(place).unwrap_or(shift) - shift;
    let step = if count > 1 { at(1) - at(0) } else { 1 };
    for (key, value) in [
        ("SLURM_ARRAY_TASK_COUNT", count),
        ("SLURM_ARRAY_TASK_MIN", at(0)),
        ("SLURM_ARRAY_TASK_MAX", at(count.saturating_sub(1))),
        ("SLURM_ARRAY_TASK_STEP", step),
    ] {
        variables.insert(key.to_owned(), value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_with_element_0_is_raised_by_one() {
        for (text, here, shift) in [
            ("0-9", "[1-10]", 1),
            ("1-9%4", "[1-9]%4", 0),
            ("0-10:5", "[1-11:5]", 1),
            ("7,0,3-4", "[1,4-5,8]", 1),
            ("5", "[5]", 0),
        ] {
            let (array, shifted) = array(text).unwrap();
            assert_eq!((array.to_string(), shifted), (here.to_owned(), shift), "{text}");
        }
        for text in ["", "x", "1-", "3-1", "1-3:0", "1,1", "4294967295"] {
            assert!(array(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus_and_memory_may_be_asked_for_with_each_gpu() {
        let given = |options: &[(&'static str, &str)]| {
            let mut given = Given::default();
            options.iter().for_each(|(name, value)| given.set(name, (*value).to_owned()));
            given
        };
        let one = Shape { tasks: 1, cpus_per_task: 1 };
        let each = given(&[("cpus-per-gpu", "4"), ("mem-per-gpu", "2G")]);
        assert_eq!(one.with_gpus(&each, 2).unwrap().slots().unwrap(), 8);
        assert_eq!(memory_of(&each, one, 2).unwrap(), Some(ByteSize(4 << 30)));
        assert!(one.with_gpus(&each, 0).is_err() && memory_of(&each, one, 0).is_err());
        let both = given(&[("cpus-per-gpu", "4"), ("cpus-per-task", "2")]);
        assert!(one.with_gpus(&both, 1).is_err());
    }

    #[test]
    fn a_signal_before_the_end_goes_to_steps_or_to_the_batch_script() {
        let of = |text: &str| {
            let mut given = Given::default();
            given.set("signal", text.to_owned());
            warning("sbatch", &given).map(|warning| warning.map(|warning| warning.to_string()))
        };
        for (text, here) in [
            ("USR1", "steps:USR1@1 min"),
            ("10@90", "steps:USR1@90 s"),
            ("B:USR2@30", "program:USR2@30 s"),
            ("RB:SIGTERM@300", "program:TERM@5 min"),
            ("R:INT", "steps:INT@1 min"),
        ] {
            assert_eq!(of(text).unwrap().as_deref(), Some(here), "{text}");
        }
        for text in ["KILL@60", "SIGABRT", "B:stop@10", "24@5"] {
            assert_eq!(of(text).unwrap(), None, "{text}");
        }
        for text in ["KIL@30", "USR1@x", "KILL@x", "X:USR1", "USR1@70000", "@30"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_constraint_is_about_the_features_of_one_host() {
        let of = |text: &str| {
            let mut given = Given::default();
            given.set("constraint", text.to_owned());
            features(&given).map(|features| features.map(|features| features.to_string()))
        };
        assert_eq!(of("ssd&(a|b)").unwrap().as_deref(), Some("ssd && (a || b)"));
        assert_eq!(of("ssd,fast").unwrap().as_deref(), Some("ssd && fast"));
        assert_eq!(of("a|b&c").unwrap().as_deref(), Some("(a || b) && c"));
        assert_eq!((of("").unwrap(), of("none").unwrap()), (None, None));
        assert!(of("[a|b]").is_err() && of("a*2").is_err() && of("a&").is_err());
    }

    #[test]
    fn names_hold_what_the_grid_takes() {
        assert_eq!(name("nf-a_[x*]"), "nf-a__x__");
        assert_eq!(name(&"é".repeat(100)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn exports_add_to_the_environment_or_replace_it() {
        let one = environment(Some("A_B=1,C_D=x=y"));
        assert_eq!(one.into_iter().map(|(k, v)| k + &v).collect::<Vec<_>>(), ["A_B1", "C_Dx=y"]);
        assert!(environment(Some("NONE")).is_empty());
        let all = environment(Some("ALL,A_B=1"));
        assert!(all.len() > 1 && all["A_B"] == "1" && environment(None).contains_key("PATH"));
    }

    #[test]
    fn what_is_known_only_later_stays_in_the_name_of_a_file() {
        assert_eq!(file_name("a.%u.%j.%N", "ann"), "a.ann.%j.%N");
        assert_eq!(file_name("a.%u", "5%"), "a.5%%");
        assert_eq!(file_name("%%u.%u.%%%u", "ann"), "%%u.ann.%%ann");
    }
}

//! bsub.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::dialect::{Dialect, OldOutput, System};
use forebay_grid::environment::Environment;
use forebay_grid::notify::{Moments, Notify};
use forebay_grid::parse::array::name_and_array;
use forebay_grid::spec::{JobSpec, Rerun, SCRIPT_BYTES_LIMIT, Sharing};
use forebay_grid::vocabulary::Moment;
use forebay_grid::warning::{Warned, Warning};

use super::super::input;
use super::super::row::{client, me};
use super::super::words::{
    Given, Grammar, Opt, Style, Takes, Until, directives, harmless, ignored, read, refused,
};
use super::group;
use super::login;
use super::requirement::Needs;
use super::units::{memory, point_in_time, run_limit, unit_for_limits};
use super::{default_queue, host_name};
use crate::commands::grid::clock::of_system;
use crate::commands::grid::placement::umask;
use crate::commands::grid::run::attached;
use crate::commands::grid::submit::notification;
use crate::commands::grid::wait::exit_of;
use crate::compat::addresses;

use Takes::{Nothing, Value};

const ONE_HOST: &str = "a job of a Forebay grid runs on one host";
const FILES_OF_JOBS: &str = "describe the job by options, or by a job file of forebay submit";
const NO_PENDING_LIMIT: &str = "a job waits until it can start; -t ends it at a point in time";
const NO_SSH: &str = "its connection is the grid's own; use -I, -Ip or -Is";

/// Every option of bsub.
const OPTIONS: &[Opt] = &[
    read("a", ' ', Value),
    ignored("alloc_flags", ' ', Value),
    read("app", ' ', Value),
    harmless("ar", ' ', Nothing),
    read("b", ' ', Value),
    read("B", ' ', Nothing),
    ignored("C", ' ', Value),
    ignored("c", ' ', Value),
    refused("clusters", ' ', Value, "a grid is the only cluster that it knows"),
    refused("cn_cu", ' ', Value, ONE_HOST),
    refused("cn_mem", ' ', Value, ONE_HOST),
    ignored("core_isolation", ' ', Value),
    ignored("csm", ' ', Value),
    read("cwd", ' ', Value),
    ignored("D", ' ', Value),
    refused("data", ' ', Value, "hosts of a grid see the same files; use forebay submit --input"),
    harmless("datachk", ' ', Nothing),
    harmless("datagrp", ' ', Value),
    read("e", ' ', Value),
    read("E", ' ', Value),
    read("env", ' ', Value),
    read("eo", ' ', Value),
    read("Ep", ' ', Value),
    refused("eptl", ' ', Value, NO_PENDING_LIMIT),
    refused("ext", ' ', Value, "a grid has no external schedulers"),
    refused("extsched", ' ', Value, "a grid has no external schedulers"),
    ignored("F", ' ', Value),
    refused("f", ' ', Value, "hosts of a grid see the same files"),
    ignored("freq", ' ', Value),
    read("g", ' ', Value),
    ignored("G", ' ', Value),
    read("gpu", ' ', Value),
    read("H", ' ', Nothing),
    harmless("hl", ' ', Nothing),
    refused("hostfile", ' ', Value, "a job of a Forebay grid runs on one host; use -m"),
    read("i", ' ', Value),
    read("is", ' ', Value),
    read("I", ' ', Nothing),
    read("Ip", ' ', Nothing),
    read("Is", ' ', Nothing),
    refused("IS", ' ', Nothing, NO_SSH),
    refused("ISp", ' ', Nothing, NO_SSH),
    refused("ISs", ' ', Nothing, NO_SSH),
    refused("IX", ' ', Nothing, "a grid does not forward X11; use -Is"),
    read("J", ' ', Value),
    read("Jd", ' ', Value),
    ignored("jobaff", ' ', Value),
    refused("jsdl", ' ', Value, FILES_OF_JOBS),
    refused("jsdl_strict", ' ', Value, FILES_OF_JOBS),
    ignored("jsm", ' ', Value),
    refused("json", ' ', Value, FILES_OF_JOBS),
    read("K", ' ', Nothing),
    refused("k", ' ', Value, "use forebay submit --checkpoint"),
    read("L", ' ', Value),
    refused("ln_mem", ' ', Value, ONE_HOST),
    refused("ln_slots", ' ', Value, ONE_HOST),
    ignored("Lp", ' ', Value),
    read("m", ' ', Value),
    read("M", ' ', Value),
    ignored("mig", ' ', Value),
    read("n", ' ', Value),
    read("N", ' ', Nothing),
    harmless("ne", ' ', Nothing),
    refused("network", ' ', Value, ONE_HOST),
    refused("nnodes", ' ', Value, ONE_HOST),
    ignored("notify", ' ', Value),
    read("o", ' ', Value),
    read("oo", ' ', Value),
    ignored("outdir", ' ', Value),
    ignored("p", ' ', Value),
    read("P", ' ', Value),
    refused("pack", ' ', Value, "submit each job by itself"),
    refused("ptl", ' ', Value, NO_PENDING_LIMIT),
    read("q", ' ', Value),
    read("Q", ' ', Value),
    read("R", ' ', Value),
    read("r", ' ', Nothing),
    ignored("rcacct", ' ', Value),
    read("rn", ' ', Nothing),
    ignored("rnc", ' ', Value),
    refused("s", ' ', Value, "a job that a run window stops is stopped by SIGSTOP"),
    ignored("S", ' ', Value),
    ignored("sla", ' ', Value),
    ignored("smt", ' ', Value),
    read("sp", ' ', Value),
    refused("stage", ' ', Value, "hosts of a grid see the same files"),
    ignored("step_cgroup", ' ', Value),
    read("t", ' ', Value),
    ignored("T", ' ', Value),
    harmless("ti", ' ', Nothing),
    harmless("tty", ' ', Nothing),
    read("u", ' ', Value),
    read("U", ' ', Value),
    harmless("ul", ' ', Nothing),
    ignored("v", ' ', Value),
    read("w", ' ', Value),
    read("wa", ' ', Value),
    read("wt", ' ', Value),
    harmless("We", ' ', Value),
    read("W", ' ', Value),
    read("x", ' ', Nothing),
    ignored("XF", ' ', Nothing),
    refused("yaml", ' ', Value, FILES_OF_JOBS),
    harmless("Zs", ' ', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "bsub", style: Style::Lsf, until: Until::FirstWord, tables: &[OPTIONS] };

/// What stands in a script's own lines: a job is submitted there, whatever else is asked for.
const LINES: Grammar = Grammar { tables: &[OPTIONS, &[harmless("V", ' ', Nothing)]], ..GRAMMAR };

/// What begins a line of options in a script.
const MARK: &str = "#BSUB";

/// Variables of another job, which a job does not inherit.
const OF_A_JOB: [&str; 3] = ["LSB_", "LS_SUBCWD", "LS_JOBPID"];

/// The options in a script's own lines.
///
/// # Errors
/// If one is bad or refused.
pub fn options_of(script: &str) -> Result<Given> {
    LINES.read_lines(MARK, script)
}

/// Whether a script has lines of options.
pub fn has_options(script: &str) -> bool {
    directives(MARK, script).is_ok_and(|lines| !lines.is_empty())
}

/// The script of a job with its name, and the options in it. Words on the command line are a command for the shell, as LSF
/// takes them; one word that names a file with lines of options is that file.
fn script(given: &Given) -> Result<(String, String, Given)> {
    if let [path] = &given.words[..]
        && let Ok(text) = std::fs::read_to_string(path)
        && has_options(&text)
    {
        let options = options_of(&text)?;
        return Ok((path.clone(), text, options));
    }
    if !given.words.is_empty() {
        let command = given.words.join(" ");
        return Ok((command.clone(), format!("#!/bin/sh\n{command}\n"), Given::default()));
    }
    let most = u64::from(SCRIPT_BYTES_LIMIT);
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes).context("standard input")?;
    ensure!(bytes.len() as u64 <= most, "the script is too long: at most {most} bytes");
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let text = text.context("the script is not UTF-8")?;
    ensure!(!text.trim().is_empty(), "No command is specified. Job not submitted.");
    let options = options_of(&text)?;
    Ok(("script".to_owned(), text, options))
}

/// What `-env` says, as the names and values of the environment.
fn environment(said: Option<&str>) -> BTreeMap<String, String> {
    let export = said.unwrap_or("all").split(',').map(str::trim).map(|part| match part {
        "all" => "ALL",
        "none" => "NONE",
        other => other,
    });
    let export = export.collect::<Vec<_>>().join(",");
    let mut variables = super::super::slurm::spec::environment(Some(&export));
    variables.retain(|key, _| !OF_A_JOB.iter().any(|start| key.starts_with(start)));
    variables
}

/// A point in time that an option has.
pub fn moment(given: &Given, option: &'static str) -> Result<Option<Moment>> {
    let text = given.value(option);
    let read = |text: &str| {
        of_system(text, point_in_time).with_context(|| {
            format!("-{option} {text}: write [[[year:]month:]day:]hour:minute, such as 20:30")
        })
    };
    text.map(read).transpose()
}

/// A name of the grid.
fn parsed<T: std::str::FromStr<Err = String>>(text: Option<&str>) -> Result<Option<T>> {
    text.map(str::parse).transpose().map_err(anyhow::Error::msg)
}

/// The signal before the end of a job: `-wa SIGNAL -wt [hours:]minutes`.
///
/// # Errors
/// If one of them is missing, or it is a command.
pub fn warning(given: &Given) -> Result<Option<Warning>> {
    let (signal, before) = match (given.value("wa"), given.value("wt")) {
        (None, None) => return Ok(None),
        (Some(signal), Some(before)) => {
            (signal.trim_matches(['\'', '"']), before.trim_matches(['\'', '"']))
        }
        (Some(_), None) => bail!("-wa needs -wt: how long before the end of the job it is warned"),
        (None, Some(_)) => bail!("-wt needs -wa: the signal by which the job is warned"),
    };
    let read = signal.parse().map_err(anyhow::Error::msg);
    let read = read.with_context(|| {
        format!("-wa {signal}: a job is warned by a signal, not by a command or a checkpoint")
    })?;
    let period = run_limit(before).with_context(|| format!("-wt {before}"))?;
    Ok(Some(Warning::new(read, Some(period.unwrap_or_default()), Warned::All)))
}

/// The fewest slots that `-n` takes.
fn slots(given: &Given) -> Result<u32> {
    let Some(text) = given.value("n") else { return Ok(1) };
    let least = text.split(',').next().unwrap_or_default();
    let number = least.parse::<u32>().ok().filter(|number| *number > 0);
    number.with_context(|| format!("{text}: Bad processor number"))
}

/// What a job of LSF's words is besides.
fn dialect(given: &Given) -> Dialect {
    let mut dialect = Dialect::of(System::Lsf);
    dialect.comment = given.value("Jd").unwrap_or_default().to_owned();
    if !given.has("oo") && !given.has("eo") {
        dialect.old_output = OldOutput::Kept;
    }
    dialect
}

/// The environment of a job that is submitted in a directory.
fn inherited(given: &Given, here: String) -> Environment {
    let mut variables = environment(given.value("env"));
    variables.insert("LS_SUBCWD".to_owned(), here);
    variables.insert("LSFUSER".to_owned(), me());
    variables.into_iter().collect()
}

/// What `-a` names. LSF runs a program of the site for each name; a grid has one such program, its submission filter.
fn applications(given: &Given, client: &mut Client) -> Result<Option<String>> {
    let names = given.every("a").collect::<Vec<_>>().join(" ");
    if names.is_empty() {
        return Ok(None);
    }
    let Answer::Limits { limits } = client.ask(&Ask::Limits)? else {
        bail!("the controller is a different version");
    };
    ensure!(
        limits.submit_filter,
        "-a {names} is not supported: the grid has no submission filter (submit_filter in grid.toml) that could act on it"
    );
    Ok(Some(names))
}

/// A job as bsub's options describe it; it has no program yet. The submission filter finds what `-a` names in LSB_SUB_ADDITIONAL of
/// its environment.
///
/// # Errors
/// If an option has a bad value, or wants what a grid does not do; if the controller does not answer.
pub fn job(given: &Given, client: &mut Client) -> Result<JobSpec> {
    let mut given = given.clone();
    given.fill_from("LSB_", VARIABLES);
    let spec = described(&given)?;
    let Some(names) = applications(&given, client)? else { return Ok(spec) };
    Ok(JobSpec { environment: spec.environment.with("LSB_SUB_ADDITIONAL", &names), ..spec })
}

/// Variables that stand for an option that neither the command line nor the script has.
const VARIABLES: &[(&str, &str)] =
    &[("DEFAULTQUEUE", "q"), ("DEFAULTPROJECT", "P"), ("DEFAULT_JOBGROUP", "g")];

/// A job as the options describe it without the grid.
fn described(given: &Given) -> Result<JobSpec> {
    let here = std::env::current_dir().context("cannot find the current directory")?;
    let utf8 = |path: &std::path::Path| {
        path.to_str().map(str::to_owned).with_context(|| format!("{}: not UTF-8", path.display()))
    };
    given.value("L").map_or(Ok(()), login::check)?;
    let (name, array) = name_and_array(given.value("J").unwrap_or_default())?;
    let slots = slots(given)?;
    let needs = Needs::of(given)?;
    // LSF's -M limits what rusage sets aside.
    let limit = given
        .value("M")
        .map(|text| memory(text, unit_for_limits().unwrap_or('K')))
        .transpose()?
        .flatten();
    needs.warn(GRAMMAR.command, limit.or(needs.memory));
    let (output, errors) =
        (given.value("oo").or(given.value("o")), given.value("eo").or(given.value("e")));
    let hosts = given.value("m").unwrap_or_default().parse()?;
    let priority =
        given.value("sp").map(|text| text.parse::<i32>().with_context(|| format!("-sp {text}")));
    Ok(JobSpec {
        queue: parsed(given.value("q").map(|name| name.split(' ').next().unwrap_or(name)))?,
        name: name
            .chars()
            .map(|c| if c.is_control() || "*\"".contains(c) { '_' } else { c })
            .collect(),
        slots,
        hosts,
        memory: limit.or(needs.memory),
        array,
        depends: given.value("w").map(str::parse).transpose()?,
        priority: priority.transpose()?.unwrap_or(0),
        rerun: match (given.has("r"), given.has("rn")) {
            (true, false) => Rerun::Rerunnable,
            (false, true) => Rerun::Once,
            _ => Rerun::AsQueue,
        },
        requeue_exits: given.value("Q").map(str::parse).transpose()?.unwrap_or_default(),
        environment: inherited(given, utf8(&here)?),
        time_limit: given.value("W").map(run_limit).transpose()?.flatten(),
        pre: given.value("E").map(str::to_owned),
        post: given.value("Ep").map(str::to_owned),
        profile: parsed(given.value("app"))?,
        reservation: parsed(given.value("U"))?,
        group: given.value("g").filter(|path| *path != "/").map(group::path).transpose()?,
        begin: moment(given, "b")?,
        deadline: moment(given, "t")?,
        resources: needs.resources,
        features: needs.features,
        warning: warning(given)?,
        sharing: if given.has("x") { Sharing::Exclusive } else { Sharing::Shared },
        output: output.map(str::to_owned),
        error: errors.filter(|errors| Some(*errors) != output).map(str::to_owned),
        directory: utf8(&given.value("cwd").map_or(here.clone(), |to| here.join(to)))?,
        umask: umask(),
        held: given.has("H"),
        project: given.value("P").unwrap_or_default().to_owned(),
        dialect: Some(dialect(given)),
        notify: notify(given),
        ..JobSpec::default()
    })
}

/// Whom a job notifies: -B when it begins, -N when it ends; to an address alone the report goes that no -o keeps.
fn notify(given: &Given) -> Option<Box<Notify>> {
    let is_report = given.has("u") && !given.has("o") && !given.has("oo");
    let mut on = Vec::new();
    on.extend(given.has("B").then_some(Moments::Begin));
    on.extend((given.has("N") || (is_report && !given.has("B"))).then_some(Moments::End));
    if on.is_empty() {
        return None;
    }
    let mail = given.value("u").map(addresses);
    notification(on, mail.unwrap_or_default(), None)
}

/// A script as `-L` wants it to be run.
fn as_login(given: &Given, text: String) -> String {
    let Some(shell) = given.value("L") else { return text };
    login::script(shell, &text).unwrap_or_else(|| {
        note!(
            "bsub: warning: -L {shell} has no effect: it is for scripts of sh, bash, dash, ksh and zsh, and the script names another \
             program in its first line, or the shell is another one"
        );
        text
    })
}

/// The file that is to be standard input.
fn input_of(given: &Given) -> &str {
    given.value("i").or(given.value("is")).unwrap_or_default()
}

/// Refuses a file for standard input where it cannot be opened for the job.
///
/// # Errors
/// If one is wanted.
pub fn refuse_input(given: &Given) -> Result<()> {
    input::refuse("-i", input_of(given))
}

/// Runs it; the exit code is 255 if the job is refused, with `-K` that of the job.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let is_attached = ["I", "Ip", "Is"].iter().any(|option| given.has(option));
    if is_attached {
        let words = given.words.clone();
        refuse_input(&given)?;
        ensure!(!words.is_empty(), "No command is specified. Job not submitted.");
        let login = given.value("L").and_then(login::command);
        let mut command: Vec<String> = match login {
            Some(login) => login.map(str::to_owned).to_vec(),
            None => vec!["/bin/sh".to_owned(), "-c".to_owned()],
        };
        command.push(words.join(" "));
        let job = job(&given, &mut client()?)?;
        let spec = JobSpec { command, output: None, error: None, rerun: Rerun::Once, ..job };
        return attached(spec, !given.has("I"));
    }
    let (name, text, in_script) = script(&given)?;
    let given = given.over(in_script);
    let text = input::redirected(&text, "-i", input_of(&given))?;
    let text = as_login(&given, text);
    let mut client = client()?;
    let job = job(&given, &mut client)?;
    let mut spec = JobSpec { command: vec![name], script: Some(text), ..job };
    // A job with a queue of its own is told so, another one that it is in the default queue.
    let told = match &spec.queue {
        Some(queue) => format!("queue <{queue}>"),
        None => format!("default queue <{}>", default_queue(&mut client)?),
    };
    if spec.name.is_empty() && spec.array.is_none() {
        let fine = |c: char| if c.is_control() || "*\"[]".contains(c) { '_' } else { c };
        let mut name: String = spec.command[0].chars().map(fine).collect();
        name.truncate(name.floor_char_boundary(forebay_grid::vocabulary::NAME_BYTES_MAX));
        spec.name = name;
    }
    spec.environment = spec.environment.with("LSB_SUB_HOST", &host_name());
    let job = client.submit(spec).context("Job not submitted")?;
    outln!("Job <{job}> is submitted to {told}.");
    if !given.has("K") {
        return Ok(ExitCode::SUCCESS);
    }
    note!("<<Waiting for dispatch ...>>");
    // It waits by connections of its own, which may break.
    drop(client);
    let exit = exit_of(job)?;
    note!("<<Job is finished>>");
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_options_needs_no_blank() {
        let given =
            options_of("#BSUB-J a[1-3]\n#BSUB -q night -n 2,4\n#BSUB -o %J.out\ntrue\n").unwrap();
        let spec = described(&given).unwrap();
        assert_eq!((&spec.name[..], spec.slots, spec.tasks()), ("a", 2, 3));
        assert_eq!(
            (spec.queue.unwrap().as_str(), spec.output.as_deref()),
            ("night", Some("%J.out"))
        );
    }

    #[test]
    fn no_option_takes_the_command_or_leaves_its_value_to_it() {
        for option in OPTIONS {
            let value = Some("v").filter(|_| option.takes == Value);
            let words = [format!("-{}", option.name)].into_iter().chain(value.map(str::to_owned));
            let words: Vec<String> = words.chain(["prog".to_owned()]).collect();
            match GRAMMAR.read(&words) {
                Ok(given) => assert_eq!(given.words, ["prog"], "{}", option.name),
                Err(error) => assert!(format!("{error}").contains("is not supported"), "{error}"),
            }
            let alike = OPTIONS.iter().filter(|other| other.name == option.name);
            assert_eq!(alike.count(), 1, "{}", option.name);
        }
    }

    #[test]
    fn a_line_that_asks_for_the_version_does_not_keep_a_job_from_being_submitted() {
        let given = options_of("#BSUB -V\n#BSUB -n 2\ntrue\n").unwrap();
        assert_eq!(described(&given).unwrap().slots, 2);
        let asked = GRAMMAR.read(&["-V".to_owned()]).unwrap_err();
        assert!(asked.is::<super::super::super::words::VersionAsked>());
    }
}

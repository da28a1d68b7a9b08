//! srun: a step inside a job, or an interactive job where there is none.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_grid::spec::{JobSpec, Rerun};
use forebay_grid::warning::{Warned, Warning};

use super::super::row::client;
use super::super::words::{
    Given, Grammar, Opt, Style, Takes, Until, harmless, ignored, read, refused,
};
use super::options::{JOB, JOB_VARIABLES, SRUN_VARIABLES};
use super::spec;
use crate::commands::grid::run::attached;

use Takes::{Maybe, Nothing, Value};

/// What only srun has, and what means something else in a step.
const STEP: &[Opt] = &[
    harmless("accel-bind", ' ', Value),
    harmless("bcast", ' ', Maybe),
    harmless("bcast-exclude", ' ', Value),
    harmless("compress", ' ', Maybe),
    harmless("cpu-bind", ' ', Value),
    harmless("disable-status", 'X', Nothing),
    refused("epilog", ' ', Value, IN_COMMAND),
    harmless("exact", ' ', Nothing),
    read("exclusive", ' ', Maybe),
    refused("het-group", ' ', Value, "a Forebay grid has no heterogeneous jobs"),
    harmless("interactive", ' ', Nothing),
    refused("jobid", ' ', Value, "srun starts processes in the job that it runs in"),
    read("kill-on-bad-exit", 'K', Maybe),
    ignored("label", 'l', Nothing),
    harmless("mpi", ' ', Value),
    harmless("msg-timeout", ' ', Value),
    refused("multi-prog", ' ', Nothing, "start the programs one by one"),
    refused("no-allocate", 'Z', Nothing, "every process belongs to a job"),
    harmless("overlap", ' ', Nothing),
    harmless("preserve-env", 'E', Nothing),
    refused("prolog", ' ', Value, IN_COMMAND),
    read("pty", ' ', Nothing),
    harmless("quit-on-interrupt", ' ', Nothing),
    refused("relative", 'r', Value, "a job of a Forebay grid runs on one host"),
    harmless("resv-ports", ' ', Maybe),
    harmless("send-libs", ' ', Maybe),
    harmless("slurmd-debug", ' ', Value),
    refused("task-epilog", ' ', Value, IN_COMMAND),
    refused("task-prolog", ' ', Value, IN_COMMAND),
    refused("test-only", ' ', Nothing, "use sbatch --test-only"),
    harmless("threads", 'T', Value),
    ignored("wait", 'W', Value),
    harmless("unbuffered", 'u', Nothing),
    read("version", 'V', Nothing),
    harmless("whole", ' ', Nothing),
    ignored("x11", ' ', Maybe),
];

const IN_COMMAND: &str = "call it in the command";

const GRAMMAR: Grammar =
    Grammar { command: "srun", style: Style::Gnu, until: Until::FirstWord, tables: &[STEP, JOB] };

/// The most processes that a step has.
const TASKS_MAX: u32 = 4096;

/// Runs it; the exit code is the highest of the processes.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read_command(arguments)?;
    ensure!(!given.words.is_empty(), "No command given to execute.");
    let is_in_job = std::env::var_os("FOREBAY_JOB").is_some();
    if is_in_job {
        return step(&given);
    }
    for variables in [JOB_VARIABLES, SRUN_VARIABLES] {
        given.fill_from("SLURM_", variables);
    }
    job(&given)
}

/// An interactive job.
fn job(given: &Given) -> Result<ExitCode> {
    ensure!(
        !given.has("exclusive"),
        "--exclusive is not supported: a host of a Forebay grid is shared; ask for all of its slots"
    );
    if given.has("output") || given.has("error") {
        bail!("--output and --error of srun outside a job are not supported: redirect its output");
    }
    spec::refuse_input(given)?;
    let mut client = client()?;
    let shape = spec::Shape::of(given)?;
    let words = given.words.clone();
    let command = if shape.tasks > 1 {
        let program = std::env::current_exe().context("cannot find this program")?;
        let program = program.to_str().context("this program's path is not UTF-8")?.to_owned();
        let call = ["compat", "call", "srun", "-n"].map(str::to_owned);
        [vec![program], call.to_vec(), vec![shape.tasks.to_string(), "--".to_owned()], words]
            .concat()
    } else {
        words
    };
    let job = spec::job(GRAMMAR.command, given, &mut client)?;
    let warning = job.warning.map(|warning| warning_for(warning, shape.tasks));
    let spec = JobSpec { command, output: None, error: None, rerun: Rerun::Once, warning, ..job };
    attached(spec, given.has("pty"))
}

/// A warning of a job with so many tasks: one task is the program of the job itself, which no srun has started.
fn warning_for(warning: Warning, tasks: u32) -> Warning {
    match warning.to {
        Warned::Steps if tasks == 1 => Warning { to: Warned::All, ..warning },
        Warned::Steps | Warned::All | Warned::Program => warning,
    }
}

/// Processes in the job that this one runs in.
fn step(given: &Given) -> Result<ExitCode> {
    let shape = spec::Shape::of(given)?;
    let of_job = || std::env::var("SLURM_NTASKS").ok().and_then(|text| text.parse().ok());
    let is_said = given.has("ntasks") || given.has("ntasks-per-node");
    let tasks = if is_said { shape.tasks } else { of_job().unwrap_or(1) };
    ensure!(tasks <= TASKS_MAX, "a step has at most {TASKS_MAX} tasks");
    let mut commands =
        (0..tasks).map(|rank| command(given, rank, tasks)).collect::<Result<Vec<_>>>()?;
    if let [only] = &mut commands[..] {
        // Signals and the exit code need nobody in between.
        return Err(only.exec()).with_context(|| given.words[0].clone());
    }
    let mut children = Vec::new();
    for command in &mut commands {
        match command.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                kill_all(&mut children);
                return Err(error).with_context(|| given.words[0].clone());
            }
        }
    }
    wait(children, given.has("kill-on-bad-exit"))
}

/// One process of a step.
fn command(given: &Given, rank: u32, tasks: u32) -> Result<Command> {
    let mut command = Command::new(&given.words[0]);
    command.args(&given.words[1..]);
    for (key, value) in [
        ("SLURM_STEP_ID", 0),
        ("SLURM_STEPID", 0),
        ("SLURM_PROCID", rank),
        ("SLURM_LOCALID", rank),
        ("SLURM_NTASKS", tasks),
        ("SLURM_NPROCS", tasks),
        ("SLURM_STEP_NUM_TASKS", tasks),
        ("SLURM_STEP_NUM_NODES", 1),
        ("SLURM_STEP_TASKS_PER_NODE", tasks),
    ] {
        command.env(key, value.to_string());
    }
    if let Some(cpus) = given.value("cpus-per-task") {
        command.env("SLURM_CPUS_PER_TASK", cpus);
    }
    if let Some(export) = given.value("export").filter(|export| *export != "ALL") {
        let kept = std::env::vars().filter(|(key, _)| key.starts_with("SLURM_") || key == "PATH");
        let kept: BTreeMap<String, String> = kept.chain(spec::environment(Some(export))).collect();
        let set: Vec<(String, String)> = command
            .get_envs()
            .filter_map(|(key, value)| {
                Some((key.to_str()?.to_owned(), value?.to_str()?.to_owned()))
            })
            .collect();
        command.env_clear().envs(kept).envs(set);
    }
    if let Some(directory) = given.value("chdir") {
        command.current_dir(directory);
    }
    redirect(given, rank, &mut command)?;
    Ok(command)
}

/// Gives one process of a step its own files, as far as they were named.
fn redirect(given: &Given, rank: u32, command: &mut Command) -> Result<()> {
    let open = |pattern: &str| -> Result<Stdio> {
        let name = file_name(pattern, rank);
        let by_variable = std::env::var("SLURM_OPEN_MODE").ok();
        let mode = given.value("open-mode").or(by_variable.as_deref()).unwrap_or("truncate");
        let is_appended = mode.starts_with(['a', 'A']);
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        let file = options.open(&name).with_context(|| name.clone())?;
        if !is_appended && file.metadata().is_ok_and(|of| of.is_file()) {
            file.set_len(0).with_context(|| name.clone())?;
        }
        Ok(file.into())
    };
    if let Some(pattern) = given.value("output") {
        let output = open(pattern)?;
        command.stdout(output);
        if !given.has("error") {
            // Both are added to one file.
            command.stderr(OpenOptions::new().append(true).open(file_name(pattern, rank))?);
        }
    }
    if let Some(pattern) = given.value("error") {
        command.stderr(open(pattern)?);
    }
    match given.value("input") {
        Some("none") => {
            command.stdin(Stdio::null());
        }
        Some(path) if path != "all" => {
            command.stdin(std::fs::File::open(path).with_context(|| path.to_owned())?);
        }
        _ if rank > 0 => {
            command.stdin(Stdio::null());
        }
        _ => {}
    }
    Ok(())
}

/// The name of a file of a process: what stands in it for the job is in the environment.
fn file_name(pattern: &str, rank: u32) -> String {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let mut name = String::new();
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            name.push(character);
            continue;
        }
        let mut width = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            width.push(digit);
        }
        let value = match rest.next() {
            Some('t') => rank.to_string(),
            Some('n') => "0".to_owned(),
            Some('s') => "0".to_owned(),
            Some('j') => variable("SLURM_JOB_ID"),
            Some('J') => format!("{}.0", variable("SLURM_JOB_ID")),
            Some('A') => Some(variable("SLURM_ARRAY_JOB_ID"))
                .filter(|id| !id.is_empty())
                .unwrap_or_else(|| variable("SLURM_JOB_ID")),
            Some('a') => variable("SLURM_ARRAY_TASK_ID"),
            Some('x') => variable("SLURM_JOB_NAME"),
            Some('u') => variable("USER"),
            Some('N') => variable("SLURMD_NODENAME"),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{width}{other}"),
            None => "%".to_owned(),
        };
        let width = width.parse::<usize>().unwrap_or(0).min(10);
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        name.push_str(&if is_number { format!("{value:0>width$}") } else { value });
    }
    name
}

fn kill_all(children: &mut [Child]) {
    for child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits for all processes; the highest exit code of them.
fn wait(mut children: Vec<Child>, kills_on_bad_exit: bool) -> Result<ExitCode> {
    let mut highest = 0;
    while let Some(mut child) = children.pop() {
        let status = child.wait()?;
        let value = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        highest = highest.max(value);
        if value != 0 && kills_on_bad_exit {
            kill_all(&mut children);
            break;
        }
    }
    Ok(ExitCode::from(u8::try_from(highest).unwrap_or(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_processes_have_their_rank() {
        assert_eq!(file_name("log_%t.%2t.%n%%%q", 3), "log_3.03.0%%q");
    }

    #[test]
    fn the_program_ends_the_options_of_srun() {
        let words = ["-n1", "--cpu-bind=q", "--nodes=1", "sh", "-c", "exit 3"].map(str::to_owned);
        let given = GRAMMAR.read(&words).unwrap();
        assert_eq!(given.words, ["sh", "-c", "exit 3"]);
        assert_eq!(spec::Shape::of(&given).unwrap(), spec::Shape { tasks: 1, cpus_per_task: 1 });
    }

    #[test]
    fn the_only_task_of_an_interactive_job_is_warned() {
        let of = |text: &str, tasks| warning_for(text.parse().unwrap(), tasks).to_string();
        assert_eq!(of("steps:USR1@1 min", 1), "USR1@1 min");
        assert_eq!(of("steps:USR1@1 min", 2), "steps:USR1@1 min");
        assert_eq!(of("program:USR1@1 min", 1), "program:USR1@1 min");
    }
}

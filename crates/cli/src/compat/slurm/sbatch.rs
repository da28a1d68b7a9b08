//! sbatch.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::spec::{JobSpec, SCRIPT_BYTES_LIMIT};

use super::super::input;
use super::super::row::client;
use super::super::words::{Given, Grammar, Style, Until, directives};
use super::options::{JOB, JOB_VARIABLES, SBATCH, SBATCH_VARIABLES};
use super::spec;
use super::units::moment;
use crate::commands::grid::wait::exit_of;

const GRAMMAR: Grammar = Grammar {
    command: "sbatch",
    style: Style::Gnu,
    until: Until::FirstWord,
    tables: &[JOB, SBATCH],
};

/// What begins a line of options in a script.
const MARK: &str = "#SBATCH";

/// The options in a script's own lines.
///
/// # Errors
/// If one is bad or refused.
pub fn options_of(script: &str) -> Result<Given> {
    GRAMMAR.read_lines(MARK, script)
}

/// Whether a script has lines of options.
pub fn has_options(script: &str) -> bool {
    directives(MARK, script).is_ok_and(|lines| !lines.is_empty())
}

/// The script of a job, with its name.
fn script(given: &Given) -> Result<(String, String)> {
    if let Some(command) = given.value("wrap") {
        ensure!(given.words.is_empty(), "--wrap excludes a script");
        return Ok((
            "wrap".to_owned(),
            format!("#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"),
        ));
    }
    let mut text = Vec::new();
    let most = u64::from(SCRIPT_BYTES_LIMIT);
    let (name, path) = match given.words.first() {
        None => ("sbatch".to_owned(), None),
        Some(path) => (path.rsplit('/').next().unwrap_or(path).to_owned(), Some(path)),
    };
    match path {
        None => std::io::stdin()
            .lock()
            .take(most + 1)
            .read_to_end(&mut text)
            .context("standard input")?,
        Some(path) => {
            let opened = std::fs::File::open(path);
            let opened = opened.with_context(|| format!("Unable to open file {path}"))?;
            opened.take(most + 1).read_to_end(&mut text).with_context(|| path.clone())?
        }
    };
    ensure!(text.len() as u64 <= most, "the script is too long: at most {most} bytes");
    let text = String::from_utf8(text).ok().filter(|text| !text.contains('\0'));
    let text = text.context("the script is not UTF-8")?;
    ensure!(!text.trim().is_empty(), "Batch script is empty!");
    ensure!(
        text.starts_with("#!"),
        "This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by the path to an interpreter.\n\
         sbatch: error: For instance: #!/bin/sh"
    );
    ensure!(
        !text.lines().next().unwrap_or_default().ends_with('\r'),
        "Batch script contains DOS line breaks (\\r\\n)\nsbatch: error: instead of expected UNIX line breaks (\\n)."
    );
    Ok((name, text))
}

/// The options of the environment.
fn of_environment() -> Given {
    let mut given = Given::default();
    for variables in [JOB_VARIABLES, SBATCH_VARIABLES] {
        given.fill_from("SBATCH_", variables);
    }
    given
}

/// Says on standard error, as sbatch does, when and where a job would start.
fn test_only(client: &mut Client, spec: JobSpec) -> Result<ExitCode> {
    let slots = spec.slots();
    let tried = client.ask(&Ask::Try { spec: Box::new(spec) }).context("allocation failure")?;
    let Answer::Tried { queue, host, start } = tried else { bail!("unexpected answer: {tried:?}") };
    match (start, host) {
        (Some(start), Some(host)) => note!(
            "sbatch: Job to start at {} using {slots} processors on nodes {host} in partition {queue}",
            moment(Some(start), "Unknown")
        ),
        _ => note!(
            "sbatch: Job to start at Unknown using {slots} processors in partition {queue}: the jobs before it have no time limits, or \
             something else than room keeps it waiting"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs it; the exit code is 1 if the job is refused, with `--wait` that of the job.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    let (name, text) = script(&given)?;
    let in_script = if given.has("wrap") { Given::default() } else { options_of(&text)? };
    let mut given = given.over(of_environment().over(in_script));
    if !given.has("job-name") {
        given.set("job-name", name.clone());
    }
    let text = input::redirected(&text, "--input", given.value("input").unwrap_or_default())?;
    let mut client = client()?;
    let arguments = given.words.get(1..).unwrap_or_default();
    let spec = JobSpec {
        command: [&[name], arguments].concat(),
        script: Some(text),
        ..spec::job(GRAMMAR.command, &given, &mut client)?
    };
    if given.has("test-only") {
        return test_only(&mut client, spec);
    }
    let job = client.submit(spec).context("Batch job submission failed")?;
    if given.has("parsable") {
        outln!("{job}");
    } else {
        outln!("Submitted batch job {job}");
    }
    if !given.has("wait") {
        return Ok(ExitCode::SUCCESS);
    }
    // It waits by connections of its own, which may break.
    drop(client);
    exit_of(job)
}

//! `forebay submit --batch`: many jobs through one connection, without waiting for each answer.
//!
//! Each line is submitted by itself: one that is refused holds none of the others up. Numbers are printed in
//! the order of the lines, as soon as the jobs are durable. Bounded: [`TOGETHER_MAX`] lines at a time.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use forebay_engine::protocol::Answer;
use forebay_engine::protocol::client::Client;
use forebay_grid::spec::JobSpec;

use super::no_sense;
use crate::output::put;

/// The most lines that are submitted together.
const TOGETHER_MAX: usize = 1024;

/// How the numbers are printed.
#[derive(Clone, Copy)]
pub enum Print {
    Text,
    Json,
}

/// A line of the file that is a job.
struct Line {
    number: u64,
    command: String,
}

/// Submits a job as `like` for each line; 2 if one of them was refused.
pub fn submit_lines(
    client: &mut Client,
    like: &JobSpec,
    file: &Path,
    print: Print,
) -> Result<ExitCode> {
    let shown = || format!("--batch {}", file.display());
    let source: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).with_context(shown)?))
    };
    let mut lines = (1..).zip(source.lines()).filter_map(|(number, line)| match line {
        Ok(line) if line.trim().is_empty() || line.trim_start().starts_with('#') => None,
        line => Some(line.map(|command| Line { number, command })),
    });
    let mut code = ExitCode::SUCCESS;
    loop {
        let next: std::io::Result<Vec<Line>> = lines.by_ref().take(TOGETHER_MAX).collect();
        let next = next.with_context(shown)?;
        if next.is_empty() {
            return Ok(code);
        }
        if submit_some(client, like, &next, print)? > 0 {
            code = ExitCode::from(2);
        }
    }
}

/// Submits lines together; how many were refused.
fn submit_some(client: &mut Client, like: &JobSpec, lines: &[Line], print: Print) -> Result<usize> {
    let spec = |line: &Line| {
        let command = ["sh", "-c", &line.command].map(str::to_owned).to_vec();
        JobSpec { command, ..like.clone() }
    };
    let specs = lines.iter().map(spec).collect();
    let mut numbers = String::new();
    let mut taken = None;
    let mut refused = 0;
    let answered = client.submit_all(specs, |place, answer| {
        let number = lines[place].number;
        match (answer, print) {
            (Answer::Accepted { job }, print) => {
                taken = Some((taken.map_or(job, |(first, _)| first), job));
                match print {
                    Print::Text => writeln!(numbers, "{job}")?,
                    Print::Json => {
                        let said = serde_json::json!({ "line": number, "job": job });
                        writeln!(numbers, "{said}")?;
                    }
                }
            }
            (Answer::Refused(refusal), _) => {
                note!("forebay: line {number}: {refusal}");
                refused += 1;
            }
            (answer, _) => return Err(no_sense(&answer)),
        }
        Ok(())
    });
    put(numbers.as_bytes()).with_context(|| match taken {
        Some((first, last)) => format!("jobs {first} to {last} were accepted"),
        None => "no job was accepted".to_owned(),
    })?;
    answered?;
    Ok(refused)
}

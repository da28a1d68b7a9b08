//! Waiting for the end of jobs: `forebay wait`.

use std::process::ExitCode;

use anyhow::Result;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::vocabulary::{JobId, Target};

use super::{Which, no_sense};
use crate::output::put_json_line;

/// Wait until jobs have ended.
///
/// Exits with the exit code of the job; of several, with the first that is not 0, in the order in which they are named.
/// An array has ended when all of its elements have; its exit code is that of the first one that failed. Jobs may be
/// waited for before and after their end, until the grid forgets them, also while the controller restarts. For a flow: forebay flow run --wait.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay wait 12
  forebay wait 12 13 17 && ./publish.sh
  forebay wait 12 --json")]
pub struct Wait {
    #[command(flatten)]
    which: Which,
    /// Jobs, by number.
    #[arg(required = true, value_parser = whole_job)]
    jobs: Vec<JobId>,
    /// Print JSON: an object a line, as each job has ended.
    #[arg(long)]
    json: bool,
}

/// The number of a job; elements of arrays are not waited for alone.
fn whole_job(text: &str) -> Result<JobId, String> {
    match text.parse::<Target>() {
        Ok(Target { job, index: None }) => Ok(job),
        Ok(Target { job, index: Some(_) }) => {
            Err(format!("an element of an array cannot be waited for alone: name job {job}"))
        }
        Err(error) => Err(error),
    }
}

impl Wait {
    pub fn run(self) -> Result<ExitCode> {
        // A grid that is not there is said at once. Later it may be unreachable for a while.
        drop(self.which.client()?);
        let mut first = 0;
        for job in self.jobs {
            let answer = self.which.wait(&Ask::Wait { job });
            let answer = answer.map_err(|error| self.which.or_forgotten(job.into(), error))?;
            let Answer::Ended { value } = answer else { return Err(no_sense(&answer)) };
            if self.json {
                put_json_line(&serde_json::json!({ "job": job, "exit": value }))?;
            } else {
                self.which.say_end(job);
            }
            first = if first == 0 { value } else { first };
        }
        Ok(ExitCode::from(first))
    }
}

//! The folders of a result while it is made: programs, which stay, and what jobs print and record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_workload::mix::Plan;
use forebay_workload::program::Program;

use crate::error::{Error, Result};
use crate::record::{Exit, Record, Run, State};

/// Folders of a result; made for it, so that everything in them is its own.
pub struct Folders {
    /// Programs of the classes: they repeat a job by hand.
    programs: PathBuf,
    /// What jobs print, and the records of their steps, while they run; the logs of failed jobs stay.
    /// A folder for each stage of each run, because jobs of other stages have the same names.
    jobs: PathBuf,
}

impl Folders {
    /// Makes them in `out`, with the programs of `plan`.
    ///
    /// # Errors
    /// [`Error::Io`] if one is there already, or something cannot be written; nothing is left then.
    pub fn make(out: &Path, plan: &Plan) -> Result<Folders> {
        let folders = Folders { programs: out.join("programs"), jobs: out.join("jobs") };
        fs::create_dir(&folders.programs).map_err(Error::io("make", &folders.programs))?;
        if let Err(error) = fs::create_dir(&folders.jobs) {
            let _ = fs::remove_dir(&folders.programs);
            return Err(Error::io("make", &folders.jobs)(error));
        }
        match folders.write_programs(plan) {
            Ok(()) => Ok(folders),
            Err(error) => {
                folders.remove();
                Err(error)
            }
        }
    }

    fn write_programs(&self, plan: &Plan) -> Result<()> {
        let of_jobs = plan.stages.iter().flat_map(|stage| &stage.jobs).map(|job| &job.program);
        let of_inputs = plan.inputs.iter().map(|input| &input.program);
        let programs: BTreeMap<&str, &Program> =
            of_jobs.chain(of_inputs).map(|program| (program.name.as_str(), &**program)).collect();
        for program in programs.into_values() {
            let path = self.program(program);
            let text = toml::to_string(program)
                .map_err(|error| Error::Record { path: path.clone(), reason: error.to_string() })?;
            fs::write(&path, text).map_err(Error::io("write", &path))?;
        }
        Ok(())
    }

    /// The file of a program.
    pub fn program(&self, program: &Program) -> PathBuf {
        self.programs.join(format!("{}.toml", program.name))
    }

    /// A folder for the jobs that make the inputs of a subject.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make_for_inputs(&self, subject: usize) -> Result<PathBuf> {
        let folder = self.jobs.join(format!("inputs-{}", subject + 1));
        fs::create_dir(&folder).map_err(Error::io("make", &folder))?;
        Ok(folder)
    }

    /// A folder for the jobs of a stage of a run.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make_for_stage(&self, run: usize, stage: usize) -> Result<PathBuf> {
        let folder = self.of_stage(run, stage);
        fs::create_dir(&folder).map_err(Error::io("make", &folder))?;
        Ok(folder)
    }

    fn of_stage(&self, run: usize, stage: usize) -> PathBuf {
        self.jobs.join(format!("run-{}-stage-{}", run + 1, stage + 1))
    }

    /// Removes what only mattered while jobs ran.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn clear(&self, record: &Record, subjects: usize) -> Result<()> {
        let all_well = record.runs.iter().flat_map(Run::jobs).all(|job| job.exit == Exit::Success);
        if all_well && record.state == State::Complete {
            return fs::remove_dir_all(&self.jobs).map_err(Error::io("remove", &self.jobs));
        }
        for subject in 0..subjects {
            let _ = fs::remove_dir_all(self.jobs.join(format!("inputs-{}", subject + 1)));
        }
        for (number, run) in record.runs.iter().enumerate() {
            for (at, stage) in run.stages.iter().enumerate() {
                let folder = self.of_stage(number, at);
                for job in stage.jobs.iter().filter(|job| job.exit == Exit::Success) {
                    for ending in ["log", "steps"] {
                        let _ = fs::remove_file(folder.join(format!("{}.{ending}", job.name)));
                    }
                }
                // Stays if something is in it.
                let _ = fs::remove_dir(folder);
            }
        }
        let _ = fs::remove_dir(&self.jobs);
        Ok(())
    }

    /// Removes them, for a result that does not come.
    pub fn remove(&self) {
        for folder in [&self.programs, &self.jobs] {
            // The error that led here is the one to report.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

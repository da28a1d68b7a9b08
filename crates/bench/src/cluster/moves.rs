//! How long nobody answers when a fileset is moved, and when its owner is killed: a program on another node makes and removes
//! a file again and again, and notes the longest time between two answers.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::report::Section;
use super::trial::Trial;
use crate::figure::Figures;
use crate::load::Job;

/// How long the program runs before anything happens.
const BEFORE: Duration = Duration::from_secs(3);
/// How long it runs at an orderly move, and when the owner is killed, in seconds.
const MOVE_SECONDS: f64 = 20.0;
const KILL_SECONDS: f64 = 45.0;
/// Files of a directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// The fileset.
const FILESET: &str = "data";

impl Bench<'_> {
    /// Moves a fileset, kills its owner, fills it, and kills its owner again.
    ///
    /// # Errors
    /// If nobody answers again.
    ///
    /// # Panics
    /// If a command refuses.
    pub fn moves(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        const MOVED: &str = "moved in order";
        let section = Section::begin(sections, "Time without answers", MOVED);
        for round in 0..self.rounds {
            let figures = self.silence(trial, MOVE_SECONDS, |trial, owner| {
                let next = format!("n{}", (owner + 1) % trial.nodes());
                trial
                    .cluster
                    .forebay(owner, &["fileset", "owner", FILESET, "--move", &next])
                    .succeeds();
            })?;
            section.note(round, MOVED, &figures);
            // The move pins it there.
            let free = ["fileset", "owner", FILESET, "--move", "auto"];
            trial.cluster.forebay(0, &free).succeeds();
            section.note(round, "its owner killed", &self.kill(trial)?);
        }
        let files = self.amounts.taken_over;
        let full = format!("its owner killed, {files} files");
        eprintln!("making {files} files");
        let (directories, place) =
            (files.div_ceil(FILES_PER_DIRECTORY), trial.on_owner(FILESET)?.join("full"));
        self.jobs().run(&place, &Job::Make)?;
        self.jobs().run(&place, &Job::Fill { directories, files: FILES_PER_DIRECTORY })?;
        section.note(0, &full, &self.kill(trial)?);
        self.jobs().run(&trial.on_owner(FILESET)?.join("full"), &Job::Remove).map(drop)
    }

    /// Kills the owner, and mounts it again afterwards.
    fn kill(&self, trial: &Trial) -> Result<Figures> {
        let owner = trial.owner(FILESET)?;
        let figures =
            self.silence(trial, KILL_SECONDS, |trial, owner| trial.cluster.kill(owner))?;
        trial.cluster.mount(owner);
        Ok(figures)
    }

    /// Runs the program, and has something happen to the owner meanwhile.
    fn silence(
        &self,
        trial: &Trial,
        seconds: f64,
        happen: impl FnOnce(&Trial, usize),
    ) -> Result<Figures> {
        let (owner, place) = (trial.owner(FILESET)?, trial.on_another(FILESET)?);
        std::thread::scope(|scope| {
            let pulse = scope.spawn(|| self.jobs().run(&place, &Job::Pulse { seconds }));
            self.interrupt.sleep(BEFORE)?;
            happen(trial, owner);
            pulse.join().expect("the thread does not panic")
        })
    }
}

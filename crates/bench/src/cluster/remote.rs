//! Another node than the owner's against clients of networked peers on another node than their server.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Bench;
use super::report::Section;
use super::trial::Trial;
use crate::figure::{Figure, Figures};
use crate::load::{Job, Jobs};
use crate::peer::{Cell, Chore, Peer, bring_up};

/// Forebay on another node.
pub const ANOTHER: &str = "Forebay, another node";
/// Forebay on the owner's node.
const OWNER: &str = "Forebay, the owner's node";

impl Bench<'_> {
    /// Measures all subjects in turn.
    ///
    /// # Errors
    /// If Forebay cannot be measured; after a signal. What a peer cannot do is in the report.
    pub fn remote(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        let section = Section::begin(sections, "On another node", ANOTHER);
        section.peers = self.peers.iter().map(|peer| peer.label().to_owned()).collect();
        for round in 0..self.rounds {
            for turn in 0..self.peers.len() + 1 {
                let turn = (turn + round) % (self.peers.len() + 1);
                match self.peers.get(turn) {
                    Some(peer) => self.measure_peer(round, *peer, section)?,
                    None => {
                        let places = [
                            (ANOTHER, trial.on_another("data")?),
                            (OWNER, trial.on_owner("data")?),
                        ];
                        for (name, place) in places {
                            let figures = self.measure_remote(self.jobs(), &place)?;
                            section.note(round, name, &figures);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Brings a peer up on two nodes, measures it on the client's, and takes it down.
    fn measure_peer(&self, round: usize, peer: Peer, section: &mut Section) -> Result<()> {
        eprintln!("bringing {} up", peer.label());
        // The name is short: paths of sockets have 107 bytes at most.
        let folder = self.scratch.join(format!("p{}", peer as u8));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let (server, client) = Cell::open_pair(self.interrupt)?;
        let up = bring_up(peer, &server, &client, &folder, &self.program, self.interrupt);
        let (image, ready) = match up {
            Ok((image, ready)) => (Some(image), ready),
            Err(error) => (None, Err(error)),
        };
        let measured = ready.and_then(|ready| {
            let jobs = Jobs { interrupt: self.interrupt, within: Some(&client) };
            section.versions.insert(peer.label().to_owned(), ready.version.clone());
            self.measure_remote(jobs, &ready.durable)
        });
        match &measured {
            Ok(figures) => section.note(round, peer.label(), figures),
            Err(error) => section.refuse(round, peer.label(), &format!("{error:#}")),
        }
        let ended = [client.end(), server.end()];
        if let Some(image) = image {
            image.remove()?;
        }
        self.interrupt.check()?;
        ended.into_iter().collect::<Result<()>>()?;
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }

    fn measure_remote(&self, jobs: Jobs<'_>, place: &Path) -> Result<Figures> {
        let (amounts, directory) = (&self.amounts, place.join("load"));
        let tree = Chore::Tree { archive: self.archive.clone(), files: amounts.tree_files };
        let mut all = Figures::new();
        for job in [
            Job::Metadata(amounts.metadata.clone()),
            Job::Chore(tree),
            Job::Sequential(amounts.sequential.clone()),
        ] {
            let figures = self.fresh(jobs, &directory, |jobs, at| jobs.run(at, &job))?;
            all.extend(figures.into_iter().map(|(figure, value)| match figure {
                Figure::SequentialWrite => (Figure::SyncedWrite, value),
                figure => (figure, value),
            }));
        }
        Ok(all)
    }
}

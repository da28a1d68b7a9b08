//! A fake store: one for each fileset, fenced by epochs.

use forebay_base::{Epoch, FilesetId};

use super::files::States;

#[derive(Clone, Debug)]
pub enum Request {
    Open(Epoch),
    Commit(Epoch, u64, States),
}

#[derive(Clone, Debug)]
pub enum Answer {
    Opened(Epoch, States),
    Failed(Epoch),
    Committed(Epoch, u64),
    Fenced,
}

/// What is committed of one fileset.
#[derive(Clone, Debug, Default)]
pub struct Store {
    fence: Epoch,
    pub states: States,
}

impl Store {
    /// Carries a request out. A commit must build on everything that was committed before.
    pub fn execute(&mut self, fileset: FilesetId, request: Request) -> Result<Answer, String> {
        match request {
            Request::Open(epoch) if epoch < self.fence => Ok(Answer::Failed(epoch)),
            Request::Open(epoch) => {
                self.fence = epoch;
                Ok(Answer::Opened(epoch, self.states.clone()))
            }
            Request::Commit(epoch, ..) if epoch < self.fence => Ok(Answer::Fenced),
            Request::Commit(epoch, generation, states) => {
                for (object, former) in &self.states {
                    let now = states.get(object).map_or(&[][..], |it| &it.lineage);
                    if !now.starts_with(&former.lineage) {
                        return Err(format!(
                            "epoch {epoch} of fileset {fileset} commits object {object} as {now:?} over {:?}",
                            former.lineage
                        ));
                    }
                }
                self.states = states;
                Ok(Answer::Committed(epoch, generation))
            }
        }
    }
}

//! The rules of the policy that place new files.

use forebay_fs::Namespace;
use parking_lot::Mutex;

use super::Running;
use crate::commands::policy;
use crate::control::Answer;
use crate::home::Home;
use crate::output::chain;

/// Why some of the rules are ignored, if some are.
pub struct Placing(Mutex<Vec<String>>);

impl Placing {
    /// Has new files lie as the policy of a file system says. A fault does not keep it from being mounted.
    pub fn begin(home: &Home, fs: &Namespace) -> Placing {
        let placing = Placing(Mutex::default());
        if let Err(error) = placing.renew(home, fs) {
            let why = chain(&error);
            tracing::error!(why, "new files lie in the pools of their filesets");
            placing.0.lock().push(why);
        }
        placing
    }

    /// As the policy says now. If it cannot be read, the rules before it stay in force.
    fn renew(&self, home: &Home, fs: &Namespace) -> anyhow::Result<()> {
        let places = policy::of_home(home)?.map_or_else(Vec::new, |rules| rules.place);
        let faults = fs.place_files(&places);
        for fault in &faults {
            tracing::warn!(fault, "a rule that places new files is ignored");
        }
        *self.0.lock() = faults;
        Ok(())
    }

    /// Why some of the rules are ignored.
    pub fn faults(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Running {
    /// Puts the rules of a policy in force that was applied.
    pub(super) fn place_files(&self) -> Answer {
        let renewed = self.placing.renew(&self.home, &self.fs);
        match renewed.and_then(|()| self.renew_runs()) {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Refused { reason: chain(&error) },
        }
    }
}

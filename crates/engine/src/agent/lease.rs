//! The lease of the host: until when its jobs may run. A lease that was over is not simply renewed.
//!
//! When a lease is over, the shims end their jobs, and if they are stopped, the watchdog does. If all of them stood still with the agent, the next
//! grant could come before any of them has looked at the clock, and jobs would go on that run elsewhere by now; an order to start a job that
//! is from before could be carried out as well. So after a lease that was over, the agent ends everything from before it itself, and only then lets
//! jobs run again.

use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_grid::event::Memory;
use forebay_process::machine::boot_id;

use super::Agent;
use crate::files;
use crate::run::{self, fence, uptime_ms};

/// How often the agent looks whether what was ended is gone, before it waits for the next grant, and how long in between.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(10);

impl Agent {
    /// Lets jobs run for so long from when the message was sent that is answered by this.
    pub(super) fn take_grant(&mut self, lease_ms: u64) {
        self.lease_ms = lease_ms;
        self.is_granted = true;
        let Some(sent) = self.sent_ms.pop_front() else { return };
        if let Err(error) = self.renew(sent + lease_ms).and_then(|()| self.settle_memory()) {
            tracing::error!("the lease of this host is not renewed: {error:#}");
        }
    }

    fn renew(&self, until_ms: u64) -> Result<()> {
        if run::granted(&self.folder) <= uptime_ms() {
            self.end_what_is_from_before()?;
        }
        run::grant(&self.folder, until_ms)
    }

    fn end_what_is_from_before(&self) -> Result<()> {
        for _ in 0..LOOKS {
            if fence::all_are_over(&self.folder)? {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        let all = fence::all_are_over(&self.folder)?;
        ensure!(all, "the lease had expired, and jobs from before it have not exited yet");
        Ok(())
    }

    /// What was lost before the agent joined is settled with the first grant.
    fn settle_memory(&mut self) -> Result<()> {
        if self.memory == Memory::Lost {
            files::replace(&self.folder.join("boot"), boot_id()?.as_bytes())?;
            self.memory = Memory::Kept;
        }
        Ok(())
    }
}

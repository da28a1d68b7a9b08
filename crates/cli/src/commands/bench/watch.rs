//! What people see of a run while it runs, and how they end it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use forebay_study::run::{Observer, Progress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::display::Display;

/// Exit code after a signal that ended the run: 128 and SIGINT's number, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Shows what is going on, and ends it at a signal.
pub struct Watch {
    signal: Arc<AtomicBool>,
    display: Display,
}

impl Watch {
    /// Takes over SIGINT, SIGTERM and SIGHUP.
    pub fn start() -> Result<Watch> {
        let signal = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(number, Arc::clone(&signal))?;
        }
        Ok(Watch { signal, display: Display::new() })
    }

    /// Leaves the last line behind.
    pub fn end(&mut self) {
        self.display.end();
    }
}

impl Observer for Watch {
    fn progress(&mut self, progress: Progress) {
        self.display.show(&progress);
    }

    fn interrupted(&self) -> Option<String> {
        self.signal.load(Ordering::SeqCst).then(|| "interrupted".to_owned())
    }
}

//! Signals of the commands that send one to jobs.

use anyhow::{Result, bail};
use forebay_grid::event::Verb;

/// What a signal is to the grid. `option` is how the command line names it, up to the signal.
pub fn verb_of(option: &str, signal: &str) -> Result<Verb> {
    let upper = signal.to_ascii_uppercase();
    Ok(match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "KILL" | "9" | "TERM" | "15" | "INT" | "2" => Verb::Kill,
        "STOP" | "19" | "TSTP" | "20" => Verb::Hold,
        "CONT" | "18" => Verb::Release,
        _ => match signal.parse() {
            Ok(signal) => Verb::Signal(signal),
            Err(_) => bail!(
                "{option}{signal}: a Forebay grid ends (TERM, KILL, INT), stops (STOP) and continues (CONT) jobs, and sends HUP, \
                 QUIT, USR1, USR2 and WINCH"
            ),
        },
    })
}

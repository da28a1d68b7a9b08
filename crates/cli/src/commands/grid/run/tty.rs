//! The terminal at which the user sits.

use std::io::IsTerminal as _;

use anyhow::Result;
use forebay_engine::terminal::frame::{Size, Terminal};
use forebay_engine::terminal::link::modes_of;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Whether standard input and output both are a terminal.
pub fn is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Its size.
pub fn size() -> Result<Size> {
    let size = tcgetwinsize(rustix::stdio::stdout())?;
    Ok(Size { rows: size.ws_row, columns: size.ws_col })
}

/// The terminal passes every key on as it is; dropped, it is again as it was.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Remembers how the terminal is; what the job's terminal has to be like.
    pub fn prepare() -> Result<(Raw, Terminal)> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let terminal = Terminal { size: size()?, modes: modes_of(&before) };
        Ok((Raw { before }, terminal))
    }

    /// Begins, or begins again when something else has changed the terminal.
    pub fn enter(&self) -> Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

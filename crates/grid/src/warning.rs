//! A warning of a job: a signal some time before it is ended for its time limit or its deadline, so that it can save what it has.
//!
//! Written `USR1@5 min`, `program:TERM@90 s` or `USR2`, which is a minute before the end.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::parse::period::Period;
use crate::vocabulary::as_text;

/// How long before the end a warning comes that does not say it.
const BEFORE: Period = Period::seconds(60);

/// The signal of a warning: one that a program may understand, and after which it may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is that of the system")]
pub enum WarningSignal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Alrm,
    Term,
    Cont,
    Urg,
    Winch,
}

impl WarningSignal {
    const ALL: [(WarningSignal, &str, u8); 10] = [
        (WarningSignal::Hup, "HUP", 1),
        (WarningSignal::Int, "INT", 2),
        (WarningSignal::Quit, "QUIT", 3),
        (WarningSignal::Usr1, "USR1", 10),
        (WarningSignal::Usr2, "USR2", 12),
        (WarningSignal::Alrm, "ALRM", 14),
        (WarningSignal::Term, "TERM", 15),
        (WarningSignal::Cont, "CONT", 18),
        (WarningSignal::Urg, "URG", 23),
        (WarningSignal::Winch, "WINCH", 28),
    ];

    fn entry(self) -> (&'static str, u8) {
        let found = WarningSignal::ALL.into_iter().find(|(signal, ..)| *signal == self);
        let (_, name, number) = found.expect("each is listed");
        (name, number)
    }

    /// Its name without SIG.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Its number on Linux.
    #[must_use]
    pub fn number(self) -> u8 {
        self.entry().1
    }
}

impl FromStr for WarningSignal {
    type Err = String;

    /// By its name, with SIG before it or without, or by its number.
    fn from_str(text: &str) -> Result<WarningSignal, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let number = text.parse::<u8>().ok();
        let mut all = WarningSignal::ALL.into_iter();
        let found = all.find(|(_, known, of)| *known == name || number == Some(*of));
        found.map(|(signal, ..)| signal).ok_or_else(|| {
            let all = WarningSignal::ALL.map(|(_, name, _)| name).join(", ");
            format!("signal \"{}\" of a warning: choose from {all}", text.escape_debug())
        })
    }
}

/// Which processes of a job are warned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Warned {
    /// All of them.
    #[default]
    All,
    /// Its program alone: of a script the shell that runs it.
    Program,
    /// Those that srun has started, as Slurm does it.
    Steps,
}

impl Warned {
    const ALL: [(Warned, &str); 3] =
        [(Warned::All, "all"), (Warned::Program, "program"), (Warned::Steps, "steps")];
}

/// A signal some time before the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Warning {
    /// The signal.
    pub signal: WarningSignal,
    /// How long before the end.
    pub before: Period,
    /// Who gets it.
    pub to: Warned,
}

impl Warning {
    /// A signal so long before the end; a minute if that is not said.
    #[must_use]
    pub fn new(signal: WarningSignal, before: Option<Period>, to: Warned) -> Warning {
        Warning { signal, before: before.unwrap_or(BEFORE), to }
    }
}

impl FromStr for Warning {
    type Err = String;

    fn from_str(text: &str) -> Result<Warning, String> {
        let fault = |why: String| {
            format!("warning \"{}\": {why}; write it as in USR1@5min", text.escape_debug())
        };
        let (to, rest) = match text.trim().split_once(':') {
            Some((to, rest)) if !to.contains('@') => {
                let known = Warned::ALL.into_iter().find(|(_, name)| *name == to);
                let known = known.ok_or_else(|| {
                    fault("before the colon write all, program or steps".to_owned())
                });
                (known?.0, rest)
            }
            _ => (Warned::All, text.trim()),
        };
        let (signal, before) = match rest.split_once('@') {
            Some((signal, before)) => {
                let before = before.parse::<Period>().map_err(|error| fault(error.to_string()));
                (signal, Some(before?))
            }
            None => (rest, None),
        };
        Ok(Warning::new(signal.parse()?, before, to))
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.to != Warned::All {
            let name = Warned::ALL.into_iter().find(|(to, _)| *to == self.to);
            write!(f, "{}:", name.expect("each is listed").1)?;
        }
        write!(f, "{}@{}", self.signal.name(), self.before)
    }
}

as_text!(Warning);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_reads_back_as_it_is_written() {
        for (text, written) in [
            ("USR1", "USR1@1 min"),
            ("sigusr2@90 s", "USR2@90 s"),
            ("10@5", "USR1@5 min"),
            ("program:TERM@30s", "program:TERM@30 s"),
            ("steps:INT@1:00:00", "steps:INT@1 h"),
            ("all:HUP@2 min", "HUP@2 min"),
        ] {
            let warning: Warning = text.parse().unwrap();
            assert_eq!(warning.to_string(), written, "{text}");
            assert_eq!(written.parse(), Ok(warning));
        }
        for bad in ["", "KILL@1 min", "USR1@", "USR1@soon", "me:USR1", "9", "USR1@1:30"] {
            assert!(bad.parse::<Warning>().is_err(), "{bad}");
        }
    }
}

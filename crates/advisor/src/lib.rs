//! What slows analytics down on a host, why it does, and how to change it; and how large a grid must be.
//!
//! [`Host`] is what was read of a machine, [`checks::all`] the table of checks, [`examine`] runs them; [`cluster`] is the same for a cluster. A check is pure: it
//! looks at a host and says what it found, with the evidence, and how to change it. Nothing here changes anything:
//! [`script::write`] makes a shell script of the fixes, which an administrator reads and runs. [`mute`] is the list of
//! findings that a site does not want to see for a while. [`plan`] sizes a grid. [`studies`] is what the published studies tuned, and what has
//! become of it.

pub mod checks;
pub mod cluster;
pub mod finding;
pub mod host;
pub mod mute;
pub mod plan;
pub mod script;
pub mod shared;
pub mod studies;

pub use checks::{Check, Examined, examine};
pub use finding::{Finding, Fix, Severity, Verdict};
pub use host::Host;

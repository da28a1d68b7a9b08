//! The kernel reports that a handle is closed only after close(2) has returned, and a request that follows can overtake the report. Code
//! that must know that nobody uses a file waits a little for it.

use std::time::Duration;

use forebay_base::time::look_until;

/// How often is looked whether handles were closed, and the pause before each further look.
const LOOKS: u32 = 21;
/// See [`LOOKS`].
const PAUSE: Duration = Duration::from_micros(50);

/// Waits a little, a millisecond at least, for the end of handles, until `are_closed`.
pub fn await_closes(are_closed: impl FnMut() -> bool) {
    look_until(LOOKS, PAUSE, are_closed);
}

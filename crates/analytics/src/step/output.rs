//! Checks that steps with an output have in common.

use std::path::Path;

use crate::error::{Error, Result};

/// Refuses an `output` that is also an input: it would be cut off before it is read.
pub(super) fn refuse_input(output: &Path, inputs: &[&Path]) -> Result<()> {
    if inputs.contains(&output) {
        return Err(Error::Setting {
            setting: "output",
            value: output.display().to_string(),
            allowed: "another file than the input".to_owned(),
        });
    }
    Ok(())
}

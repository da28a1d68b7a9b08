//! Findings that a site does not want to see until a day.
//!
//! A file of TOML tables, one for each code:
//!
//! ```toml
//! ["memory/swappiness"]
//! until = "2027-01-31"
//! reason = "the database wants it"
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A mute of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mute {
    /// The last day on which the finding is not shown, as `YYYY-MM-DD`: such days compare as text.
    pub until: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// All mutes, by code.
pub type Mutes = BTreeMap<String, Mute>;

/// A file of mutes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not what this version writes.
    #[error("{0}")]
    Malformed(#[from] toml::de::Error),
}

/// Reads the mutes of a file; none if there is no file.
///
/// # Errors
/// If it cannot be read or understood.
pub fn read(path: &Path) -> Result<Mutes, Unusable> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(toml::from_str(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Mutes::new()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the mutes of a file, in place of what it held.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, mutes: &Mutes) -> Result<(), Unusable> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = toml::to_string(mutes).map_err(io::Error::other)?;
    let fresh = path.with_extension("toml.new");
    std::fs::write(&fresh, text)?;
    Ok(std::fs::rename(fresh, path)?)
}

/// Whether a finding is muted on a day, `YYYY-MM-DD`.
#[must_use]
pub fn is_muted(mutes: &Mutes, code: &str, today: &str) -> bool {
    mutes.get(code).is_some_and(|mute| mute.until.as_str() >= today)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mute_holds_until_its_last_day_and_survives_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/mutes.toml");
        assert!(read(&path).unwrap().is_empty());
        let mute = Mute { until: "2027-01-31".into(), reason: "the database".into() };
        let mutes = Mutes::from([("memory/swappiness".to_owned(), mute)]);
        write(&path, &mutes).unwrap();
        assert_eq!(read(&path).unwrap(), mutes);
        assert!(is_muted(&mutes, "memory/swappiness", "2027-01-31"));
        assert!(!is_muted(&mutes, "memory/swappiness", "2027-02-01"));
        assert!(!is_muted(&mutes, "memory/dirty", "2027-01-01"));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mutes.toml");
        std::fs::write(&path, "[\"a/b\"]\nuntil = 3\n").unwrap();
        assert!(matches!(read(&path), Err(Unusable::Malformed(_))));
    }
}

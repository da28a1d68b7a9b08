//! The settings of a grid in its file, ROOT/grid/grid.toml.

use std::io::ErrorKind;

use anyhow::{Context as _, Result};
use forebay_grid::config::Config;

use crate::home::GridHome;
use crate::user;

/// Reads the settings; those are admins besides who can do everything anyway. Without a file all have their defaults.
///
/// # Errors
/// If the file cannot be read, or the first fault in it, with its line.
pub fn read(home: &GridHome) -> Result<Config> {
    let path = home.settings();
    let mut config = match std::fs::read_to_string(&path) {
        Ok(text) => Config::read(&text).with_context(|| path.display().to_string())?,
        Err(error) if error.kind() == ErrorKind::NotFound => Config::default(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    for admin in [user::name_of(0)?, user::own_name()?] {
        if !config.general.admins.contains(&admin) {
            config.general.admins.push(admin);
        }
    }
    Ok(config)
}

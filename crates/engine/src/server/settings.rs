//! The settings of a grid in its file, ROOT/grid/grid.toml.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use anyhow::{Context as _, Result};
use forebay_grid::config::Config;

use crate::home::GridHome;
use crate::user;

/// Reads the settings; those are admins besides who can do everything anyway. Without a file all have their defaults.
///
/// # Errors
/// If the file cannot be read, or the first fault in it, with its line. A user who does not exist is one.
pub fn read(home: &GridHome) -> Result<Config> {
    read_by(home, |text| Config::read_for(text, user::may_exist))
}

/// The same for a controller that begins: a user who was removed from the machine since keeps no grid from beginning.
///
/// # Errors
/// As [`read`], but for users who do not exist: they are written to the log.
pub fn read_to_begin(home: &GridHome) -> Result<Config> {
    let mut fault = None;
    let config = read_by(home, |text| {
        fault = Config::read_for(text, user::may_exist).err();
        Config::read(text)
    })?;
    if let Some(fault) = fault {
        tracing::error!("{}: {fault}", home.settings().display());
    }
    Ok(config)
}

fn read_by<E>(home: &GridHome, read: impl FnOnce(&str) -> Result<Config, E>) -> Result<Config>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let path = home.settings();
    let mut config = match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).with_context(|| path.display().to_string())?,
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

/// What settings say that may be meant otherwise: hosts which they name, and which have never joined.
#[must_use]
pub fn warnings(home: &GridHome, config: &Config) -> Vec<String> {
    let entries = std::fs::read_dir(home.hosts()).into_iter().flatten().flatten();
    let joined: BTreeSet<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let listed = |name: &str| config.hosts.iter().any(|host| host.name.as_str() == name);
    let mut warnings = Vec::new();
    for queue in &config.queues {
        let unknown = queue.hosts.named().map(ToString::to_string);
        for host in unknown.filter(|name| !listed(name) && !joined.contains(name)) {
            warnings.push(format!(
                "{}: queue {} names host {host}, which has not joined yet and has no [[host]]",
                home.settings().display(),
                queue.name
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(text: &str) -> (tempfile::TempDir, GridHome) {
        let root = tempfile::tempdir().unwrap();
        let home = GridHome::of(root.path()).unwrap();
        home.make().unwrap();
        std::fs::write(home.settings(), text).unwrap();
        (root, home)
    }

    #[test]
    fn a_user_who_does_not_exist_is_refused_with_the_line_and_keeps_no_grid_from_beginning() {
        let (_root, home) = home("[[queue]]\nname = \"q\"\nusers = [\"root\", \"no.such.user\"]\n");
        let refused = format!("{:#}", read(&home).unwrap_err());
        assert!(refused.contains("line 3") && refused.contains("no.such.user"), "{refused}");
        assert_eq!(read_to_begin(&home).unwrap().queues[0].users.len(), 2);
    }

    #[test]
    fn a_host_that_has_never_joined_is_told_of() {
        let (_root, home) =
            home("[[queue]]\nname = \"q\"\nhosts = \"a b ~c d\"\n[[host]]\nname = \"d\"\n");
        std::fs::create_dir(home.hosts().join("a")).unwrap();
        let warnings = warnings(&home, &read(&home).unwrap());
        let names =
            |name: &str| warnings.iter().any(|text| text.contains(&format!("host {name},")));
        assert_eq!(["a", "b", "c", "d"].map(names), [false, true, true, false], "{warnings:?}");
    }
}

//! Places of work areas: each belongs to one grid.
//!
//! Names of areas are numbers of jobs. Two grids that share a place would take each other's areas for orphans and
//! remove them. So an agent claims its places before it looks into them: a file in the place says which grid it
//! belongs to, by id and folder, and each agent holds a shared lock on it for as long as it lives. Agents of one
//! grid share places; what they do to areas is ordered by their controller.
//!
//! A claim outlives its agents: kept areas lie there while nobody runs. It falls to another grid only if no agent
//! holds it and the grid that made it is gone (its folder is, or has another id), or moved away. The file is the
//! agent's user's own, with mode 0600: nobody else can hold it or say something else in it. Who may write to the
//! place can put a file in its way, which then is told and not followed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::home::GridHome;

/// The file in a place that says which grid it belongs to.
pub const CLAIM: &str = ".forebay-grid";

/// The most bytes that are read of it.
const CLAIM_BYTES_MAX: u64 = 16 << 10;

/// How often a lock is tried that another agent holds while it makes up its mind.
const TRIES: u32 = 200;

const PAUSE: Duration = Duration::from_millis(5);

/// A place that an agent has claimed, until this is dropped.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

/// What the file says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// Id of the grid.
    grid: String,
    /// Its folder.
    folder: PathBuf,
}

impl Owner {
    /// Whether the grid is where it was and still the same.
    fn is_there(&self) -> bool {
        match std::fs::read_to_string(self.folder.join(GridHome::ID)) {
            Ok(id) => id.trim() == self.grid,
            // Whoever may not look cannot tell that it is gone.
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// Whether both are one grid; a folder may have several paths.
    fn is(&self, other: &Owner) -> bool {
        let number = |owner: &Owner| {
            let about = std::fs::metadata(&owner.folder).ok()?;
            Some((about.dev(), about.ino()))
        };
        self.grid == other.grid
            && (self.folder == other.folder
                || number(self).is_some_and(|own| Some(own) == number(other)))
    }
}

/// Claims a place for a grid.
///
/// # Errors
/// If it belongs to another grid, or cannot be claimed.
pub fn claim(home: &GridHome, place: &Path) -> Result<Claim> {
    let own = Owner { grid: home.id()?, folder: home.folder().to_owned() };
    let path = place.join(CLAIM);
    let shown = || path.display().to_string();
    let mut file = open(&path)?;
    for _ in 0..TRIES {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let owner = read(&file).with_context(shown)?;
                if let Some(owner) = owner.filter(|owner| !owner.is(&own) && owner.is_there()) {
                    return Err(belongs(place, &owner));
                }
                write(&mut file, &own).with_context(shown)?;
            }
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error).with_context(shown),
        }
        // The change from one lock to the other lets others in between: what they say counts.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => match read(&file).with_context(shown)? {
                Some(owner) if owner.is(&own) => return Ok(Claim { _lock: file }),
                Some(owner) => return Err(belongs(place, &owner)),
                None => {}
            },
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error).with_context(shown),
        }
        std::thread::sleep(PAUSE);
    }
    bail!("{}: it is in use by other agents; try again", shown())
}

fn belongs(place: &Path, owner: &Owner) -> anyhow::Error {
    let (place, grid) = (place.display(), owner.folder.display());
    anyhow::anyhow!(
        "{place} belongs to the grid of {grid}: give this grid another --work and --util; if that grid is no longer \
         used, remove {place}/{CLAIM} and the work areas beside it"
    )
}

fn open(path: &Path) -> Result<File> {
    let shown = || path.display().to_string();
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(i32::try_from(flags.bits())?).open(path);
    let file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "{}: {error}: the place may belong to another user's grid; give another --work and --util",
            shown()
        ),
        _ => anyhow::Error::new(error).context(shown()),
    })?;
    let about = file.metadata().with_context(shown)?;
    let own = rustix::process::geteuid().as_raw();
    ensure!(
        about.is_file() && about.uid() == own,
        "{}: it already exists and does not belong to user {own}: remove it, or give another --work and --util",
        shown()
    );
    Ok(file)
}

/// What a claim says; none if nobody has written it yet, or not to its end.
fn read(file: &File) -> Result<Option<Owner>> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = file;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(CLAIM_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

fn write(file: &mut File, owner: &Owner) -> Result<()> {
    use std::io::{Seek as _, SeekFrom};
    if read(file)?.as_ref() == Some(owner) {
        return Ok(());
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&serde_json::to_vec(owner)?)?;
    // After a power cut the place must not be anybody's while its areas are there.
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(root: &Path) -> GridHome {
        std::fs::create_dir_all(root).unwrap();
        let home = GridHome::of(root).unwrap();
        home.make().unwrap();
        home
    }

    #[test]
    fn agents_of_one_grid_share_a_place_and_another_grid_is_refused_also_when_they_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (grid(&folder.path().join("one")), grid(&folder.path().join("two")));
        let place = folder.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let claims = [claim(&one, &place).unwrap(), claim(&one, &place).unwrap()];
        let refused = || {
            let reason = claim(&two, &place).unwrap_err().to_string();
            assert!(reason.contains(&one.folder().display().to_string()), "{reason}");
            assert!(reason.contains("--work") && reason.contains(CLAIM), "{reason}");
        };
        refused();
        drop(claims);
        refused();
        drop(claim(&one, &place).unwrap());
    }

    #[test]
    fn a_place_falls_to_another_grid_when_its_own_is_gone_and_no_agent_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (grid(&folder.path().join("one")), grid(&folder.path().join("two")));
        let place = folder.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let held = claim(&one, &place).unwrap();
        std::fs::remove_dir_all(folder.path().join("one")).unwrap();
        assert!(claim(&two, &place).unwrap_err().to_string().contains("belongs to"));
        drop(held);
        drop(claim(&two, &place).unwrap());
        // The first one made anew in its old folder is another grid.
        let one = grid(&folder.path().join("one"));
        assert!(claim(&one, &place).is_err());
    }

    #[test]
    fn a_grid_that_was_moved_keeps_its_places_and_a_copy_of_it_gets_none() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        let place = folder.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let home = grid(&old);
        drop(claim(&home, &place).unwrap());
        std::fs::rename(&old, &new).unwrap();
        let moved = GridHome::of(&new).unwrap();
        drop(claim(&moved, &place).unwrap());
        let copy = grid(&old);
        std::fs::copy(moved.folder().join("id"), copy.folder().join("id")).unwrap();
        assert!(claim(&copy, &place).is_err());
        // By another path it is the same one.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        drop(claim(&GridHome::of(&link).unwrap(), &place).unwrap());
    }

    #[test]
    fn what_is_in_the_way_of_a_claim_is_told_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let home = grid(&folder.path().join("one"));
        let place = folder.path().join("place");
        let precious = folder.path().join("precious");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(&precious, "kept").unwrap();
        std::os::unix::fs::symlink(&precious, place.join(CLAIM)).unwrap();
        assert!(claim(&home, &place).is_err());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
        std::fs::remove_file(place.join(CLAIM)).unwrap();
        // Half of one, as a power cut may leave it, counts for nothing.
        std::fs::write(place.join(CLAIM), "{\"grid\":").unwrap();
        drop(claim(&home, &place).unwrap());
    }
}

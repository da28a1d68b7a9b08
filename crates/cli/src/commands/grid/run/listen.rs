//! The socket on which an interactive job finds its user.

use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result, bail};
use forebay_grid::spec::SOCKET_PATH_BYTES_MAX;

use super::attach::News;

/// A socket in a folder that only this user can enter. Both are gone when it is dropped.
pub struct Listener {
    folder: PathBuf,
    listener: UnixListener,
}

const NAME: &str = "socket";

impl Listener {
    /// Makes folder and socket in the directory for temporary files, or in /tmp if its path is too long.
    pub fn make() -> Result<Listener> {
        let folder = folder(&std::env::temp_dir())?;
        let listener = UnixListener::bind(folder.join(NAME));
        match listener.with_context(|| format!("cannot listen in {}", folder.display())) {
            Ok(listener) => Ok(Listener { folder, listener }),
            Err(error) => {
                let _ = std::fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> Result<String> {
        let path = self.folder.join(NAME).into_os_string().into_string();
        path.map_err(|path| anyhow::anyhow!("the path {} is not UTF-8", path.display()))
    }

    /// The socket, for the thread that accepts.
    pub fn socket(&self) -> Result<UnixListener> {
        Ok(self.listener.try_clone()?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(NAME));
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn folder(temporary: &Path) -> Result<PathBuf> {
    let fits = |place: &&Path| {
        place.is_absolute() && place.as_os_str().len() + 40 <= SOCKET_PATH_BYTES_MAX
    };
    let place = Some(temporary).filter(fits).unwrap_or(Path::new("/tmp"));
    let process = std::process::id();
    for number in 0..1000 {
        let folder = place.join(format!("forebay-run-{process}-{number}"));
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", folder.display()));
            }
        }
    }
    bail!("{} holds too many folders of forebay run: remove old ones", place.display())
}

/// Waits for the job: root's process, or one of this user.
pub fn accept(listener: &UnixListener, news: &Sender<News>) {
    let own = rustix::process::geteuid();
    for stream in listener.incoming().flatten() {
        let peer = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.uid);
        if peer.is_ok_and(|uid| uid.is_root() || uid == own) {
            let _ = news.send(News::Connected(stream));
            return;
        }
    }
}

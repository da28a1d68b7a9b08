//! The socket: how a command reaches the daemon of a folder, and how the daemon reads and answers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{Answer, Ask};
use crate::home::Home;

/// A path to the socket that is short enough for a socket address, whatever the folder is called.
struct ShortPath {
    _folder: std::fs::File,
    path: PathBuf,
}

fn short_path(root: &Path) -> Result<ShortPath> {
    let folder = std::fs::File::open(root).with_context(|| root.display().to_string())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), Home::CONTROL));
    Ok(ShortPath { _folder: folder, path })
}

/// How long an answer may take that needs no disk to be synced.
const ANSWER_LIMIT: Duration = Duration::from_mins(2);

/// Asks the daemon of `root`.
///
/// # Errors
/// If there is no daemon, or it refused: with its reason.
pub fn ask(root: &Path, ask: &Ask) -> Result<Answer> {
    ask_within(root, ask, ANSWER_LIMIT)
}

/// As [`ask`], with an own limit of time for the answer.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(root: &Path, ask: &Ask, limit: Duration) -> Result<Answer> {
    ask_with_progress(root, ask, limit, &mut |_, _| {})
}

/// As [`ask_within`], where the limit is that of each line of the answer: `progress` is called with what is done
/// and all there is to do.
///
/// # Errors
/// As [`ask`].
pub fn ask_with_progress(
    root: &Path,
    ask: &Ask,
    limit: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Answer> {
    let short = short_path(root)?;
    let mut stream = UnixStream::connect(&short.path).with_context(|| {
        format!(
            "the daemon of {} does not answer; see {}/forebay.log",
            root.display(),
            root.display()
        )
    })?;
    stream.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
    stream
        .write_all(format!("{}\n", serde_json::to_string(ask)?).as_bytes())
        .with_context(|| format!("the daemon of {} has just ended", root.display()))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).context("the daemon did not answer in time")?;
        match serde_json::from_str(&line)
            .context("unexpected answer from the daemon; is it a different version?")?
        {
            Answer::Refused { reason } => bail!("{reason}"),
            Answer::Progress { done, total } => progress(done, total),
            answer => return Ok(answer),
        }
    }
}

/// Listens on the control socket of `root`, which only its owner can use.
///
/// # Errors
/// If the socket cannot be made.
pub fn listen(root: &Path) -> Result<UnixListener> {
    let short = short_path(root)?;
    let _ = std::fs::remove_file(&short.path);
    let listener = UnixListener::bind(&short.path).context("cannot create the control socket")?;
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&short.path, only_owner)?;
    Ok(listener)
}

/// Longest question in bytes.
const ASK_MAX: u64 = 64 << 10;

/// Reads what a connection asks; `None`, after it was told so, if that is not understood.
///
/// # Errors
/// If the other side went away.
pub fn read_ask(stream: &UnixStream) -> Result<Option<Ask>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, ASK_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(ask) => Ok(Some(ask)),
        Err(error) => {
            reply(stream, &Answer::Refused { reason: format!("not understood: {error}") })?;
            Ok(None)
        }
    }
}

/// Answers a connection.
///
/// # Errors
/// If the other side went away.
pub fn reply(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    stream.write_all(format!("{}\n", serde_json::to_string(answer)?).as_bytes())?;
    Ok(())
}

//! The other side of the storage: what the tests ask it, and who answers, here or on another host.
//!
//! On another host a second `forebay doctor` answers, a line of JSON for each line that it reads. It ends with its input.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// Kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// Of bytes: fcntl(2).
    Bytes,
    /// Of whole files: flock(2).
    File,
}

/// What is asked; names are those of files in the folder of the tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Whether there is this folder; the tests are in it from then on.
    Enter(String),
    /// The size of a file.
    Size(String),
    /// The bytes of a file, opened now.
    Read(String),
    /// Open a file, and keep it so.
    Hold(String),
    /// The first bytes of the file that is kept open.
    ReadHeld(usize),
    /// Create a file that must not be there.
    Create(String),
    /// Append a record several times.
    Append(String, String, u32),
    /// Lock a file.
    Lock(String, Lock),
    /// Close all files: the folder of the tests is removed next.
    Leave,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done, or so.
    Yes,
    /// Not so, or somebody else has it.
    No,
    /// A size.
    Size(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// It failed.
    Failed(String),
}

/// Who answers.
pub trait OtherSide: Sync {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// If the other side is gone.
    fn ask(&self, ask: &Ask) -> io::Result<Answer>;

    /// How the directory is called, for people.
    fn name(&self) -> String;
}

/// Another directory of this host, or the same.
pub struct Near(Mutex<Folder>);

impl Near {
    /// The side that lies below a directory.
    #[must_use]
    pub fn new(directory: &Path) -> Near {
        Near(Mutex::new(Folder::new(directory)))
    }
}

impl OtherSide for Near {
    fn ask(&self, ask: &Ask) -> io::Result<Answer> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).answer(ask))
    }

    fn name(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).base.display().to_string()
    }
}

/// A directory of another host, whose process reads and writes these pipes.
pub struct Far<W> {
    name: String,
    limit: Duration,
    pipes: Mutex<Pipes<W>>,
}

struct Pipes<W> {
    asks: W,
    answers: Receiver<io::Result<String>>,
    /// Why it is not asked any more.
    gone: Option<String>,
}

impl<W: Write + Send> Far<W> {
    /// The side that is asked over these pipes, and that has `limit` for each answer.
    pub fn new(
        name: String,
        answers: impl BufRead + Send + 'static,
        asks: W,
        limit: Duration,
    ) -> Far<W> {
        let (sender, receiver) = sync_channel(1);
        // It ends with the answers, or when nobody waits for them any more.
        std::thread::spawn(move || answers.lines().try_for_each(|line| sender.send(line)));
        Far { name, limit, pipes: Mutex::new(Pipes { asks, answers: receiver, gone: None }) }
    }
}

impl<W: Write> Pipes<W> {
    fn ask(&mut self, ask: &Ask, limit: Duration) -> Result<Answer, String> {
        let text = |error: io::Error| error.to_string();
        let line = serde_json::to_string(ask).map_err(|error| error.to_string())?;
        writeln!(self.asks, "{line}").and_then(|()| self.asks.flush()).map_err(text)?;
        let line = match self.answers.recv_timeout(limit) {
            Ok(line) => line.map_err(text)?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("nothing came within {} s", limit.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => return Err("its command ended".to_owned()),
        };
        serde_json::from_str(&line).map_err(|_| format!("it says {:?}", line.trim()))
    }
}

impl<W: Write + Send> OtherSide for Far<W> {
    fn ask(&self, ask: &Ask) -> io::Result<Answer> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match pipes.gone.clone() {
            // The answer to an earlier question would be taken for that to this one.
            Some(why) => Err(why),
            None => pipes.ask(ask, self.limit),
        };
        asked.map_err(|why| {
            let error = io::Error::other(format!("{} does not answer: {why}", self.name));
            pipes.gone = Some(why);
            error
        })
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Answers for a directory of this host until the input ends.
///
/// # Errors
/// If the input makes no sense, or the output is gone.
pub fn serve(directory: &Path, asks: impl BufRead, mut answers: impl Write) -> io::Result<()> {
    let mut folder = Folder::new(directory);
    for line in asks.lines() {
        let answer = folder.answer(&serde_json::from_str(&line?)?);
        writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
        answers.flush()?;
    }
    Ok(())
}

/// The folder of the tests as this side sees it.
struct Folder {
    base: PathBuf,
    entered: PathBuf,
    held: Option<File>,
    /// Files that are locked.
    locked: Vec<File>,
}

impl Folder {
    fn new(base: &Path) -> Folder {
        let (base, entered) = (base.to_owned(), base.to_owned());
        Folder { base, entered, held: None, locked: Vec::new() }
    }

    fn answer(&mut self, ask: &Ask) -> Answer {
        self.carry_out(ask).unwrap_or_else(|error| match error.kind() {
            // A file that is not there is not one that somebody else has locked.
            ErrorKind::NotFound if matches!(ask, Ask::Lock(..)) => {
                Answer::Failed("it does not see the file".to_owned())
            }
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::WouldBlock => Answer::No,
            _ => Answer::Failed(error.to_string()),
        })
    }

    /// The path of a file of the tests: nothing outside of their folder is touched, whoever asks.
    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
        let refused = || io::Error::new(ErrorKind::InvalidInput, format!("{name:?} is not a name"));
        is_plain.then(|| self.entered.join(name)).ok_or_else(refused)
    }

    fn carry_out(&mut self, ask: &Ask) -> io::Result<Answer> {
        match ask {
            Ask::Enter(name) => {
                if !self.base.is_dir() {
                    let why = format!("{} is not a directory", self.base.display());
                    return Ok(Answer::Failed(why));
                }
                let entered = Folder::new(&self.base).path(name)?;
                if !name.starts_with(super::FOLDER) || !entered.is_dir() {
                    return Ok(Answer::No);
                }
                self.entered = entered;
            }
            Ask::Size(name) => return Ok(Answer::Size(fs::metadata(self.path(name)?)?.len())),
            Ask::Read(name) => return Ok(Answer::Bytes(fs::read(self.path(name)?)?)),
            Ask::Hold(name) => self.held = Some(File::open(self.path(name)?)?),
            Ask::ReadHeld(length) => {
                let mut bytes = vec![0; (*length).min(4096)];
                let held = self.held.as_ref().ok_or(ErrorKind::InvalidInput)?;
                held.read_exact_at(&mut bytes, 0)?;
                return Ok(Answer::Bytes(bytes));
            }
            Ask::Create(name) => {
                OpenOptions::new().write(true).create_new(true).open(self.path(name)?)?;
            }
            Ask::Append(name, record, times) => {
                let mut file = OpenOptions::new().append(true).open(self.path(name)?)?;
                (0..*times).try_for_each(|_| file.write_all(record.as_bytes()))?;
            }
            Ask::Lock(name, kind) => {
                let path = self.path(name)?;
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                lock(&file, *kind)?;
                self.locked.push(file);
            }
            Ask::Leave => {
                self.held = None;
                self.locked.clear();
            }
        }
        Ok(Answer::Yes)
    }
}

/// Takes a lock, if nobody else has it.
pub(super) fn lock(file: &File, kind: Lock) -> io::Result<()> {
    match kind {
        Lock::Bytes => lock_bytes(file),
        Lock::File => {
            flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)
        }
    }
}

/// Locks the first byte for the open file description (F_OFD_SETLK): two of one process exclude each other.
fn lock_bytes(file: &File) -> io::Result<()> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel only reads and writes the lock, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_folder_of_the_tests_is_touched() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("own"), "x").unwrap();
        let name = format!("{}7", super::super::FOLDER);
        fs::create_dir(base.path().join(&name)).unwrap();
        let mut folder = Folder::new(base.path());
        for bad in ["..", "/etc", "a/b", "", "own"] {
            let answer = folder.answer(&Ask::Enter(bad.to_owned()));
            assert!(!matches!(answer, Answer::Yes), "{bad}: {answer:?}");
        }
        assert_eq!(folder.answer(&Ask::Enter(name)), Answer::Yes);
        for bad in ["../own", "/etc/passwd"] {
            let answer = folder.answer(&Ask::Read(bad.to_owned()));
            assert!(matches!(answer, Answer::Failed(_)), "{bad}: {answer:?}");
        }
        assert_eq!(folder.answer(&Ask::Read("own".to_owned())), Answer::No);
        assert_eq!(folder.answer(&Ask::Create("new".to_owned())), Answer::Yes);
        assert_eq!(folder.answer(&Ask::Create("new".to_owned())), Answer::No);
        let lock = |name: &str| Ask::Lock(name.to_owned(), Lock::File);
        assert!(matches!(folder.answer(&lock("none")), Answer::Failed(_)));
        assert_eq!(folder.answer(&lock("new")), Answer::Yes);
        assert_eq!(folder.answer(&lock("new")), Answer::No);
        assert_eq!(folder.answer(&Ask::Hold("new".to_owned())), Answer::Yes);
        assert_eq!(folder.answer(&Ask::Leave), Answer::Yes);
        assert!(folder.held.is_none() && folder.locked.is_empty());
        assert_eq!(folder.answer(&lock("new")), Answer::Yes);
        let mut nowhere = Folder::new(&base.path().join("own"));
        let answer = nowhere.answer(&Ask::Enter(format!("{}7", super::super::FOLDER)));
        assert!(matches!(answer, Answer::Failed(why) if why.ends_with("own is not a directory")));
    }

    #[test]
    fn a_host_that_falls_silent_is_given_up_and_not_asked_again() {
        let (answers, _silent) = io::pipe().unwrap();
        let limit = Duration::from_millis(50);
        let far = Far::new("host2:/nfs".to_owned(), io::BufReader::new(answers), Vec::new(), limit);
        for _ in 0..2 {
            let gone = far.ask(&Ask::Leave).unwrap_err().to_string();
            assert_eq!(gone, "host2:/nfs does not answer: nothing came within 0 s");
        }
        let pipes = far.pipes.lock().unwrap();
        assert_eq!(pipes.asks, b"\"leave\"\n", "asked once");
    }

    #[test]
    fn what_another_host_is_asked_goes_over_pipes() {
        let base = tempfile::tempdir().unwrap();
        let mut asks = Vec::new();
        for ask in [Ask::Size("f".to_owned()), Ask::ReadHeld(8)] {
            asks.extend(serde_json::to_vec(&ask).unwrap());
            asks.push(b'\n');
        }
        let mut answers = Vec::new();
        serve(base.path(), &*asks, &mut answers).unwrap();
        let limit = Duration::from_secs(60);
        let far = Far::new("host2:/nfs".to_owned(), io::Cursor::new(answers), Vec::new(), limit);
        assert_eq!(far.ask(&Ask::Size("f".to_owned())).unwrap(), Answer::No);
        assert!(matches!(far.ask(&Ask::ReadHeld(8)).unwrap(), Answer::Failed(_)));
        let gone = far.ask(&Ask::ReadHeld(8)).unwrap_err().to_string();
        assert!(gone.contains("host2:/nfs does not answer: its command ended"), "{gone}");
        assert!(serve(base.path(), &b"nonsense\n"[..], Vec::new()).is_err());
    }
}

//! Reads what a watcher writes, as it grows.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::message::{Introduction, Line, Row, Second, lines_path};
use crate::error::{Error, Result};
use crate::record::Sample;

/// The most bytes of a line: thousands of jobs at once.
const LINE_BYTES_MAX: usize = 8 << 20;

/// The file of one watcher, and what it said.
pub(super) struct Follower {
    /// Name of the host.
    pub name: String,
    path: PathBuf,
    offset: u64,
    /// Begin of a line that is not yet whole.
    rest: Vec<u8>,
    /// The host, once it has said.
    pub introduction: Option<Introduction>,
    /// The settling that it did last, and why it could not.
    pub settled: (u64, Option<String>),
    /// Its seconds since [`Follower::forget`].
    pub samples: Vec<Sample>,
    /// What was seen of each job since then: when, and how far it was.
    pub looks: HashMap<String, Vec<(f64, Row)>>,
    /// Whether it has ended in order.
    pub ended: bool,
}

impl Follower {
    pub fn new(folder: &Path, name: &str) -> Follower {
        Follower {
            name: name.to_owned(),
            path: lines_path(folder, name),
            offset: 0,
            rest: Vec::new(),
            introduction: None,
            settled: (0, None),
            samples: Vec::new(),
            looks: HashMap::new(),
            ended: false,
        }
    }

    /// Takes what is new. The file is opened anew: only then do all shared file systems show what others wrote.
    pub fn read(&mut self) -> Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("open", &self.path)(error)),
        };
        let read = |error| Error::io("read", &self.path)(error);
        file.seek(SeekFrom::Start(self.offset)).map_err(read)?;
        let before = self.rest.len();
        file.read_to_end(&mut self.rest).map_err(read)?;
        self.offset += (self.rest.len() - before) as u64;
        let bytes = std::mem::take(&mut self.rest);
        let mut rest = &bytes[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.take(&rest[..end])?;
            rest = &rest[end + 1..];
        }
        if rest.len() > LINE_BYTES_MAX {
            return Err(self.refuse(&"a line is too long"));
        }
        self.rest = rest.to_vec();
        Ok(())
    }

    fn refuse(&self, reason: &dyn std::fmt::Display) -> Error {
        Error::Record { path: self.path.clone(), reason: reason.to_string() }
    }

    fn take(&mut self, line: &[u8]) -> Result<()> {
        match serde_json::from_slice(line).map_err(|error| self.refuse(&error))? {
            Line::Host(introduction) => self.introduction = Some(*introduction),
            Line::Settled { settle, fault } => self.settled = (settle, fault),
            Line::Second(second) => {
                let Second { sample, jobs } = *second;
                for (job, row) in jobs {
                    self.looks.entry(job).or_default().push((sample.at_seconds, row));
                }
                self.samples.push(sample);
            }
            Line::End => self.ended = true,
        }
        Ok(())
    }

    /// Forgets all seconds so far: a run begins.
    pub fn forget(&mut self) {
        self.samples.clear();
        self.looks.clear();
    }

    /// End of the latest second, since the epoch.
    pub fn latest_seconds(&self) -> Option<f64> {
        self.samples.last().map(|sample| sample.at_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Write as _;

    fn second(at: f64, job: u64) -> String {
        let sample = Sample { at_seconds: at, seconds: 1.0, ..Sample::default() };
        let jobs = BTreeMap::from([("a.steps".to_owned(), [job, 0, 0, 0])]);
        serde_json::to_string(&Line::Second(Box::new(Second { sample, jobs }))).unwrap()
    }

    #[test]
    fn lines_are_taken_once_and_whole_however_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let mut follower = Follower::new(folder.path(), "n1");
        follower.read().unwrap();
        assert!(follower.samples.is_empty(), "there is no file yet");
        let mut file = File::create(lines_path(folder.path(), "n1")).unwrap();
        let (first, second) = (second(1.0, 10), second(2.0, 25));
        write!(file, "{first}\n{}", &second[..20]).unwrap();
        follower.read().unwrap();
        assert_eq!(follower.latest_seconds(), Some(1.0));
        write!(file, "{}\n\"end\"\n", &second[20..]).unwrap();
        follower.read().unwrap();
        follower.read().unwrap();
        assert_eq!(follower.samples.len(), 2);
        assert_eq!(follower.looks["a.steps"], [(1.0, [10, 0, 0, 0]), (2.0, [25, 0, 0, 0])]);
        assert!(follower.ended);
        follower.forget();
        assert!(follower.samples.is_empty() && follower.looks.is_empty());
        writeln!(file, "{{\"nonsense\": 1}}").unwrap();
        assert!(follower.read().unwrap_err().to_string().contains("n1.lines"));
    }
}

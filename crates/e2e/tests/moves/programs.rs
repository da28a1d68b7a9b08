//! Programs that change files and know what is in them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_e2e::Mounted;
use forebay_e2e::content::{assert_same, pattern};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// Files of one program.
const FILES: u32 = 8;
/// Largest size of a file: several stripes, and several frames of an archive.
const BYTES_MAX: usize = 700_000;

/// What is in the files of a folder, by their names.
type Content = BTreeMap<String, Vec<u8>>;

/// A program with files of its own.
pub struct Program {
    folder: PathBuf,
    random: StdRng,
    files: Content,
    /// A file that is open for some steps.
    held: Option<(String, File)>,
    pub steps: u64,
}

impl Program {
    pub fn new(above: &Path, number: u64, seed: u64) -> Program {
        let folder = above.join(format!("program-{number}"));
        fs::create_dir(&folder).expect("makes a folder");
        let random = StdRng::seed_from_u64(seed ^ (number << 32));
        Program { folder, random, files: Content::new(), held: None, steps: 0 }
    }

    /// Does one thing with one file.
    pub fn step(&mut self) {
        self.steps += 1;
        let name = format!("file-{}", self.random.random_range(0..FILES));
        if self.held.is_some() && self.random.random_range(0..4) == 0 {
            self.let_go();
        }
        match self.random.random_range(0..12) {
            0..=3 => self.write(&name),
            4 => self.append(&name),
            5 => self.truncate(&name),
            6 => self.replace(&name),
            7 => self.remove(&name),
            8 => self.hold(&name),
            _ => self.check_one(&name),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A file to write: the one that is held, or newly opened.
    fn open(&self, name: &str) -> File {
        match &self.held {
            Some((held, file)) if held == name => file.try_clone().expect("duplicates"),
            _ => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create(true).truncate(false);
                options.open(self.path(name)).expect("opens")
            }
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.random.random_range(1..=most);
        pattern(self.random.random(), length)
    }

    fn write(&mut self, name: &str) {
        let size = self.files.get(name).map_or(0, Vec::len);
        let offset = self.random.random_range(0..=(size + 50_000).min(BYTES_MAX - 1));
        let bytes = self.bytes((BYTES_MAX - offset).min(200_000));
        let file = self.open(name);
        file.write_all_at(&bytes, offset as u64).expect("writes");
        if self.random.random_range(0..10) == 0 {
            file.sync_all().expect("syncs");
        }
        let known = self.files.entry(name.to_owned()).or_default();
        let end = offset + bytes.len();
        known.resize(known.len().max(end), 0);
        known[offset..end].copy_from_slice(&bytes);
    }

    fn append(&mut self, name: &str) {
        let room = BYTES_MAX - self.files.get(name).map_or(0, Vec::len);
        if room == 0 {
            return;
        }
        let bytes = self.bytes(room.min(50_000));
        let file = OpenOptions::new().append(true).create(true).open(self.path(name));
        file.and_then(|mut file| file.write_all(&bytes)).expect("appends");
        self.files.entry(name.to_owned()).or_default().extend(bytes);
    }

    fn truncate(&mut self, name: &str) {
        let size = self.random.random_range(0..BYTES_MAX);
        self.open(name).set_len(size as u64).expect("truncates");
        self.files.entry(name.to_owned()).or_default().resize(size, 0);
    }

    /// Another file takes its name.
    fn replace(&mut self, name: &str) {
        let bytes = self.bytes(BYTES_MAX);
        let draft = self.path("draft");
        fs::write(&draft, &bytes).expect("writes");
        fs::rename(&draft, self.path(name)).expect("renames");
        self.gone(name);
        self.files.insert(name.to_owned(), bytes);
    }

    fn remove(&mut self, name: &str) {
        if self.files.contains_key(name) {
            fs::remove_file(self.path(name)).expect("removes");
            self.gone(name);
            self.files.remove(name);
        }
    }

    /// A name has gone; a file that is held keeps what it has.
    fn gone(&mut self, name: &str) {
        if self.held.as_ref().is_some_and(|(held, _)| held == name) {
            self.let_go();
        }
    }

    fn hold(&mut self, name: &str) {
        let file = self.open(name);
        self.files.entry(name.to_owned()).or_default();
        self.let_go();
        self.held = Some((name.to_owned(), file));
    }

    /// Closes the file that is held, once it has been read.
    fn let_go(&mut self) {
        let Some((name, file)) = self.held.take() else { return };
        let Some(known) = self.files.get(&name) else { return };
        let mut bytes = vec![0; known.len()];
        file.read_exact_at(&mut bytes, 0).expect("reads");
        assert_same(&bytes, known, &format!("{name}, while it is open"));
    }

    fn check_one(&self, name: &str) {
        let found = fs::read(self.path(name));
        match self.files.get(name) {
            Some(known) => assert_same(&found.expect("reads"), known, &self.shown(name)),
            None => assert!(found.is_err(), "{} is there", self.shown(name)),
        }
    }

    fn shown(&self, name: &str) -> String {
        format!("{} after {} steps", self.path(name).display(), self.steps)
    }

    /// Has everything on stable storage, and nothing open.
    pub fn sync(&mut self) {
        self.let_go();
        for name in self.files.keys() {
            File::open(self.path(name)).and_then(|file| file.sync_all()).expect("syncs");
        }
        File::open(&self.folder).and_then(|folder| folder.sync_all()).expect("syncs");
    }

    /// Checks all files.
    pub fn check(&self) {
        for number in 0..FILES {
            self.check_one(&format!("file-{number}"));
        }
    }
}

/// What a snapshot has to hold.
pub struct Record {
    name: String,
    content: Vec<(PathBuf, Content)>,
}

impl Record {
    pub fn of<'a>(name: &str, programs: impl Iterator<Item = &'a Program>) -> Record {
        let content_of = |program: &Program| {
            let folder = program.folder.file_name().expect("has a name");
            (PathBuf::from(folder), program.files.clone())
        };
        Record { name: name.to_owned(), content: programs.map(content_of).collect() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the snapshot holds this, and no other files.
    pub fn check(&self, grid: &Mounted) {
        for (folder, files) in &self.content {
            let place = grid.data().join(".snapshots").join(&self.name).join(folder);
            let entries = fs::read_dir(&place).expect("lists");
            let mut found: Vec<_> = entries
                .map(|entry| entry.expect("lists").file_name().into_string().expect("is UTF-8"))
                .collect();
            found.sort();
            assert!(found.iter().eq(files.keys()), "{}: {found:?}", place.display());
            for (name, known) in files {
                let path = place.join(name);
                let bytes = fs::read(&path).expect("reads");
                assert_same(&bytes, known, &path.display().to_string());
            }
        }
    }
}

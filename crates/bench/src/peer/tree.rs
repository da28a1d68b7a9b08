//! A source tree as an archive: many small files in nested directories under git, the same at every run.
//!
//! Files have the sizes of source code (lognormal, half below 3 KiB), 20 to a directory. Everything is
//! committed and packed, so that the archive holds the tree and a handful of files of git's own. The
//! largest tree takes about 200 MB while it is made, in memory if the machine has a file system there.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, LogNormal};

use crate::disk::check_space;
use crate::external::{find, run};

/// Where names, sizes and content come from.
const SEED: u64 = 12_000;
/// Files in a directory, and directories in one above.
const FAN_OUT: u64 = 20;
/// Half of the files are smaller, in bytes; the largest.
const MEDIAN_BYTES: f64 = 3072.0;
const MOST_BYTES: f64 = 128.0 * 1024.0;
/// Words of the text.
const WORDS: [&str; 12] = [
    "let", "extent", "stripe", "inode", "lease", "return", "match", "epoch", "replica", "prefetch",
    "=>", "{ }",
];

/// Where trees are made, if it is there: thousands of files that are removed at once would have the
/// machine's ext4 create slowly for minutes.
const MEMORY: &str = "/dev/shm";
/// Room that it needs for that.
const ROOM: ByteSize = ByteSize::mib(512);

/// Path of file `number` below the root of a tree.
fn path(number: u64) -> PathBuf {
    let folder = number / FAN_OUT;
    let (outer, inner) = (folder / FAN_OUT, folder % FAN_OUT);
    PathBuf::from(format!("part-{outer:03}/module-{inner:02}/file-{:02}.rs", number % FAN_OUT))
}

/// Text of about `bytes`.
fn content(random: &mut StdRng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 64);
    while text.len() < bytes {
        let word = WORDS[random.random_range(0..WORDS.len())];
        let end = if random.random_bool(0.15) { "\n" } else { " " };
        let _ = write!(text, "{word} x{}{end}", random.random_range(0..1000));
    }
    text
}

/// Makes a tree of `files` files and archives it in `folder`; returns the archive.
///
/// # Errors
/// If git or tar is missing or fails.
pub fn archive(folder: &Path, files: u64) -> Result<PathBuf> {
    let memory = Path::new(MEMORY);
    let parent = if check_space(memory, ROOM).is_ok() { memory } else { folder };
    let workshop = tempfile::Builder::new().prefix("forebay-tree-").tempdir_in(parent)?;
    let tree = workshop.path();
    let mut random = StdRng::seed_from_u64(SEED);
    let sizes = LogNormal::new(MEDIAN_BYTES.ln(), 1.0).context("sizes of files")?;
    for number in 0..files {
        let path = tree.join(path(number));
        if number % FAN_OUT == 0 {
            fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        }
        let bytes: f64 = sizes.sample(&mut random);
        let text = content(&mut random, bytes.min(MOST_BYTES) as usize);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    let git = find("git")?;
    let at = tree.as_os_str();
    let settings = [
        "user.name=bench",
        "user.email=bench@localhost",
        "commit.gpgsign=false",
        // Or git packs the tree in the background while it is archived.
        "gc.auto=0",
        "maintenance.auto=false",
    ];
    let settings = settings.map(|setting| ["-c", setting]).concat();
    for step in [
        &["init", "--quiet"][..],
        &["add", "--all"],
        &["commit", "--quiet", "--message=tree"],
        &["repack", "--quiet", "-a", "-d"],
    ] {
        let arguments = settings.iter().chain(step).map(AsRef::as_ref);
        run(&git, ["-C".as_ref(), at].into_iter().chain(arguments))?;
    }
    let archive = folder.join(format!("tree-{files}.tar"));
    let pack = ["--create", "--sort=name", "--file"].map(AsRef::as_ref);
    let what = [archive.as_os_str(), "--directory".as_ref(), at, ".".as_ref()];
    run(&find("tar")?, pack.into_iter().chain(what))?;
    workshop.close()?;
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_same_each_time_and_has_as_many_files_as_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let listing = |at: &str| {
            let folder = folder.path().join(at);
            fs::create_dir(&folder).unwrap();
            let archive = archive(&folder, 45).unwrap();
            let listed =
                run(&find("tar").unwrap(), ["-tvf".as_ref(), archive.as_os_str()]).unwrap();
            let files = listed.lines().filter(|line| line.ends_with(".rs"));
            // Mode and owner, size; the time differs; the path.
            let parts = files.map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                (fields[2].to_owned(), fields[5].to_owned())
            });
            parts.collect::<Vec<_>>()
        };
        let first = listing("first");
        assert_eq!(first.len(), 45);
        assert_eq!(first, listing("second"));
        assert!(first.iter().any(|(_, path)| path == "./part-000/module-02/file-04.rs"));
    }
}

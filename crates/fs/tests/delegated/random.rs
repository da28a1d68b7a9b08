//! Random changes by a node in directories of its own, and random visitors: everybody sees what a plain tree would show.

use std::collections::BTreeMap;

use forebay_base::{Ino, Timestamp};
use forebay_fs::record::Kind;
use forebay_fs::{FsError, Namespace, Replace, SetAttributes, SetTime};

use crate::site::{Site, own_directory, put};
use crate::support::{READ_WRITE, ROOT, Shorthand as _, User, Weather, directory};

/// What is known of an inode in the plain tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plain {
    kind: Kind,
    mode: u16,
    size: u64,
    modified: Option<Timestamp>,
}

/// Every path below a directory.
type Tree = BTreeMap<String, Plain>;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % bound
    }
}

/// The tree as `fs` shows it. Times are compared where they were set last.
fn seen(fs: &Namespace, top: Ino, expected: &Tree) -> Tree {
    let mut tree = Tree::new();
    let mut below = vec![(String::new(), top)];
    while let Some((at, directory)) = below.pop() {
        for name in fs.names(directory) {
            let found = fs.lookup(directory, name.as_bytes()).unwrap();
            fs.forget(found.ino, 1);
            let at = format!("{at}/{name}");
            if found.kind == Kind::Directory {
                below.push((at.clone(), found.ino));
            }
            let times = expected.get(&at).is_some_and(|plain| plain.modified.is_some());
            let modified = times.then_some(found.modified);
            let size = if found.kind == Kind::Directory { 0 } else { found.size };
            tree.insert(at, Plain { kind: found.kind, mode: found.mode, size, modified });
        }
    }
    tree
}

/// Whether a path names nothing that lies in a directory.
fn is_empty(tree: &Tree, path: &str) -> bool {
    !tree.keys().any(|other| other.starts_with(&format!("{path}/")))
}

/// A place in the tree: its directory, its name, and its path.
fn place(fs: &Namespace, top: Ino, tree: &Tree, random: &mut Random) -> (Ino, String, String) {
    let directories: Vec<&String> = tree
        .iter()
        .filter(|(_, plain)| plain.kind == Kind::Directory)
        .map(|(path, _)| path)
        .collect();
    let above = match random.below(directories.len() + 1) {
        0 => String::new(),
        number => directories[number - 1].clone(),
    };
    let walk = |at, name: &str| fs.find(at, name).unwrap_or_else(|| panic!("{above} is there"));
    let ino = above.split('/').filter(|name| !name.is_empty()).fold(top, walk);
    let name = format!("n{}", random.below(5));
    let path = format!("{above}/{name}");
    (ino, name, path)
}

fn set(user: &User, ino: Ino, plain: &mut Plain, number: u64, random: &mut Random) {
    if random.below(2) == 0 {
        let mode = [0o600, 0o755, 0o640][random.below(3)];
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        user.fs.set_attributes(ino, set).unwrap();
        plain.mode = mode;
    } else {
        let time = Timestamp { seconds: 5_000 + i64::try_from(number).unwrap(), nanoseconds: 7 };
        let set = SetAttributes { modified: Some(SetTime::To(time)), ..SetAttributes::default() };
        user.fs.set_attributes(ino, set).unwrap();
        // A directory shows the time of its next change.
        plain.modified = (plain.kind == Kind::File).then_some(time);
    }
}

/// One change by `user`, in the tree as well.
fn change(user: &User, top: Ino, tree: &mut Tree, number: u64, random: &mut Random) {
    let (above, name, path) = place(&user.fs, top, tree, random);
    let found = tree.get(&path).cloned();
    let bytes = name.as_bytes();
    match (random.below(10), found) {
        (0..2, None) => {
            user.fs.create(above, bytes, directory(0o755), ROOT).unwrap();
            tree.insert(
                path,
                Plain { kind: Kind::Directory, mode: 0o755, size: 0, modified: None },
            );
        }
        (2..6, None) => {
            let handle = user.create_file(above, &name, READ_WRITE).unwrap();
            let size = random.below(3) * 10;
            let mut plain =
                Plain { kind: Kind::File, mode: 0o644, size: size as u64, modified: None };
            if size > 0 {
                handle.write(0, &vec![1; size]);
            }
            if random.below(3) == 0 {
                set(user, handle.ino, &mut plain, number, random);
            }
            handle.close();
            tree.insert(path, plain);
        }
        (_, None) => assert!(matches!(user.fs.lookup(above, bytes), Err(FsError::NotFound))),
        (0..3, Some(plain)) if plain.kind == Kind::File => {
            user.fs.unlink(above, bytes).unwrap();
            tree.remove(&path);
        }
        (0..3, Some(_)) if is_empty(tree, &path) => {
            user.fs.remove_directory(above, bytes).unwrap();
            tree.remove(&path);
        }
        (0..3, Some(_)) => {
            assert!(matches!(user.fs.remove_directory(above, bytes), Err(FsError::NotEmpty)));
        }
        (3..5, Some(plain)) if plain.kind == Kind::File => {
            let new = format!("n{}", random.below(5));
            let new_path = format!("{}{new}", &path[..path.len() - name.len()]);
            let is_directory = tree.get(&new_path).is_some_and(|it| it.kind == Kind::Directory);
            let renamed = user.fs.rename(above, bytes, above, new.as_bytes(), Replace::Allowed);
            if is_directory {
                assert!(matches!(renamed, Err(FsError::IsDirectory)));
                return;
            }
            renamed.unwrap();
            tree.remove(&path);
            tree.insert(new_path, plain);
        }
        (_, Some(mut plain)) => {
            let ino = user.fs.find(above, &name).unwrap();
            set(user, ino, &mut plain, number, random);
            tree.insert(path, plain);
        }
    }
}

#[test]
fn random_changes_in_directories_of_ones_own_are_what_everybody_sees() {
    let seed = forebay_base::seed::announce("cargo test -p forebay-fs --test delegated random") | 1;
    let mut random = Random(seed);
    for round in 0..12_u64 {
        let site = Site::new();
        let (one, two, three) = site.three();
        let top = own_directory(&two, "own");
        let mut tree = Tree::new();
        two.fs.unlink(top, b"first").unwrap();
        for number in 0..250 {
            change(&two, top, &mut tree, number, &mut random);
            match random.below(60) {
                0 => two.fs.report_all().unwrap(),
                1 => {
                    // Each second report has no answer.
                    *site.nodes.weather.lock() = Weather { lost: 2, delay_us: 0 };
                    let _ = two.fs.report_all();
                    *site.nodes.weather.lock() = Weather::default();
                }
                2 if number > 150 => {
                    let user = [&one, &three][random.below(2)];
                    let own = user.fs.find(user.fs.fileset("data"), "own").unwrap();
                    assert_eq!(seen(&user.fs, own, &tree), tree, "round {round}, seed {seed}");
                }
                _ => {}
            }
        }
        for user in [&two, &three, &one] {
            let own = user.fs.find(user.fs.fileset("data"), "own").unwrap();
            assert_eq!(seen(&user.fs, own, &tree), tree, "round {round}, seed {seed}");
        }
        put(&two, top, "last", b"last");
    }
}

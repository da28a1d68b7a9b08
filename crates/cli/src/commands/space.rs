//! `forebay space`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_fs::census::{AGES, ArchiveCensus, Census, Held};
use serde::Serialize;

use super::waiters::home_of;
use crate::attribution::Users;
use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::output::{Table, bytes, put_json};

/// How long a daemon may take to count.
pub const LIMIT: Duration = Duration::from_mins(30);
/// What stands for users without a row of their own.
const OTHERS: &str = "(other users)";

/// Show who holds how much space, and how old it is: by fileset, user and age.
///
/// Counts the sizes of files and the number of inodes in one pass over all names; programs go on meanwhile. The age of a file is the
/// time since its content last changed (mtime). A file that is being written counts with its size at the last commit. In a
/// cluster each fileset is counted by the node that owns it, so every node gives the same answer. Native filesets
/// are not counted: `forebay areas` lists work areas with their size. A fileset that was not counted is named on standard
/// error, or under "not_counted" with --json.
///
/// What only snapshots hold is not in these numbers: --snapshots shows what deleting each snapshot would give back, and what
/// deleting all of a fileset would. Blocks that the disk shares with other files (reflinks of XFS and Btrfs) are counted there
/// and stay in use, so those numbers are upper bounds on such disks.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay space /mnt/forebay
  forebay space /mnt/forebay --by age
  forebay space /srv/forebay --by user,age --fileset data
  forebay space /srv/forebay --snapshots
  forebay space --json | jq '.rows[] | select(.bytes > 1e12)'")]
pub struct Space {
    /// Mount point or home folder [default: the only file system that is mounted on this machine].
    file_system: Option<PathBuf>,
    /// How to group: fileset, user, age, or several of them.
    #[arg(long, value_name = "KEYS", value_delimiter = ',', default_value = "fileset,user")]
    by: Vec<Key>,
    /// Count only this fileset; / is the root fileset.
    #[arg(long, value_name = "NAME")]
    fileset: Option<String>,
    /// Show what deleting snapshots would give back, instead.
    #[arg(long, conflicts_with = "by")]
    snapshots: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Key {
    Fileset,
    User,
    Age,
}

/// A row of the answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    fileset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<&'static str>,
    inodes: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Found<'a> {
    rows: &'a [Row],
    /// Filesets that were not counted, with the reason.
    not_counted: BTreeMap<&'a str, &'a str>,
    /// What lies in archives, all filesets together.
    archives: &'a [ArchiveCensus],
    seconds: f64,
}

/// What a user holds in a fileset in a class of age.
pub struct Cell<'a> {
    pub fileset: &'a str,
    /// None for the users without a row.
    pub uid: Option<u32>,
    /// Place in [`AGES`].
    pub age: usize,
    pub held: Held,
}

/// All that a census counted, in its order; nothing that is empty.
pub fn cells(census: &Census) -> impl Iterator<Item = Cell<'_>> {
    census.filesets.iter().flat_map(|fileset| {
        let users = fileset.users.iter().map(|user| (Some(user.uid), user.ages));
        users.chain([(None, fileset.others)]).flat_map(move |(uid, ages)| {
            let cell = move |(age, held)| Cell { fileset: &fileset.fileset, uid, age, held };
            ages.into_iter().enumerate().map(cell).filter(|cell| cell.held.inodes > 0)
        })
    })
}

/// The name of the user of a cell.
pub fn user_of(uid: Option<u32>, users: &mut Users) -> String {
    uid.map_or_else(|| OTHERS.to_owned(), |uid| users.name(Some(uid)))
}

impl Space {
    pub fn run(self) -> Result<ExitCode> {
        let home = home_of(self.file_system.as_deref())?;
        if self.snapshots {
            return of_snapshots(&home, self.fileset, self.json);
        }
        let asked = control::ask_within(home.root(), &Ask::Census, LIMIT)
            .context("space is counted by the daemon of a mounted file system")?;
        let Answer::Census(mut census) = asked else {
            bail!("the daemon's answer is not a census; is it a different version?")
        };
        if let Some(name) = &self.fileset {
            census.filesets.retain(|fileset| fileset.fileset == *name);
            ensure!(
                !census.filesets.is_empty(),
                "there is no fileset \"{name}\": `forebay fileset list` names them, / is the root fileset"
            );
        }
        let rows = grouped(&census, &self.by, &mut Users::default());
        let why_not = |fileset: &forebay_fs::census::FilesetCensus| fileset.not_counted.clone();
        if self.json {
            let reasons = census.filesets.iter();
            let not_counted = reasons
                .filter_map(|fileset| Some((&*fileset.fileset, fileset.not_counted.as_deref()?)))
                .collect();
            let archives = &census.archives;
            put_json(&Found { rows: &rows, not_counted, archives, seconds: census.seconds })?;
            return Ok(ExitCode::SUCCESS);
        }
        out!("{}", render(&rows, &self.by));
        for archive in &census.archives {
            outln!(
                "of these, {} files with {} lie in archive {} (pool {}), where they take {}{}",
                archive.files,
                bytes(archive.bytes),
                archive.location,
                archive.pool,
                bytes(archive.stored_bytes),
                archive
                    .ratio()
                    .map_or_else(String::new, |ratio| format!(": compressed {ratio:.2} to 1"))
            );
            if archive.premigrated_files > 0 {
                outln!(
                    "{} more files with {} are premigrated there ({}) and lie here too: evicting them frees their space here",
                    archive.premigrated_files,
                    bytes(archive.premigrated_bytes),
                    bytes(archive.premigrated_stored_bytes)
                );
            }
        }
        for fileset in &census.filesets {
            if let Some(why) = why_not(fileset) {
                note!("forebay: fileset {} was not counted: {why}", fileset.fileset);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What deleting snapshots would give back.
fn of_snapshots(home: &Home, fileset: Option<String>, json: bool) -> Result<ExitCode> {
    let asked = control::ask_within(home.root(), &Ask::SnapshotSpace { fileset }, LIMIT)
        .context("space is counted by the daemon of a mounted file system")?;
    let Answer::SnapshotSpace { filesets } = asked else {
        bail!("the daemon's answer cannot be understood; is it a different version?")
    };
    if json {
        put_json(&filesets)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["FILESET", "SNAPSHOT", "OBJECTS", "FREED"]);
    for one in &filesets {
        let each = one.snapshots.iter().map(|snapshot| (&*snapshot.name, snapshot.freed));
        for (name, freed) in each.chain([("(all of them)", one.all)]) {
            let cells = [&*one.fileset, name, &freed.objects.to_string(), &bytes(freed.bytes)];
            table.row(cells.into_iter().map(str::to_owned).collect());
        }
    }
    out!("{}", table.render());
    Ok(ExitCode::SUCCESS)
}

/// What a row is of: fileset, user and class of age, where they are keys.
type Group<'a> = (Option<&'a str>, Option<String>, Option<usize>);

/// Rows by some keys: by age in the order of ages, otherwise what holds most first.
fn grouped(census: &Census, by: &[Key], users: &mut Users) -> Vec<Row> {
    let mut sums: BTreeMap<Group<'_>, Held> = BTreeMap::new();
    for cell in cells(census) {
        let fileset = by.contains(&Key::Fileset).then_some(cell.fileset);
        let user = by.contains(&Key::User).then(|| user_of(cell.uid, users));
        let age = by.contains(&Key::Age).then_some(cell.age);
        let sum = sums.entry((fileset, user, age)).or_default();
        sum.inodes += cell.held.inodes;
        sum.bytes += cell.held.bytes;
    }
    let rows = sums.into_iter().map(|((fileset, user, age), held)| Row {
        fileset: fileset.map(str::to_owned),
        user,
        age: age.map(|age| AGES[age].0),
        inodes: held.inodes,
        bytes: held.bytes,
    });
    let mut rows: Vec<Row> = rows.collect();
    if !by.contains(&Key::Age) {
        rows.sort_by_key(|row| std::cmp::Reverse((row.bytes, row.inodes)));
    }
    rows
}

fn render(rows: &[Row], by: &[Key]) -> String {
    let heading = |key: &Key| match key {
        Key::Fileset => "FILESET",
        Key::User => "USER",
        Key::Age => "CONTENT CHANGED",
    };
    // The same order as that of the rows, whatever the order of the keys.
    let keys: Vec<Key> =
        [Key::Fileset, Key::User, Key::Age].into_iter().filter(|key| by.contains(key)).collect();
    let headings: Vec<&str> = keys.iter().map(heading).chain(["INODES", "BYTES"]).collect();
    let mut table = Table::new(&headings);
    for row in rows {
        let cell = |key: &Key| match key {
            Key::Fileset => row.fileset.clone().unwrap_or_default(),
            Key::User => row.user.clone().unwrap_or_default(),
            Key::Age => row.age.unwrap_or_default().to_owned(),
        };
        let sums = [row.inodes.to_string(), bytes(row.bytes)];
        table.row(keys.iter().map(cell).chain(sums).collect());
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use forebay_fs::census::{ByAge, FilesetCensus, UserCensus};

    use super::*;

    #[test]
    fn rows_are_sums_over_what_is_not_a_key() {
        let ages = |first: u64, last: u64| {
            let mut ages = ByAge::default();
            ages[0] = Held { inodes: 1, bytes: first };
            ages[5] = Held { inodes: 2, bytes: last };
            ages
        };
        let user = |uid, first, last| UserCensus { uid, ages: ages(first, last) };
        let fileset = |name: &str, users| FilesetCensus {
            fileset: name.to_owned(),
            users,
            ..FilesetCensus::default()
        };
        let census = Census {
            filesets: vec![
                fileset("/", vec![user(4_000_001, 1, 2)]),
                fileset("data", vec![user(4_000_001, 10, 20), user(4_000_002, 100, 200)]),
            ],
            archives: Vec::new(),
            seconds: 0.0,
        };
        let users = &mut Users::default();
        let rows = grouped(&census, &[Key::User], users);
        let sums: Vec<_> = rows.iter().map(|row| (row.user.as_deref(), row.bytes)).collect();
        assert_eq!(sums, [(Some("4000002"), 300), (Some("4000001"), 33)]);
        let rows = grouped(&census, &[Key::Age], users);
        let sums: Vec<_> = rows.iter().map(|row| (row.age, row.inodes, row.bytes)).collect();
        assert_eq!(sums, [(Some("under 1 day"), 3, 111), (Some("over 1 year"), 6, 222)]);
        let text = render(
            &grouped(&census, &[Key::User, Key::Fileset], users),
            &[Key::User, Key::Fileset],
        );
        assert!(text.starts_with("FILESET") && text.contains("4000002"), "{text}");
    }
}

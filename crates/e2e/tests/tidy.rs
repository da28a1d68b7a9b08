//! The habits of the code base, checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_e2e::need::workspace;

const LINES_MAX: usize = 700;

/// Marks of unfinished work, put together here so that this file does not hold them.
const UNFINISHED: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
];

/// First folders of paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 5] = ["home", "root", "work", "Users", "tmp/tools"];

/// Every file below `folder` that git would track, as far as a walk can tell.
fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.expect("reads a folder").path()) {
        let name = entry.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if entry.is_dir() {
            if !["target", ".git", ".cache"].contains(&name.as_str()) {
                files_below(&entry, files);
            }
        } else {
            files.push(entry);
        }
    }
}

fn files_in(folders: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in folders {
        files_below(&workspace().join(folder), &mut files);
    }
    assert!(!files.is_empty(), "found no files in {folders:?}");
    files.sort();
    files
}

fn rust_files() -> Vec<PathBuf> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files_in(&["crates"]).into_iter().filter(is_rust).collect()
}

/// Text of a file; none for files that are not text.
fn text(path: &Path) -> Option<String> {
    String::from_utf8(fs::read(path).expect("reads a file")).ok()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

#[test]
fn no_source_file_is_longer_than_700_lines() {
    let long: Vec<String> = rust_files()
        .iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "src"))
        .map(|path| (path, text(path).expect("Rust is text").lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{}: {lines} lines", shown(path)))
        .collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines; is a concept missing? {long:#?}");
}

#[test]
fn no_unfinished_work_is_marked_in_the_code() {
    let mut marks = Vec::new();
    for path in rust_files() {
        for (number, line) in text(&path).expect("Rust is text").lines().enumerate() {
            if UNFINISHED.iter().any(|mark| line.contains(mark)) {
                marks.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    assert!(marks.is_empty(), "{marks:#?}");
}

/// Whether `line` holds a path that starts in one of [`MACHINE_FOLDERS`]. The same name deeper in a
/// path is fine.
fn names_a_machine(line: &str) -> bool {
    MACHINE_FOLDERS.iter().any(|folder| {
        let path = format!("/{folder}/");
        line.match_indices(&path).any(|(at, _)| {
            line[..at].chars().next_back().is_none_or(|before| "\"'`( =:<".contains(before))
        })
    })
}

#[test]
fn machine_paths_are_told_from_others() {
    assert!(names_a_machine(concat!("see \"/ho", "me/someone/x\"")));
    assert!(names_a_machine(concat!("cd /wo", "rk/x")));
    assert!(!names_a_machine("ROOT/work/x, mnt/work/y, {}/root/forebay.pid, /var/tmp/root/z"));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let mut found = Vec::new();
    let mut files = files_in(&["crates", "docs", "scripts", ".ci"]);
    for entry in fs::read_dir(workspace()).expect("reads the workspace") {
        let path = entry.expect("reads the workspace").path();
        if path.is_file() {
            files.push(path);
        }
    }
    for path in files {
        for (number, line) in text(&path).unwrap_or_default().lines().enumerate() {
            if names_a_machine(line) {
                found.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The list items of a Markdown text, each joined to one line.
fn clauses(markdown: &str) -> Vec<String> {
    let mut clauses: Vec<String> = Vec::new();
    let mut open = false;
    for line in markdown.lines() {
        if let Some(start) = line.strip_prefix("- ") {
            clauses.push(start.trim().to_owned());
            open = true;
        } else if open && line.starts_with("  ") && !line.trim().is_empty() {
            let clause = clauses.last_mut().expect("an open clause is the last one");
            clause.push(' ');
            clause.push_str(line.trim());
        } else {
            open = false;
        }
    }
    clauses
}

/// The tests that a clause names at its end: (test: `one`, `two`).
fn tests_of(clause: &str) -> Vec<&str> {
    let named = clause.trim_end_matches('.').strip_suffix(')');
    let Some((_, names)) = named.and_then(|text| text.rsplit_once("(test: ")) else {
        return Vec::new();
    };
    names.split(',').map(|name| name.trim().trim_matches('`')).collect()
}

#[test]
fn a_clause_names_its_tests_at_its_end() {
    assert_eq!(tests_of("Writes are kept. (test: `one`, `two`)"), ["one", "two"]);
    assert_eq!(clauses("text\n- first\n  goes on (test: `one`)\n\n- second\n").len(), 2);
    assert!(tests_of("Writes are kept.").is_empty());
}

#[test]
fn every_clause_of_the_semantics_names_a_test_that_exists() {
    let path = workspace().join("docs/semantics.md");
    let semantics = fs::read_to_string(&path).expect("docs/semantics.md states the promises");
    let code: String = rust_files().iter().filter_map(|path| text(path)).collect();
    let functions: BTreeSet<&str> = code
        .split("fn ")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""))
        .collect();
    let mut faults = Vec::new();
    for clause in clauses(&semantics) {
        let tests = tests_of(&clause);
        if tests.is_empty() {
            faults.push(format!("names no test: {clause}"));
        }
        for test in tests.iter().filter(|test| !functions.contains(*test)) {
            faults.push(format!("no test {test}: {clause}"));
        }
    }
    assert!(faults.is_empty(), "docs/semantics.md: {faults:#?}");
}

/// Phrases that readers stumbled over, and what to write instead. They are looked for in pages of docs, in help texts and in
/// errors, without regard to case.
const STUMBLES: [(&str, &str); 26] = [
    ("ended well", "succeeded"),
    (" is no ", " is not a "),
    ("on to count", "stay in force"),
    ("what was asked for", "what was requested"),
    ("it was asked for", "as requested"),
    ("can be had", "is available"),
    ("cannot be had", "is not available"),
    ("present directory", "current directory"),
    ("runs already", "is already running"),
    ("went away", "disconnected"),
    (" is away", " is unreachable"),
    (" are away", " are unreachable"),
    ("tells of", "reports"),
    ("told of", "notified of"),
    ("whoever ", "anyone who, or the user"),
    ("of a name", "with this name"),
    ("makes no sense", "cannot be understood"),
    ("is of another version", "is a different version"),
    ("exists already", "already exists"),
    ("for ever ", "forever"),
    ("in the next instant", "at once"),
    ("set aside", "reserved"),
    ("kept aside", "reserved"),
    ("unit of systemd", "systemd unit"),
    ("left out", "omitted"),
    ("what it takes to", "its requirements"),
];

/// Help texts that say nothing.
const EMPTY_HELP: [&str; 4] = ["/// Which.", "/// What.", "/// The same.", "/// Its name."];

/// The first stumble in a line, and what to write instead.
fn stumble(line: &str) -> Option<(&'static str, &'static str)> {
    let line = line.to_lowercase().replace("is no longer", "").replace("there is no ", "");
    STUMBLES.into_iter().find(|(phrase, _)| line.contains(phrase))
}

/// What users read of a line of Rust: string literals, and in the command's own crate the comments that clap shows.
fn shown_to_users(path: &Path, line: &str) -> Option<String> {
    let text = line.trim();
    let is_command = path.to_string_lossy().contains("crates/cli/src/commands");
    if let Some(comment) = text.strip_prefix("///") {
        return is_command.then(|| comment.to_owned());
    }
    let literals = text.split('"').skip(1).step_by(2).collect::<Vec<&str>>().join(" ");
    (!text.starts_with("//") && !literals.is_empty()).then_some(literals)
}

#[test]
fn stumbles_are_told_from_plain_words() {
    assert!(stumble("\"{x}\" is no number").is_some() && stumble("The host Is Away now").is_some());
    assert!(stumble("there is no job 7; it is no longer known, and not a number").is_none());
    let shown = |line| shown_to_users(Path::new("crates/fs/src/x.rs"), line);
    assert_eq!(shown("let a = \"b c\"; // \"d\"").as_deref(), Some("b c d"));
    assert_eq!((shown("/// It is no file."), shown("// It is \"no file\".")), (None, None));
}

#[test]
fn help_errors_and_docs_keep_clear_of_words_that_readers_stumble_over() {
    let mut found = Vec::new();
    let mut report = |path: &Path, number: usize, line: &str, (phrase, better): (&str, &str)| {
        let at = format!("{}:{}", shown(path), number + 1);
        found.push(format!("{at}: \"{phrase}\": write \"{better}\": {}", line.trim()));
    };
    let roots = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    let mut pages: Vec<PathBuf> = roots.iter().map(|name| workspace().join(name)).collect();
    pages.extend(files_in(&["docs", "examples"]));
    for path in pages {
        for (number, line) in text(&path).unwrap_or_default().lines().enumerate() {
            if let Some(found) = stumble(line) {
                report(&path, number, line, found);
            }
        }
    }
    for path in rust_files() {
        let name = shown(&path);
        if !name.contains("/src/") || name.contains("/e2e/") || name.contains("/bench/src/") {
            continue;
        }
        let code = text(&path).expect("Rust is text");
        let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            if let Some(found) = shown_to_users(&path, line).and_then(|text| stumble(&text)) {
                report(&path, number, line, found);
            }
            if name.starts_with("crates/cli/") && EMPTY_HELP.contains(&line.trim()) {
                report(&path, number, line, (line.trim(), "the thing itself"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

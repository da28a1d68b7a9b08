//! README.md, pasted from top to bottom.
//!
//! The language of a block says what it is, and readers do not see it: `sh` is pasted, and a `text` block right
//! behind such a block is what it prints; `bash` needs a network or builds the whole project, so it is printed here as skipped, and so is
//! `console`, which needs several machines (tests/cluster does the same).
//! The commands run in namespaces of their own (mounts and processes), with empty folders in the place of /srv and
//! /mnt: nothing of the machine's own is touched, and whatever they leave ends with the test.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::{need, run};

/// For all commands together, in a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(1200);

/// What begins a line of the output that says which block follows.
const MARK: &str = "== block ";

/// A fenced block of a Markdown file.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    language: String,
    text: String,
}

/// The fenced blocks of a Markdown text, in order.
fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => {
                blocks.push(Block { language: language.trim().to_owned(), text: String::new() });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                let block = blocks.last_mut().expect("an open block is the last one");
                block.text += &format!("{line}\n");
            }
            (None, false) => {}
        }
    }
    assert!(!open, "a block is not closed");
    blocks
}

/// The commands to paste, with a mark before each block: its number in the file.
fn script(blocks: &[Block]) -> String {
    let mut script = String::new();
    for (number, block) in blocks.iter().enumerate() {
        match block.language.as_str() {
            "sh" => script += &format!("echo '{MARK}{number}'\n{}", block.text),
            "bash" => {
                for line in block.text.lines() {
                    println!("skipped (needs a network, or builds everything): {line}");
                }
            }
            "console" => {
                for line in block.text.lines() {
                    println!("skipped (needs several machines): {line}");
                }
            }
            "text" => {}
            other => panic!("README.md: block {number}: the language {other:?} is not known here"),
        }
    }
    script
}

/// What each block printed, by its number.
fn printed(stdout: &str) -> Vec<(usize, &str)> {
    let parts = stdout.split(MARK).skip(1);
    parts
        .map(|part| {
            let (number, text) = part.split_once('\n').expect("a mark is a line");
            (number.parse().expect("a mark has a number"), text)
        })
        .collect()
}

#[test]
fn blocks_are_found_with_their_languages() {
    let found = blocks("a\n```sh\nx 1\n\ny\n```\nb\n```text\nz\n```\n");
    let block = |language: &str, text: &str| Block { language: language.into(), text: text.into() };
    assert_eq!(found, [block("sh", "x 1\n\ny\n"), block("text", "z\n")]);
    assert_eq!(printed(&format!("{MARK}0\n1\n{MARK}2\n")), [(0, "1\n"), (2, "")]);
}

/// Runs commands in a folder that stands for a fresh machine: its /srv, /mnt and home are empty.
fn paste(script: &str, machine: &Path) -> forebay_e2e::Ended {
    for folder in ["srv", "mnt", "home", "bin", "tmp", "clone"] {
        fs::create_dir(machine.join(folder)).expect("makes a folder");
    }
    let program = machine.join("bin/forebay");
    std::os::unix::fs::symlink(need::forebay(), program).expect("makes a link");
    let examples = need::workspace().join("examples");
    run(Command::new("cp").arg("-r").arg(examples).arg(machine.join("clone")), LIMIT).succeeds();
    fs::write(machine.join("tour.sh"), script).expect("writes a script");
    let path = std::env::var("PATH").unwrap_or_default();
    // The namespace must not keep what other tests have mounted: they wait for their daemons.
    let begin = "findmnt -rno TARGET -t fuse.forebay | while read -r place; do umount --lazy \"$place\"; done; \
                 mount --bind srv /srv && mount --bind mnt /mnt && cd clone && exec bash -ex ../tour.sh";
    let mut command = need::program("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", begin])
        .current_dir(machine)
        .env("HOME", machine.join("home"))
        .env("TMPDIR", machine.join("tmp"))
        .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", machine.join("bin").display()))
        .env_remove("FOREBAY_GRID");
    run(&mut command, LIMIT)
}

#[test]
fn the_readme_states_the_space_that_a_workload_needs() {
    let listed = run(Command::new(need::forebay()).args(["bench", "list"]), LIMIT).output();
    let row = listed.lines().find(|line| line.starts_with("mixed ")).expect("is listed");
    // Its name, scale and jobs; sizes of the inputs and of the space that it needs, each with a unit.
    let words: Vec<&str> = row.split_whitespace().collect();
    let claim = format!(
        "default scale of {}, `mixed` needs {} of free space",
        words[1],
        words[5..7].join(" ")
    );
    let readme = fs::read_to_string(need::workspace().join("README.md")).expect("reads README.md");
    assert!(readme.replace('\n', " ").contains(&claim), "README.md does not say: {claim}");
}

#[test]
fn everything_in_the_readme_can_be_pasted_from_top_to_bottom() {
    need::root();
    need::fuse();
    let readme = fs::read_to_string(need::workspace().join("README.md")).expect("reads README.md");
    let blocks = blocks(&readme);
    let machine = scratch_folder();
    let ended = paste(&script(&blocks), machine.path());
    assert_eq!(ended.code(), 0, "{}\n{}", ended.stdout, ended.stderr);
    let printed = printed(&ended.stdout);
    let pasted = blocks.iter().filter(|block| block.language == "sh").count();
    assert_eq!(printed.len(), pasted, "not every block ran:\n{}", ended.stdout);
    for (number, said) in printed {
        let Some(shown) = blocks.get(number + 1).filter(|block| block.language == "text") else {
            continue;
        };
        assert_eq!(said, shown.text, "README.md shows another output of block {number}");
    }
    for folder in ["srv", "mnt"] {
        let left = fs::read_dir(machine.path().join(folder)).expect("lists a folder").count();
        assert_eq!(left, 0, "the end of the tour leaves something in /{folder}");
    }
    let skipped = blocks.iter().filter(|block| block.language == "bash").count();
    println!("pasted {pasted} blocks, skipped {skipped}");
}

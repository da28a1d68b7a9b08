//! When a job counts as done, its files have their final size and bytes on every node.
//!
//! Jobs write on one node while a command on another one waits for their end and then reads, `FOREBAY_E2E_VISIBLE_ROUNDS` times in all.
//! Each read that shows anything else is counted.

use std::path::Path;
use std::sync::Mutex;

use forebay_e2e::setting;

use crate::fixture::{Nodes, text};

/// Commands at a time.
const WRITERS: u32 = 4;

/// The ways in which a job leaves a file; what the reading node knows of it before differs too.
const WAYS: u32 = 4;

/// What the job has to leave.
fn content(round: u32, bytes: usize) -> Vec<u8> {
    let line = format!("round {round} of many\n");
    line.bytes().cycle().take(bytes).collect()
}

/// One job, and what is seen after its end that is not what it left. `here` and `there` are one folder, on the node that reads and that
/// writes.
fn round(grid: &Nodes, (here, there): (&Path, &Path), writer: u32, round: u32) -> Vec<String> {
    let bytes = usize::try_from((round.wrapping_mul(7919) + writer) % 150_000).expect("fits");
    let expected = content(round, bytes);
    let name = format!("f-{writer}-{}", round % 8);
    let (file, far) = (here.join(&name), text(&there.join(&name)));
    let write = format!("yes 'round {round} of many' | head -c {bytes}");
    let (script, expected) = match round % WAYS {
        // The name was looked for in vain.
        0 => {
            let _ = std::fs::remove_file(&file);
            assert!(!file.exists());
            (format!("{write} >{far}"), expected)
        }
        // Other bytes were read from it, and a longer file.
        1 => {
            std::fs::write(&file, vec![b'x'; 200_000]).expect("writes");
            assert_eq!(std::fs::read(&file).expect("reads").len(), 200_000);
            (format!("{write} >{far}"), expected)
        }
        // Another file takes its place.
        2 => {
            std::fs::write(&file, "former").expect("writes");
            (format!("{write} >{far}.new && mv {far}.new {far}"), expected)
        }
        // It grows.
        _ => {
            std::fs::write(&file, "begin\n").expect("writes");
            (format!("{write} >>{far}"), [b"begin\n", &expected[..]].concat())
        }
    };
    let output = format!("o-{writer}");
    let options =
        ["submit", "--wait", "-m", "n1", "-o", &text(&there.join(&output))].map(str::to_owned);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let script = format!("{script}; echo said {round}");
    grid.as_user(0, 0, &[&options[..], &["--", "sh", "-c", &script]].concat()).succeeds();
    let mut stale = Vec::new();
    let mut see = |what: &str, is_right: bool, seen: String| {
        if !is_right {
            stale.push(format!("{what} of round {round} of writer {writer}: {seen}"));
        }
    };
    let length = std::fs::metadata(&file).map(|found| found.len());
    let is_right = length.as_ref().is_ok_and(|length| *length == expected.len() as u64);
    see("the size", is_right, format!("{length:?} instead of {}", expected.len()));
    let read = std::fs::read(&file);
    let is_right = read.as_ref().is_ok_and(|read| *read == expected);
    see("the bytes", is_right, format!("{:?} bytes", read.map(|read| read.len())));
    let said = std::fs::read_to_string(here.join(&output));
    let is_right = said.as_ref().is_ok_and(|said| *said == format!("said {round}\n"));
    see("the output", is_right, format!("{said:?}"));
    stale
}

#[test]
fn files_of_a_job_that_is_done_have_their_size_and_bytes_on_every_node() {
    let grid = Nodes::start(2, 1, "[general]\nlease = \"30 s\"\nhost_timeout = \"40 s\"\n");
    let (here, there) = (grid.shared(0), grid.shared(1));
    let rounds =
        u32::try_from(setting("FOREBAY_E2E_VISIBLE_ROUNDS", 120)).expect("a number of rounds");
    let stale = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (grid, folders, stale) = (&grid, (&*here, &*there), &stale);
            scope.spawn(move || {
                for number in 0..rounds.div_ceil(WRITERS) {
                    let seen = round(grid, folders, writer, number);
                    stale.lock().expect("no panic").extend(seen);
                }
            });
        }
    });
    let stale = stale.into_inner().expect("no panic");
    println!("{rounds} rounds, {} stale reads", stale.len());
    assert!(stale.is_empty(), "{} stale reads in {rounds} rounds: {stale:#?}", stale.len());
}

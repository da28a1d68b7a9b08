//! When a job counts as done, its files have their final size and bytes on every node.
//!
//! Jobs write on one node while a command on another one waits for their end and then reads, again and again for
//! `FOREBAY_E2E_VISIBLE_SECONDS`.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
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

/// One job, and what is seen after its end. `here` and `there` are one folder, on the node that reads and that writes.
fn round(grid: &Nodes, (here, there): (&Path, &Path), writer: u32, round: u32) {
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
    let seen = std::fs::metadata(&file).expect("is there").len();
    assert_eq!(seen, expected.len() as u64, "the size of round {round} of writer {writer}");
    let read = std::fs::read(&file).expect("reads");
    assert!(read == expected, "the bytes of round {round} of writer {writer}");
    let said = std::fs::read_to_string(here.join(&output)).expect("reads");
    assert_eq!(said, format!("said {round}\n"), "the output of writer {writer}");
}

#[test]
fn files_of_a_job_that_is_done_have_their_size_and_bytes_on_every_node() {
    let grid = Nodes::start(2, 1, "[general]\nlease = \"30 s\"\nhost_timeout = \"40 s\"\n");
    let (here, there) = (grid.shared(0), grid.shared(1));
    let time = Duration::from_secs(setting("FOREBAY_E2E_VISIBLE_SECONDS", 40));
    let (begun, rounds) = (SystemClock.instant(), AtomicU32::new(0));
    let elapsed = || SystemClock.instant().saturating_duration_since(begun);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (grid, folders, rounds) = (&grid, (&*here, &*there), &rounds);
            scope.spawn(move || {
                let mut number = 0;
                while elapsed() < time {
                    round(grid, folders, writer, number);
                    number += 1;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rounds = rounds.into_inner();
    println!("{rounds} rounds in {:?}", elapsed());
    assert!(rounds > WRITERS, "hardly anything was tried");
}

//! Files whose contents follow from a number, and what they must hold.

use std::collections::BTreeMap;

use forebay_base::Ino;
use forebay_base::seed::Dice;
use forebay_fs::{FsError, Result};

use super::{Shorthand as _, User};

/// Files with what they hold.
pub type Files = BTreeMap<Ino, Vec<u8>>;

/// The reason of a refusal.
pub fn refused<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// Contents with holes that follow from a number: a few bytes, some thousand, or up to 300,000.
pub fn bytes_of(number: u64) -> Vec<u8> {
    bytes_up_to(300_000, number)
}

/// As [`bytes_of`], of at most so many bytes.
pub fn bytes_up_to(largest: usize, number: u64) -> Vec<u8> {
    let mut dice = Dice::of(number);
    let most = [10, 5000, largest][dice.index(3)];
    let length = 1 + dice.index(most);
    let byte = |at: usize| if at / 8192 % 3 == 1 { 0 } else { (at as u64 * 7 + number) as u8 };
    (0..length).map(byte).collect()
}

/// Makes `file-0`, `file-1` and so on.
pub fn fill(fs: &User, parent: Ino, count: u64) -> Files {
    let mut files = Files::new();
    for number in 0..count {
        let ino = fs.make_file(parent, &format!("file-{number}"));
        let bytes = bytes_of(number);
        fs.write_file(ino, 0, &bytes);
        files.insert(ino, bytes);
    }
    files
}

pub fn assert_holds(fs: &User, files: &Files) {
    for (ino, bytes) in files {
        assert!(fs.contents(*ino) == *bytes, "inode {ino} has changed");
    }
}

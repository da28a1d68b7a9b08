//! Where an object lies below `objects`: 4096 numbers to a folder.
//!
//! Object 0x12345 is `objects/0000000012/345`. Folders grow by one digit beyond number 2⁵² - 1.

use forebay_base::{FilesetId, ObjectId};

/// Objects to a folder, as a power of two.
const MEMBERS_SHIFT: u32 = 12;

/// The folder of an object, as a number.
pub(super) fn folder_of(id: ObjectId) -> u64 {
    id.0 >> MEMBERS_SHIFT
}

/// The fileset whose objects a folder holds.
pub(super) fn fileset_of(folder: u64) -> FilesetId {
    ObjectId(folder << MEMBERS_SHIFT).fileset()
}

/// The name of a folder.
pub(super) fn folder_name(folder: u64) -> String {
    format!("{folder:010x}")
}

/// The path of an object below `objects`.
pub(super) fn object_path(id: ObjectId) -> String {
    format!("{:010x}/{:03x}", folder_of(id), id.0 & ((1 << MEMBERS_SHIFT) - 1))
}

/// The name of a fresh object in `fresh`, where a disk needs one.
pub(super) fn fresh_name(number: u64) -> String {
    format!("{number:016x}")
}

/// The number of the folder called `name`; `None` if no folder of ours is called so.
pub(super) fn parse_folder(name: &[u8]) -> Option<u64> {
    let folder = parse_hex(name)?;
    let ours = folder <= u64::MAX >> MEMBERS_SHIFT && folder_name(folder).as_bytes() == name;
    ours.then_some(folder)
}

/// The number of the object called `name` in `folder`; `None` if no object is called so.
pub(super) fn parse_member(folder: u64, name: &[u8]) -> Option<ObjectId> {
    let member = parse_hex(name).filter(|_| name.len() == 3)?;
    Some(ObjectId(folder << MEMBERS_SHIFT | member))
}

fn parse_hex(name: &[u8]) -> Option<u64> {
    let lower_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if !name.iter().all(lower_hex) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_back_to_their_numbers() {
        for (id, path) in [
            (0, "0000000000/000"),
            (0xfff, "0000000000/fff"),
            (0x1000, "0000000001/000"),
            (0x12345, "0000000012/345"),
            ((1 << 52) - 1, "ffffffffff/fff"),
            (1 << 52, "10000000000/000"),
            (u64::MAX, "fffffffffffff/fff"),
        ] {
            assert_eq!(object_path(ObjectId(id)), path);
            let (folder, member) = path.split_once('/').unwrap();
            let folder = parse_folder(folder.as_bytes()).unwrap();
            assert_eq!(parse_member(folder, member.as_bytes()), Some(ObjectId(id)));
        }
    }

    #[test]
    fn foreign_names_are_no_objects() {
        for name in ["", "0", "000000000", "00000000000", "000000000G", "000000000A", "+000000001"]
        {
            assert_eq!(parse_folder(name.as_bytes()), None, "{name}");
        }
        assert_eq!(parse_folder(b"fffffffffffffffff"), None);
        assert_eq!(parse_folder(b"10000000000000"), None);
        for name in ["", "00", "0000", "FFF", "00g", "a.b"] {
            assert_eq!(parse_member(0, name.as_bytes()), None, "{name}");
        }
    }
}

//! POSIX access control lists, in the extended attribute encoding of Linux (version 2).
//!
//! The kernel checks permissions; what is left to the file system is what it does when files are made
//! and when modes change: inherit the default list of a directory, and keep a list and the mode bits in
//! step. Rules: POSIX 1003.1e draft 17, section 23; encoding: `linux/posix_acl_xattr.h`.

use crate::error::{FsError, Result};

/// Attribute that holds the access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute that holds the default list of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permission: u16,
    id: u32,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

/// What a new inode gets from its parent's default list and the mode asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits of the new inode.
    pub mode: u16,
    /// Its access list, unless the mode says it all.
    pub access: Option<Acl>,
}

impl Acl {
    /// Reads the value of an ACL attribute.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is no well-formed list.
    pub fn parse(value: &[u8]) -> Result<Acl> {
        let (version, entries) = value.split_at_checked(4).ok_or(FsError::Invalid)?;
        if version != VERSION.to_le_bytes() || !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(FsError::Invalid);
        }
        let entries =
            entries.chunks_exact(ENTRY_BYTES).map(parse_entry).collect::<Result<Vec<_>>>()?;
        let acl = Acl(entries);
        acl.check()?;
        Ok(acl)
    }

    fn check(&self) -> Result<()> {
        let times = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = times(Tag::User) + times(Tag::Group);
        let complete =
            times(Tag::Owner) == 1 && times(Tag::OwningGroup) == 1 && times(Tag::Other) == 1;
        let masked = times(Tag::Mask) == 1 || (times(Tag::Mask) == 0 && named == 0);
        if complete && masked { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// The value of the ACL attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&tag_number(entry.tag).to_le_bytes());
            value.extend_from_slice(&entry.permission.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    fn permission(&self, tag: Tag) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permission)
    }

    fn set_permission(&mut self, tag: Tag, permission: u16) -> bool {
        match self.0.iter_mut().find(|entry| entry.tag == tag) {
            Some(entry) => {
                entry.permission = permission;
                true
            }
            None => false,
        }
    }

    fn group_class(&self) -> Tag {
        if self.permission(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The nine permission bits that the list stands for.
    #[must_use]
    pub fn mode_bits(&self) -> u16 {
        let bits = |tag| self.permission(tag).unwrap_or(0) & 7;
        bits(Tag::Owner) << 6 | bits(self.group_class()) << 3 | bits(Tag::Other)
    }

    /// Whether the mode bits say all that the list says.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.0.len() == 3
    }

    /// Follows a chmod: owner, group class and other take the bits of `mode`.
    pub fn apply_mode(&mut self, mode: u16) {
        self.set_permission(Tag::Owner, mode >> 6 & 7);
        self.set_permission(self.group_class(), mode >> 3 & 7);
        self.set_permission(Tag::Other, mode & 7);
    }

    /// What an inode made with `mode` inherits where this is the parent's default list: each class
    /// keeps what both the list and the mode grant. The umask does not count then.
    #[must_use]
    pub fn inherit(&self, mode: u16) -> Inherited {
        let mut access = self.clone();
        let granted = access.mode_bits() & mode;
        access.apply_mode(granted);
        let mode = mode & !0o777 | granted;
        Inherited { mode, access: (!access.is_mode_only()).then_some(access) }
    }
}

fn parse_entry(bytes: &[u8]) -> Result<Entry> {
    let tag = match u16::from_le_bytes([bytes[0], bytes[1]]) {
        0x01 => Tag::Owner,
        0x02 => Tag::User,
        0x04 => Tag::OwningGroup,
        0x08 => Tag::Group,
        0x10 => Tag::Mask,
        0x20 => Tag::Other,
        _ => return Err(FsError::Invalid),
    };
    let permission = u16::from_le_bytes([bytes[2], bytes[3]]);
    if permission > 7 {
        return Err(FsError::Invalid);
    }
    Ok(Entry { tag, permission, id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) })
}

fn tag_number(tag: Tag) -> u16 {
    match tag {
        Tag::Owner => 0x01,
        Tag::User => 0x02,
        Tag::OwningGroup => 0x04,
        Tag::Group => 0x08,
        Tag::Mask => 0x10,
        Tag::Other => 0x20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permission, id)| Entry { tag, permission, id }).collect())
    }

    fn named() -> Acl {
        acl(&[
            (Tag::Owner, 7, u32::MAX),
            (Tag::User, 7, 1000),
            (Tag::OwningGroup, 5, u32::MAX),
            (Tag::Mask, 7, u32::MAX),
            (Tag::Other, 0, u32::MAX),
        ])
    }

    #[test]
    fn a_list_reads_back_and_malformed_ones_are_refused() {
        assert_eq!(Acl::parse(&named().encode()).unwrap(), named());
        let without_mask = acl(&[(Tag::Owner, 7, 0), (Tag::User, 7, 1), (Tag::OwningGroup, 5, 0)]);
        assert!(Acl::parse(&without_mask.encode()).is_err());
        let value = named().encode();
        for cut in 0..value.len() {
            assert!(Acl::parse(&value[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn the_group_class_is_the_mask_where_there_is_one() {
        assert_eq!(named().mode_bits(), 0o770);
        let mut list = named();
        list.apply_mode(0o640);
        assert_eq!(list.mode_bits(), 0o640);
        assert_eq!(list.permission(Tag::OwningGroup), Some(5));
    }

    #[test]
    fn a_new_file_gets_what_list_and_mode_both_grant() {
        let inherited = named().inherit(0o4644);
        assert_eq!(inherited.mode, 0o4640);
        assert_eq!(inherited.access.unwrap().permission(Tag::User), Some(7));
        let plain = acl(&[(Tag::Owner, 7, 0), (Tag::OwningGroup, 5, 0), (Tag::Other, 5, 0)]);
        assert_eq!(plain.inherit(0o666), Inherited { mode: 0o644, access: None });
    }
}

//! A disk in a directory that several machines use at the same time.

use forebay_base::ObjectId;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::{Disk as _, DiskError, Sync};

fn label() -> Label {
    Label { file_system: "whole".to_owned(), disk: "both".to_owned() }
}

/// A disk in a folder, and two who use it.
fn with_two_users() -> (tempfile::TempDir, [DirectoryDisk; 2]) {
    let folder = tempfile::tempdir().unwrap();
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    let users =
        ["1", "2"].map(|user| DirectoryDisk::open_shared(folder.path(), &label(), user).unwrap());
    (folder, users)
}

#[test]
fn what_one_user_of_a_shared_disk_does_the_others_find_at_once() {
    let (folder, users) = with_two_users();
    for number in 1..200_u64 {
        let id = ObjectId(number);
        let (here, there) = (&users[number as usize % 2], &users[1 - number as usize % 2]);
        let made = here.create(id).unwrap();
        made.write_at(0, &number.to_le_bytes()).unwrap();
        here.publish(id, &*made).unwrap();
        let found = there.open(id).unwrap();
        assert_eq!(found.attributes().unwrap().size, 8);
        let mut bytes = [0; 8];
        found.read_at(0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number);
        found.append(b"more").unwrap();
        found.sync(Sync::All).unwrap();
        assert_eq!(made.attributes().unwrap().size, 12);
        if number % 3 == 0 {
            there.remove(id).unwrap();
            assert_eq!(here.attributes(id).unwrap(), None);
            assert!(matches!(here.open(id), Err(DiskError::NotFound(_))));
        }
    }
    // Of what the other one is about to publish nothing goes when one comes again.
    let young = users[0].create(ObjectId(1000)).unwrap();
    let again = DirectoryDisk::open_shared(folder.path(), &label(), "3").unwrap();
    users[0].publish(ObjectId(1000), &*young).unwrap();
    assert!(again.open(ObjectId(1000)).is_ok());
}

#[test]
fn a_shared_disk_cannot_be_used_alone_or_taken_away_while_others_use_it() {
    let (folder, users) = with_two_users();
    let in_use = |refused: DiskError| assert!(refused.to_string().contains("in use"), "{refused}");
    in_use(DirectoryDisk::open(folder.path(), &label()).err().unwrap());
    users[0].let_go();
    in_use(DirectoryDisk::unformat(folder.path(), &label()).unwrap_err());
    users[1].let_go();
    DirectoryDisk::unformat(folder.path(), &label()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    // And the other way round.
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    let _alone = DirectoryDisk::open(folder.path(), &label()).unwrap();
    in_use(DirectoryDisk::open_shared(folder.path(), &label(), "1").err().unwrap());
}

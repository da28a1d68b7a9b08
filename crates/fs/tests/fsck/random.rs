//! Random damage, from seeds: no panic, no contents lost, and repair ends with a clean file system.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::WholeStores;
use crate::tree::{Tree, damages_of};
use forebay_base::seed::{self, Dice};
use forebay_base::{FailPoints, FilesetId};
use forebay_fs::fsck::{self, Damage, Options, Outcome, Repair, Report};
use forebay_fs::key;

/// Damages one row in one of several ways.
fn damage_row(tree: &Tree, dice: &mut Dice, spare_the_head: bool) {
    let is_head = |key: &[u8]| [key::TERM, key::SUPERBLOCK].contains(&&key[2..]);
    let rows: Vec<_> =
        tree.rows().into_iter().filter(|(key, _)| !(spare_the_head && is_head(key))).collect();
    let (mut key, mut value) = rows[dice.index(rows.len())].clone();
    match dice.index(10) {
        0 => {
            tree.set_row(key.clone(), None);
            // It stays in its store.
            let at = 2 + dice.index(key.len() - 2);
            key[at] ^= 1 << dice.index(8);
        }
        1 => return tree.set_row(key, None),
        2 => value = rows[dice.index(rows.len())].1.clone(),
        3 => value.truncate(dice.index(value.len() + 1)),
        _ if value.is_empty() => {}
        _ => {
            let at = dice.index(value.len());
            value[at] ^= 1 << dice.index(8);
        }
    }
    let head_would_be_hit = spare_the_head && is_head(&key);
    if !head_would_be_hit {
        tree.set_row(key, Some(value));
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Whether a value was taken for a record of another version: its fileset is left alone then.
fn is_of_another_version(report: &Report) -> bool {
    damages_of(report).contains(&Damage::Version)
}

/// Filesets that fsck finds damage in which it does not repair.
fn hopeless_filesets(tree: &Tree) -> Vec<FilesetId> {
    let stores = tree.rig.stores();
    let disks = tree.rig.parts().disks;
    let checked = try_fsck(&stores, &disks, Repair::Never).unwrap();
    let left = checked.into_iter().filter(|checked| checked.report.outcome() == Outcome::Left);
    left.map(|checked| checked.id).collect()
}

/// Checks all filesets until one fails.
fn try_fsck(
    stores: &WholeStores,
    disks: &[fsck::NamedDisk],
    repair: Repair,
) -> forebay_fs::Result<Vec<fsck::whole::CheckedFileset>> {
    let mut how = Options {
        repair,
        records_lost: false,
        archives: forebay_fs::fsck::Archives::Trusted,
        stores: None,
        fileset: None,
        disks: None,
        filesets: None,
        progress: &mut |_| {},
    };
    let mut check = |id, how: &mut Options<'_>| fsck::check(&stores.of(id), disks, how);
    fsck::whole::check_all(stores, &mut how, &mut check)
}

/// The seeds of a random test, from a fresh one on; `FOREBAY_SEED=n` picks the first.
fn seeds(count: u64) -> impl Iterator<Item = (u64, Dice)> {
    seed::several(count, "cargo test -p forebay-fs --test fsck random").map(|seed| {
        println!("seed {seed}");
        (seed, Dice::of(seed))
    })
}

#[test]
fn random_damage_of_records_loses_no_contents() {
    for (seed, mut dice) in seeds(400) {
        let tree = Tree::make();
        let before = tree.listing();
        for _ in 0..=dice.index(12) {
            damage_row(&tree, &mut dice, true);
        }
        let found = tree.check(Repair::Never);
        let report = tree.check(Repair::Found);
        if is_of_another_version(&report) {
            continue;
        }
        assert_ne!(report.outcome(), Outcome::Left, "seed {seed}: {report:#?}");
        assert_eq!(report.outcome() == Outcome::Clean, found.outcome() == Outcome::Clean);
        assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean);
        tree.rig.assert_clean();
        let after: Vec<Vec<u8>> = tree.listing().into_values().collect();
        for (path, contents) in before.iter().filter(|(_, contents)| contents.len() > 100) {
            assert!(after.contains(contents), "seed {seed}: {path} is lost: {report:#?}");
        }
        assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean);
    }
}

#[test]
fn flipped_bits_never_panic_and_repair_converges() {
    for (seed, mut dice) in seeds(400) {
        let tree = Tree::make();
        for _ in 0..=dice.index(40) {
            damage_row(&tree, &mut dice, false);
        }
        for id in tree.rig.objects() {
            if dice.index(8) == 0 {
                tree.rig.disk.as_disk().remove(id).unwrap();
            }
        }
        let rows = tree.rows();
        let report = tree.check(Repair::Found);
        if report.outcome() == Outcome::Left {
            let hopeless = [Damage::Term, Damage::Superblock, Damage::DiskMissing, Damage::Version];
            let damages = damages_of(&report);
            assert!(damages.iter().any(|damage| hopeless.contains(damage)), "{report:#?}");
            for id in hopeless_filesets(&tree) {
                let of = |rows: &Rows| {
                    let own = rows.iter().filter(|(key, _)| key[..2] == id.0.to_be_bytes());
                    own.map(|(key, value)| (key.clone(), value.clone())).collect::<Rows>()
                };
                let now = tree.rows();
                assert_eq!(of(&now), of(&rows), "seed {seed}: what is hopeless is not touched");
            }
            continue;
        }
        let again = tree.check(Repair::Never);
        assert_eq!(again.outcome(), Outcome::Clean, "seed {seed}: {again:#?}");
        tree.listing();
        assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean, "seed {seed}");
    }
}

#[test]
fn random_damage_is_repaired_after_a_repair_that_was_cut_off() {
    for (seed, mut dice) in seeds(100) {
        let tree = Tree::make();
        let before = tree.listing();
        for _ in 0..=dice.index(12) {
            damage_row(&tree, &mut dice, true);
        }
        for commits in 0..dice.index(6) {
            let points = FailPoints::cut_at("store.commit.before", commits as u64);
            let store = tree.rig.store.reopen_with_fail_points(points);
            let stores = WholeStores(Arc::new(store));
            let _ = try_fsck(&stores, &tree.rig.parts().disks, Repair::Found);
        }
        let report = tree.check(Repair::Found);
        if is_of_another_version(&report) {
            continue;
        }
        assert_ne!(report.outcome(), Outcome::Left, "seed {seed}: {report:#?}");
        let after: Vec<Vec<u8>> = tree.listing().into_values().collect();
        for (path, contents) in before.iter().filter(|(_, contents)| contents.len() > 100) {
            assert!(after.contains(contents), "seed {seed}: {path} is lost");
        }
    }
}

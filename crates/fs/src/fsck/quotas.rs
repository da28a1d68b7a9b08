//! Quotas, and what owners of files hold: compared with what the inodes add up to.

use std::collections::BTreeMap;

use forebay_store::Store;

use super::image::Image;
use super::plan::{Fix, Ledger, Tier};
use super::report::Damage;
use super::scan::{Read, read, unknown_key};
use crate::error::Result;
use crate::key::{self, Key};
use crate::quota::{Holding, QuotaRecord, Subject};
use crate::record::{Kind, Usage, encode};
use crate::recovery::scan_prefix;

/// Reads quotas and holdings. A quota that cannot be read goes: it can be set again.
pub(super) fn read_all(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::QUOTA], &mut |key, value| {
        let Some(Key::Quota(subject)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        match read::<QuotaRecord>(&format!("the quota of {subject}"), value)? {
            Read::Fine(_) => image.limits_owners |= subject != Subject::Fileset,
            Read::Bad(why) => {
                let fix = Fix::Set(key.to_vec(), None);
                ledger.found_with(Damage::Record, why, Tier::Records, fix);
            }
        }
        Ok(())
    })?;
    scan_prefix(store, &[key::HOLDING], &mut |key, value| {
        let Some(Key::Holding(subject)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        let held = match read::<Holding>(&format!("what {subject} holds"), value)? {
            Read::Fine(Holding(usage)) => Some(usage),
            Read::Bad(_) => None,
        };
        image.holdings.insert(subject, held);
        Ok(())
    })
}

/// Compares what owners hold with what the inodes add up to. It is kept only while an owner has a quota.
pub(super) fn check(image: &Image, ledger: &mut Ledger) {
    let mut counted: BTreeMap<Subject, Usage> = BTreeMap::new();
    if image.limits_owners {
        for node in image.nodes.values() {
            let (uid, gid) = node.owners;
            for subject in [Subject::User(uid), Subject::Group(gid)] {
                let usage = counted.entry(subject).or_default();
                usage.inodes += 1;
                if node.kind == Kind::File {
                    usage.bytes = usage.bytes.wrapping_add(node.size);
                }
            }
        }
    }
    for (subject, usage) in &counted {
        let text = match image.holdings.get(subject) {
            Some(Some(stored)) if stored == usage => continue,
            Some(Some(stored)) => format!(
                "{subject} holds {} inodes and {} bytes by its record, but there are {} and {}",
                stored.inodes, stored.bytes, usage.inodes, usage.bytes
            ),
            Some(None) | None => format!("there is no readable record of what {subject} holds"),
        };
        let fix = Fix::Set(key::holding(*subject), Some(encode(&Holding(*usage))));
        ledger.found_with(Damage::Usage, text, Tier::Counts, fix);
    }
    for subject in image.holdings.keys().filter(|subject| !counted.contains_key(subject)) {
        let text = format!("there is a record of what {subject} holds, which is nothing");
        let fix = Fix::Set(key::holding(*subject), None);
        ledger.found_with(Damage::Usage, text, Tier::Counts, fix);
    }
}

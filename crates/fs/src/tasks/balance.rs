//! Which disks of a pool give objects to which others, so that all are filled alike. Pure.

use forebay_base::DiskId;

/// How full a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The disk.
    pub disk: DiskId,
    /// Its size.
    pub total_bytes: u64,
    /// Bytes in use, whoever uses them.
    pub used_bytes: u64,
}

impl Fill {
    /// How full it is, in thousandths.
    #[must_use]
    pub fn permille(&self) -> u64 {
        share(self.used_bytes, self.total_bytes)
    }
}

/// Bytes that one disk is to give to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The disk that is too full.
    pub from: DiskId,
    /// The disks that have room, below the average of the pool.
    pub to: Vec<DiskId>,
    /// At most so many bytes.
    pub bytes: u64,
    /// Why.
    pub reason: String,
}

/// A disk is left alone that is fuller than the average of its pool by no more than so many thousandths of its size.
pub const TOLERANCE_PERMILLE: u64 = 20;

fn share(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// What to move between the disks of one pool. Nothing if all are filled alike.
#[must_use]
pub fn plan(pool: &[Fill]) -> Vec<Shift> {
    let sum = |of: fn(&Fill) -> u64| pool.iter().map(|disk| u128::from(of(disk))).sum::<u128>();
    let (total, used) = (sum(|disk| disk.total_bytes), sum(|disk| disk.used_bytes));
    let fair = |disk: &Fill| {
        u64::try_from(used * u128::from(disk.total_bytes) / total.max(1)).unwrap_or(u64::MAX)
    };
    let average = u64::try_from(used * 1000 / total.max(1)).unwrap_or(u64::MAX);
    let to: Vec<DiskId> =
        pool.iter().filter(|disk| disk.used_bytes < fair(disk)).map(|disk| disk.disk).collect();
    let too_full = pool.iter().filter(|disk| disk.permille() > average + TOLERANCE_PERMILLE);
    let shift = |disk: &Fill| Shift {
        from: disk.disk,
        to: to.clone(),
        bytes: disk.used_bytes.saturating_sub(fair(disk)),
        reason: format!("it is {} % full, its pool {} %", disk.permille() / 10, average / 10),
    };
    too_full.map(shift).filter(|shift| shift.bytes > 0 && !shift.to.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(disk: u16, total_bytes: u64, used_bytes: u64) -> Fill {
        Fill { disk: DiskId(disk), total_bytes, used_bytes }
    }

    #[test]
    fn a_disk_that_is_fuller_than_its_pool_gives_the_difference() {
        let shifts = plan(&[fill(0, 1000, 900), fill(1, 1000, 100), fill(2, 2000, 1000)]);
        assert_eq!(shifts.len(), 1);
        assert_eq!((shifts[0].from, shifts[0].bytes), (DiskId(0), 400));
        // The third is as full as the pool.
        assert_eq!(shifts[0].to, [DiskId(1)]);
        assert_eq!(shifts[0].reason, "it is 90 % full, its pool 50 %");
    }

    #[test]
    fn disks_that_are_filled_alike_are_left_alone() {
        assert_eq!(plan(&[fill(0, 1000, 510), fill(1, 1000, 490)]), []);
        assert_eq!(plan(&[fill(0, 1000, 1000)]), []);
        assert_eq!(plan(&[fill(0, 0, 0), fill(1, 0, 0)]), []);
        assert_eq!(plan(&[]), []);
    }

    proptest::proptest! {
        /// What a plan moves never makes a disk that gives emptier than the pool, and all plans end.
        #[test]
        fn a_plan_brings_disks_nearer_to_the_average(
            disks in proptest::collection::vec((1_u64..1 << 40, 0_u64..1001), 1..8)
        ) {
            let pool: Vec<Fill> = (0..).zip(disks)
                .map(|(number, (total, permille))| fill(number, total, total / 1000 * permille))
                .collect();
            let (total, used) = pool.iter().fold((0_u128, 0_u128), |(total, used), disk| {
                (total + u128::from(disk.total_bytes), used + u128::from(disk.used_bytes))
            });
            for shift in plan(&pool) {
                let from = pool.iter().find(|disk| disk.disk == shift.from).unwrap();
                let after = u128::from(from.used_bytes - shift.bytes);
                assert!(after * total >= used * u128::from(from.total_bytes) - total);
                assert!(!shift.to.contains(&shift.from));
            }
        }
    }
}

//! Conditions of elements on those of other jobs with the same index (`[*]`): which ones there can be.

use crate::parse::dependency::{Condition, Test};
use crate::spec::JobSpec;

/// The most of them that a job has.
const PAIRS_MAX: usize = 16;

/// Why the elements of a job cannot wait as a condition says, whatever the other jobs are.
pub(crate) fn fault<R>(spec: &JobSpec, condition: &Condition<R>) -> Option<String> {
    let (mut pairs, mut has_time) = (0, false);
    condition.leaves(&mut |leaf| {
        if let Condition::Each(test, _) = leaf {
            pairs += 1;
            has_time |= matches!(test, Test::StartedFor(_));
        }
    });
    if pairs == 0 {
        return None;
    }
    if pairs > PAIRS_MAX {
        return Some(format!("[*] in a dependency: at most {PAIRS_MAX} conditions"));
    }
    if condition.pairs_of_all() < pairs {
        let fault = "[*] in a dependency can be combined by && only, not by ||: each element waits for its own partner, and the \
                     other conditions apply to the whole job. Join with &&, or name single elements, as in done(12[3])";
        return Some(fault.to_owned());
    }
    if has_time {
        let fault = "[*] in a dependency: a time after the start is for whole jobs only";
        return Some(fault.to_owned());
    }
    spec.array.is_none().then(|| "[*] in a dependency: this job is not an array".to_owned())
}

/// What of another job the elements of a job lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// It is not an array.
    Elements,
    /// It has no element with this index.
    Element(u32),
}

/// What another job lacks to have a partner for each element of a job.
pub(crate) fn lack(spec: &JobSpec, other: &JobSpec) -> Option<Lack> {
    let array = spec.array.as_ref()?;
    if other.array.is_none() {
        return Some(Lack::Elements);
    }
    let shift = spec.index_shift();
    let indices = (0..array.count()).filter_map(|place| array.index_at(place));
    let mut written = indices.map(|index| index.saturating_sub(shift));
    written.find(|index| other.place_as_written(*index).is_none()).map(Lack::Element)
}

impl JobSpec {
    /// The place of its element that has an index as its user wrote it.
    pub(crate) fn place_as_written(&self, index: u32) -> Option<u32> {
        self.array.as_ref()?.place_of(index.checked_add(self.index_shift())?)
    }
}

//! Arrays: `name[1-100:2]%10`, as LSF writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::as_text;

/// The most elements of an array.
pub const ELEMENTS_MAX: u32 = 1_000_000;
/// The most ranges of an array.
pub const RANGES_MAX: usize = 100_000;
/// The largest index.
pub const INDEX_MAX: u32 = 100_000_000;

/// One range of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    step: u32,
    count: u32,
    /// Elements of the ranges before it.
    before: u32,
}

impl Range {
    fn last(self) -> u32 {
        self.first + (self.count - 1) * self.step
    }
}

/// Which elements an array has, and how many may run at once: `[1-100:2]%10`, `[1,5,10-12]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// In rising order, without overlap.
    ranges: Vec<Range>,
    /// The most elements that run at once; no limit if none.
    pub running_max: Option<u32>,
}

impl ArraySpec {
    /// How many elements there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.before + range.count)
    }

    /// How many ranges of indices it has.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The index at a place counted from 0. There may be as many ranges as elements, so they are searched.
    #[must_use]
    pub fn index_at(&self, place: u32) -> Option<u32> {
        let after = self.ranges.partition_point(|range| range.before <= place);
        let range = self.ranges[..after].last()?;
        let within = place - range.before;
        (within < range.count).then(|| range.first + within * range.step)
    }

    /// The place of an index, counted from 0.
    #[must_use]
    pub fn place_of(&self, index: u32) -> Option<u32> {
        let after = self.ranges.partition_point(|range| range.first <= index);
        let range = self.ranges[..after].last()?;
        let offset = index - range.first;
        let is_one = index <= range.last() && offset.is_multiple_of(range.step);
        is_one.then(|| range.before + offset / range.step)
    }
}

fn range(scanner: &mut Scanner<'_>) -> Result<Range, ParseError> {
    let start = scanner.at();
    let first = scanner.number("an index", INDEX_MAX)?;
    if first == 0 {
        return Err(scanner.refuse_at(start, "indices start at 1"));
    }
    if !scanner.take("-") {
        return Ok(Range { first, step: 1, count: 1, before: 0 });
    }
    let start = scanner.at();
    let last = scanner.number("the last index", INDEX_MAX)?;
    if last < first {
        return Err(scanner.refuse_at(start, format!("the last index is at least {first}")));
    }
    let mut step = 1;
    if scanner.take(":") {
        let start = scanner.at();
        step = scanner.number("a step", INDEX_MAX)?;
        if step == 0 {
            return Err(scanner.refuse_at(start, "a step is at least 1"));
        }
    }
    Ok(Range { first, step, count: (last - first) / step + 1, before: 0 })
}

impl FromStr for ArraySpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<ArraySpec, ParseError> {
        let mut scanner = Scanner::new("array", text);
        scanner.expect("[")?;
        let mut ranges: Vec<Range> = Vec::new();
        let mut count = 0_u32;
        loop {
            let start = scanner.at();
            let range = Range { before: count, ..range(&mut scanner)? };
            if ranges.last().is_some_and(|before| range.first <= before.last()) {
                return Err(scanner.refuse_at(start, "indices must rise"));
            }
            if ranges.len() >= RANGES_MAX {
                let reason = format!("an array has at most {RANGES_MAX} ranges");
                return Err(scanner.refuse_at(start, reason));
            }
            count = count.saturating_add(range.count);
            if count > ELEMENTS_MAX {
                let reason = format!("an array has at most {ELEMENTS_MAX} elements");
                return Err(scanner.refuse_at(start, reason));
            }
            ranges.push(range);
            if !scanner.take(",") {
                break;
            }
        }
        if !scanner.take("]") {
            return Err(scanner.refuse("expected \",\" or \"]\""));
        }
        let mut running_max = None;
        if scanner.take("%") {
            let start = scanner.at();
            let most =
                scanner.number("the number of elements that may run at once", ELEMENTS_MAX)?;
            if most == 0 {
                return Err(scanner.refuse_at(start, "at least 1 may run at once"));
            }
            running_max = Some(most);
        }
        scanner.finish("\"%\" and the number of elements that may run at once, or the end")?;
        Ok(ArraySpec { ranges, running_max })
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, range) in self.ranges.iter().enumerate() {
            f.write_str(if place == 0 { "[" } else { "," })?;
            match (range.count, range.step) {
                (1, _) => write!(f, "{}", range.first)?,
                (_, 1) => write!(f, "{}-{}", range.first, range.last())?,
                (_, step) => write!(f, "{}-{}:{step}", range.first, range.last())?,
            }
        }
        f.write_str("]")?;
        self.running_max.map_or(Ok(()), |most| write!(f, "%{most}"))
    }
}

as_text!(ArraySpec);

/// Splits the argument of `-J` into name and array: `load[1-9]%2`, `[1-9]` or `load`.
///
/// # Errors
/// If what follows the name is no array.
pub fn name_and_array(text: &str) -> Result<(&str, Option<ArraySpec>), ParseError> {
    match text.find('[') {
        None => Ok((text, None)),
        Some(at) => {
            let array = text[at..].parse().map_err(|error: ParseError| ParseError {
                text: text.to_owned(),
                at: error.at + text[..at].chars().count(),
                ..error
            })?;
            Ok((&text[..at], Some(array)))
        }
    }
}

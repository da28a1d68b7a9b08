//! `--dependency` as the grid's own conditions, and job ids as Slurm writes them.

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::vocabulary::Target;

use super::super::row::{element, target_of_number};

/// One after the other, of the jobs of a user with one name.
const SINGLETON: &str = "singleton";

/// Each element of an array after that with its index of another array.
const AFTER_PARTNER: &str = "aftercorr";

/// The most minutes of a delay.
const DELAY_MINUTES_MAX: u32 = 60 * 24 * 366;

/// What a condition is called here.
fn call_of(kind: &str) -> Result<&'static str> {
    Ok(match kind {
        "after" => "started",
        "afterok" | AFTER_PARTNER => "done",
        "afterany" => "ended",
        "afternotok" => "exit",
        "afterburstbuffer" => {
            bail!("the dependency {kind} is not supported: a grid has no burst buffers")
        }
        _ => bail!("invalid dependency \"{kind}\""),
    })
}

/// The minutes behind the `+` of a job, in the grid's notation.
fn delay(kind: &str, minutes: &str) -> Result<String> {
    ensure!(kind == "after", "+{minutes}: only the dependency after has a delay, not {kind}");
    let read = minutes.parse::<u32>().ok().filter(|read| *read <= DELAY_MINUTES_MAX);
    let read = read.with_context(|| {
        format!("after: delay \"{minutes}\": expected minutes, at most {DELAY_MINUTES_MAX}")
    })?;
    Ok(format!("{read} min"))
}

/// A dependency in the grid's notation; `job` gives the notation of one job.
fn translate(text: &str, mut job: impl FnMut(&str) -> Result<Vec<String>>) -> Result<String> {
    ensure!(
        !(text.contains('?') && text.contains(',')),
        "a dependency has either , or ? between its conditions: \"{text}\""
    );
    let (sign, joint) = if text.contains('?') { ('?', " || ") } else { (',', " && ") };
    let mut conditions = Vec::new();
    let mut call = None;
    for part in text.split(sign) {
        if part == SINGLETON {
            conditions.push(format!("{SINGLETON}()"));
            call = None;
            continue;
        }
        // A kind holds for the jobs that follow it: afterok:1:2.
        let mut jobs = part.split(':');
        if part.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let kind = jobs.next().unwrap_or_default();
            call = Some((kind, call_of(kind)?));
        }
        let (kind, call) = call.with_context(|| format!("invalid dependency \"{text}\""))?;
        let mut found = 0;
        for id in jobs {
            let (id, delay) = match id.split_once('+') {
                Some((id, minutes)) => (id, Some(delay(kind, minutes)?)),
                None => (id, None),
            };
            for target in job(id)? {
                let is_element = id.contains('_') || target.contains('[');
                ensure!(
                    kind != AFTER_PARTNER || !is_element,
                    "{AFTER_PARTNER} needs a whole array, such as {AFTER_PARTNER}:12"
                );
                conditions.push(match &delay {
                    Some(delay) => format!("{call}({target}, {delay})"),
                    None if kind == AFTER_PARTNER => format!("{call}({target}[*])"),
                    None => format!("{call}({target})"),
                });
                found += 1;
            }
        }
        ensure!(found > 0, "invalid dependency \"{text}\": the job is missing");
    }
    Ok(conditions.join(joint))
}

/// A dependency as Slurm writes it.
///
/// # Errors
/// If it is not one, or cannot be expressed here.
pub fn read(text: &str, client: &mut Client) -> Result<Dependency> {
    let translated =
        translate(text, |id| Ok(targets(id, client)?.iter().map(ToString::to_string).collect()))?;
    Ok(translated.parse()?)
}

/// The jobs and elements of an id: `12`, `12_3`, `12_[1-3,7]`, and with a step behind a point, which is left out.
///
/// # Errors
/// If it is not one, or the controller does not answer.
pub fn targets(id: &str, client: &mut Client) -> Result<Vec<Target>> {
    let refused = || format!("Invalid job id specified: {id}");
    let whole = id.split('.').next().unwrap_or_default();
    let (number, elements) = match whole.split_once('_') {
        Some((number, elements)) => (number, Some(elements)),
        None => (whole, None),
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0).with_context(refused)?;
    let target = target_of_number(number);
    let Some(elements) = elements else { return Ok(vec![target]) };
    if elements == "*" {
        return Ok(vec![target]);
    }
    let inner = elements.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let mut targets = Vec::new();
    for part in inner.unwrap_or(elements).split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let index = |text: &str| text.parse::<u32>().ok().with_context(refused);
        let (first, last) = (index(first)?, index(last)?);
        ensure!(last.saturating_sub(first) < 100_000, "{id}: too many elements");
        for index in first..=last {
            let shifted = match targets.last() {
                None => element(client, target, index)?,
                Some((before, at)) => shifted_like(*before, *at, index),
            };
            targets.push((shifted, index));
        }
    }
    Ok(targets.into_iter().map(|(target, _)| target).collect())
}

/// The element of an index, where another is known: the controller need not be asked again.
fn shifted_like(known: Target, known_index: u32, index: u32) -> Target {
    let here = known.index.unwrap_or(0);
    Target { index: Some(index.saturating_add(here.saturating_sub(known_index))), ..known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_written_as_the_grid_does() {
        let as_is = |id: &str| Ok(vec![id.to_owned()]);
        for (text, here) in [
            ("afterok:1", "done(1)"),
            ("afterok:1:2,afterany:3", "done(1) && done(2) && ended(3)"),
            ("afternotok:1?after:2", "exit(1) || started(2)"),
            ("after:1+5:2", "started(1, 5 min) && started(2)"),
            ("aftercorr:1:2", "done(1[*]) && done(2[*])"),
            ("singleton", "singleton()"),
            ("afterok:1,singleton,afterany:2", "done(1) && singleton() && ended(2)"),
        ] {
            let read = translate(text, as_is).unwrap();
            assert_eq!(read, here);
            assert!(read.parse::<Dependency>().is_ok(), "{read}");
        }
        for text in [
            "",
            "afterok",
            "singleton:1",
            "singleton,2",
            "afterok:1+5",
            "after:1+x",
            "after:1+",
            "aftercorr:1_2",
            "aftercorr:1[2]",
            "afterburstbuffer:1",
            "x:1",
            "afterok:1?after:2,after:3",
        ] {
            assert!(translate(text, as_is).is_err(), "{text}");
        }
    }

    #[test]
    fn further_elements_are_raised_alike() {
        let known = Target { job: forebay_grid::vocabulary::JobId(4), index: Some(1) };
        assert_eq!(shifted_like(known, 0, 5).to_string(), "4[6]");
    }
}

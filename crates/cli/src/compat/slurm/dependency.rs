//! `--dependency` as the grid's own conditions, and job ids as Slurm writes them.

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::vocabulary::Target;

use super::super::row::{element, me, rows, target_of_number};

/// One after the other, of the jobs of a user with one name.
const SINGLETON: &str = "singleton";

/// What a condition is called here.
fn call_of(kind: &str) -> Result<&'static str> {
    Ok(match kind {
        "after" => "started",
        "afterok" => "done",
        "afterany" => "ended",
        "afternotok" => "exit",
        "aftercorr" | "afterburstbuffer" => {
            bail!("the dependency {kind} is not supported by a Forebay grid")
        }
        _ => bail!("invalid dependency \"{kind}\""),
    })
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
        // A kind holds for the jobs that follow it: afterok:1:2.
        let mut jobs = part.split(':');
        if part.starts_with(|c: char| c.is_ascii_alphabetic()) {
            call = Some(call_of(jobs.next().unwrap_or_default())?);
        }
        let call = call.with_context(|| format!("invalid dependency \"{text}\""))?;
        let mut found = 0;
        for id in jobs {
            ensure!(!id.contains('+'), "{id}: a dependency with a delay is not supported");
            for target in job(id)? {
                conditions.push(format!("{call}({target})"));
                found += 1;
            }
        }
        ensure!(found > 0, "invalid dependency \"{text}\": the job is missing");
    }
    Ok(conditions.join(joint))
}

/// A dependency that a job of this name has; none if it names no condition.
///
/// # Errors
/// If it is not one, or cannot be expressed here.
pub fn read(text: &str, name: &str, client: &mut Client) -> Result<Option<Dependency>> {
    let text = match text.split(',').any(|part| part == SINGLETON) {
        true => &singleton(text, name, client)?[..],
        false => text,
    };
    if text.is_empty() {
        return Ok(None);
    }
    let translated =
        translate(text, |id| Ok(targets(id, client)?.iter().map(ToString::to_string).collect()))?;
    Ok(Some(translated.parse()?))
}

/// `singleton` as a condition on the jobs of the user that have this name and have not ended.
fn singleton(text: &str, name: &str, client: &mut Client) -> Result<String> {
    ensure!(!name.is_empty(), "{SINGLETON} is for a new job: it is about the names of jobs");
    let user = me();
    let found = rows(client, None, false)?;
    let same = found.iter().filter(|row| row.view.user.as_str() == user && row.view.name == name);
    let mut jobs: Vec<String> = same.map(|row| row.target.job.to_string()).collect();
    jobs.dedup();
    let others = text.split(',').filter(|part| *part != SINGLETON).map(str::to_owned);
    let own = (!jobs.is_empty()).then(|| format!("afterany:{}", jobs.join(":")));
    Ok(others.chain(own).collect::<Vec<_>>().join(","))
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
        ] {
            let read = translate(text, as_is).unwrap();
            assert_eq!(read, here);
            assert!(read.parse::<Dependency>().is_ok(), "{read}");
        }
        for text in [
            "",
            "afterok",
            "afterok:1,aftercorr:2",
            "after:1+5",
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

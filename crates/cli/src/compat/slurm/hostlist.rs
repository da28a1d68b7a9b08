//! Lists of hosts as Slurm writes them: `a,b`, `n[1-3,07]`.

use anyhow::{Context as _, Result, ensure};

/// The most hosts of a list.
const HOSTS_MAX: usize = 4096;

/// Every host of a list.
///
/// # Errors
/// If a bracket is not closed, a range is none, or there are too many.
pub fn expand(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for part in split(text) {
        let before = names.len();
        expand_one(part, String::new(), &mut names)?;
        ensure!(names.len() > before || part.is_empty(), "invalid host list \"{text}\"");
    }
    Ok(names)
}

/// The parts between commas that stand in no brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

fn expand_one(text: &str, start: String, names: &mut Vec<String>) -> Result<()> {
    let Some((before, rest)) = text.split_once('[') else {
        ensure!(names.len() < HOSTS_MAX, "a list names at most {HOSTS_MAX} hosts");
        names.push(start + text);
        return Ok(());
    };
    let (ranges, after) = rest.split_once(']').context("a bracket is not closed")?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number =
            |text: &str| text.parse::<u32>().with_context(|| format!("invalid range {range}"));
        let width = first.len();
        let (first, last) = (number(first)?, number(last)?);
        for host in first..=last {
            expand_one(after, format!("{start}{before}{host:0width$}"), names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_stand_for_many_hosts() {
        for (text, hosts) in [
            ("a,b", "a b"),
            ("n[1-3,07],m", "n1 n2 n3 n07 m"),
            ("n[08-10]x", "n08x n09x n10x"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
            ("", ""),
        ] {
            assert_eq!(expand(text).unwrap().join(" "), hosts, "{text}");
        }
        for text in ["n[1", "n[x]", "n[2-1]", "n[0-99999]"] {
            assert!(expand(text).is_err(), "{text}");
        }
    }
}

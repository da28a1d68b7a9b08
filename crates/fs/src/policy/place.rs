//! In which pool the bytes of a new file lie, by rules of one fileset. Pure.

use super::{Place, matches};
use crate::object::Pool;

/// The rules that new files of one fileset go by.
#[derive(Debug)]
pub(crate) struct Places(Box<[Rule]>);

#[derive(Debug)]
struct Rule {
    pool: Pool,
    user: Option<u32>,
    group: Option<u32>,
    /// Patterns of names, one of which matches; none: whatever the name.
    files: Box<[Box<[u8]>]>,
}

impl Places {
    /// The rules that are about a fileset; `None` if there are none. `pool` knows the pools by their names: a rule with another one
    /// is ignored.
    pub fn of(
        rules: &[Place],
        fileset: &str,
        pool: impl Fn(&str) -> Option<Pool>,
    ) -> Option<Places> {
        let is_meant = |rule: &&Place| rule.filter.fileset.as_ref().is_none_or(|of| of == fileset);
        let compiled = |rule: &Place| {
            let files = rule.filter.files.iter().map(|pattern| pattern.as_bytes().into()).collect();
            let (user, group) = (rule.filter.user, rule.filter.group);
            Some(Rule { pool: pool(&rule.to)?, user, group, files })
        };
        let found: Box<[Rule]> = rules.iter().filter(is_meant).filter_map(compiled).collect();
        (!found.is_empty()).then_some(Places(found))
    }

    /// The pool of a new file, if a rule matches: the first one decides. Without a name only rules without patterns match.
    pub fn pool(&self, name: Option<&[u8]>, (user, group): (u32, u32)) -> Option<Pool> {
        let is_named = |rule: &Rule| {
            rule.files.is_empty()
                || name.is_some_and(|name| rule.files.iter().any(|pattern| matches(pattern, name)))
        };
        let suits = |rule: &&Rule| {
            rule.user.is_none_or(|of| of == user)
                && rule.group.is_none_or(|of| of == group)
                && is_named(rule)
        };
        self.0.iter().find(suits).map(|rule| rule.pool)
    }

    /// Whether a rule has files lie in a pool.
    pub fn leads_to(&self, pool: Pool) -> bool {
        self.0.iter().any(|rule| rule.pool == pool)
    }

    /// The pools that rules lead to.
    pub fn pools(&self) -> impl Iterator<Item = Pool> + '_ {
        self.0.iter().map(|rule| rule.pool)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Filter;
    use super::*;

    fn rule(to: &str, filter: Filter) -> Place {
        Place { name: format!("to {to}"), to: to.to_owned(), filter }
    }

    fn pool(name: &str) -> Option<Pool> {
        ["flash", "slow", "wide"]
            .iter()
            .position(|known| *known == name)
            .map(|place| Pool::from_byte(place as u8))
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_a_name_that_is_not_known_matches_no_pattern() {
        let of = |fileset: Option<&str>, files: &[&str], user, group| Filter {
            fileset: fileset.map(str::to_owned),
            files: files.iter().map(|text| (*text).to_owned()).collect(),
            user,
            group,
            ..Filter::default()
        };
        let rules = [
            rule("slow", of(Some("data"), &["*.log", "core.?"], None, None)),
            rule("wide", of(None, &["*"], Some(7), Some(8))),
            rule("gone", of(None, &[], None, None)),
            rule("flash", of(Some(""), &[], Some(7), None)),
        ];
        let data = Places::of(&rules, "data", pool).unwrap();
        let cases = [
            (Some("a.log"), (7, 8), Some("slow")),
            (Some("core.1"), (0, 0), Some("slow")),
            (Some("core.12"), (0, 0), None),
            (Some("a.h5"), (7, 8), Some("wide")),
            (Some("a.h5"), (7, 9), None),
            (None, (7, 8), None),
        ];
        for (name, owner, expected) in cases {
            let found = data.pool(name.map(str::as_bytes), owner);
            assert_eq!(found, expected.and_then(pool), "{name:?} {owner:?}");
        }
        let root = Places::of(&rules, "", pool).unwrap();
        assert_eq!(root.pool(None, (7, 8)), pool("flash"));
        assert!(root.leads_to(pool("wide").unwrap()) && !root.leads_to(pool("slow").unwrap()));
        assert!(Places::of(&rules[..1], "work", pool).is_none());
    }
}

//! When a policy runs by itself. Pure.

use forebay_base::time::next_multiple;

use super::{Fields, Policy};

/// Shortest time between two runs, in seconds.
const EVERY_MIN: u64 = 10;
/// Longest, in seconds: a year.
const EVERY_MAX: u64 = 366 * 86_400;
/// How often it is looked how full pools are, unless the policy says something else, in seconds.
const LOOK: u64 = 60;
/// Longest time between two such looks, in seconds.
const LOOK_MAX: u64 = 86_400;

/// When a policy that was applied runs by itself: the table `[run]` of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Automatic {
    /// All rules, once in so many seconds: at the multiples of that in UTC.
    pub every_seconds: Option<u64>,
    /// Rules with a fill, when their pool is that full.
    pub when_full: bool,
    /// How often it is looked whether one is, in seconds.
    pub look_seconds: u64,
}

impl Automatic {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Automatic, String> {
        let within = |seconds: Option<u64>, least: u64, most: u64| {
            seconds.is_none_or(|seconds| (least..=most).contains(&seconds))
        };
        let (every, look) = (fields.age("every")?, fields.age("look")?);
        let when_full = fields.switch("when_full")?.unwrap_or(false);
        fields.finish()?;
        if !within(every, EVERY_MIN, EVERY_MAX) {
            return Err(fields.wrong("every", "a time from 10 s to 366 d"));
        }
        if !within(look, 1, LOOK_MAX) {
            return Err(fields.wrong("look", "a time from 1 s to 1 d"));
        }
        if every.is_none() && !when_full {
            return Err("[run]: write every = \"1 d\", when_full = true, or both".to_owned());
        }
        if look.is_some() && !when_full {
            return Err("[run]: look is for when_full = true".to_owned());
        }
        Ok(Automatic { every_seconds: every, when_full, look_seconds: look.unwrap_or(LOOK) })
    }

    /// Refuses what would never run.
    pub(super) fn check(self, policy: &Policy) -> Result<(), String> {
        if !policy.changes_anything() {
            return Err("[run] needs at least one [[migrate]], [[premigrate]] or [[delete]] rule"
                .to_owned());
        }
        if self.when_full && policy.migrate.iter().all(|rule| rule.fill.is_none()) {
            return Err(
                "[run]: when_full = true needs a [[migrate]] rule with above and until".to_owned()
            );
        }
        Ok(())
    }

    /// When all rules run next after a time, in seconds since 1970.
    #[must_use]
    pub fn next_after(&self, now: i64) -> Option<i64> {
        self.every_seconds.map(|every| next_multiple(every, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::Alice;

    const RULE: &str = "[[migrate]]\nname = 'a'\nfrom = 'x'\nto = 'y'\n";

    fn parse(run: &str, rule: &str) -> Result<Option<Automatic>, String> {
        Policy::parse(&format!("[run]\n{run}\n{rule}"), &Alice).map(|policy| policy.run)
    }

    #[test]
    fn a_policy_says_when_it_runs_by_itself() {
        let daily = parse("every = '1 d'", RULE).unwrap().unwrap();
        assert_eq!(
            daily,
            Automatic { every_seconds: Some(86_400), when_full: false, look_seconds: 60 }
        );
        assert_eq!(daily.next_after(86_399), Some(86_400));
        assert_eq!(daily.next_after(86_400), Some(172_800));
        let full = format!("{RULE}above = 80\nuntil = 60\n");
        let full = parse("when_full = true\nlook = '5 s'", &full).unwrap().unwrap();
        assert_eq!(full, Automatic { every_seconds: None, when_full: true, look_seconds: 5 });
        assert_eq!(full.next_after(7), None);
        assert_eq!(Policy::parse(RULE, &Alice).unwrap().run, None);
    }

    #[test]
    fn what_would_never_run_by_itself_is_refused() {
        let cases = [
            ("", RULE, "write every"),
            ("when_full = false", RULE, "write every"),
            ("every = '5 s'", RULE, "from 10 s to 366 d"),
            ("every = '400 d'", RULE, "from 10 s to 366 d"),
            ("every = '1 d'\nlook = '0 s'", RULE, "from 1 s to 1 d"),
            ("every = '1 d'\nlook = '5 s'", RULE, "look is for when_full"),
            ("when_full = 1", RULE, "true or false"),
            ("when_full = true", RULE, "above and until"),
            ("every = '1 d'", "[[list]]\nname = 'a'", "at least one"),
            ("each = '1 d'", RULE, "no key \"each\""),
            ("every = '1 d'\nat = '4'", RULE, "no key \"at\""),
        ];
        for (run, rule, expected) in cases {
            let said = parse(run, rule).unwrap_err();
            assert!(said.contains(expected), "{run}: {said}");
        }
        let twice = Policy::parse(&format!("[[run]]\nevery = '1 d'\n{RULE}"), &Alice).unwrap_err();
        assert!(twice.contains("[run]"), "{twice}");
    }
}

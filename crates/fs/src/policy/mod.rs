//! Policies: which files lie in which pool, which are removed and which are listed, as rules in a file. Pure.
//!
//! A rule has a filter, and the first rule of a list whose filter matches a file decides about it. The file is TOML:
//!
//! ```toml
//! [[place]]
//! name = "logs are slow from the beginning"
//! to = "slow"
//! files = "*.log"
//!
//! [[migrate]]
//! name = "cold files go to the archive"
//! from = "flash"
//! to = "archive"
//! above = 80            # only while more than so many percent of the pool are in use,
//! until = 60            # until so many are
//! older = "30 d"
//! files = ["*.h5", "*.csv"]
//!
//! [[premigrate]]
//! name = "cold files lie in the archive too"
//! from = "flash"
//! to = "archive"
//! older = "7 d"
//!
//! [[delete]]
//! name = "scratch is swept"
//! fileset = "scratch"
//! older = "60 d"
//!
//! [[list]]
//! name = "large files of alice"
//! user = "alice"
//! larger = "10 GiB"
//!
//! [run]                 # without this it runs when somebody has it run
//! every = "1 d"
//! when_full = true
//! ```

mod automatic;
mod pattern;
pub(crate) mod pick;
pub(crate) mod place;

use std::time::Duration;

use forebay_base::ByteSize;
use forebay_base::settings::value;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use automatic::Automatic;
pub(crate) use pattern::matches;

/// Rules of one kind at most: what names match is kept as one bit for each rule.
pub const RULES_MAX: usize = 32;
/// Longest text of a policy in bytes: its rules are kept with the task that carries them out.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Numbers of users and groups by their names, as the machine knows them.
pub trait Accounts {
    /// The number of a user.
    fn user(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn group(&self, name: &str) -> Option<u32>;
}

/// Which files a rule is about. What is not given matches every file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Name of the fileset; empty for the root fileset.
    pub fileset: Option<String>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Patterns of names, one of which matches: `*` stands for any text, `?` for one character.
    pub files: Vec<String>,
    /// Larger than so many bytes.
    pub larger: Option<u64>,
    /// Smaller than so many bytes.
    pub smaller: Option<u64>,
    /// Content unchanged for so many seconds.
    pub older_seconds: Option<u64>,
}

/// Has new files lie in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Name of the rule.
    pub name: String,
    /// Pool that they lie in.
    pub to: String,
    /// Which files: by fileset, owner, group and name.
    pub filter: Filter,
}

/// Moves files from one pool to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrate {
    /// Name of the rule.
    pub name: String,
    /// Pool that the files lie in.
    pub from: String,
    /// Pool that they go to.
    pub to: String,
    /// Fill of the first pool, in percent, above which and until which files are moved.
    pub fill: Option<(u64, u64)>,
    /// Which files.
    pub filter: Filter,
}

/// Selects files, to list or to remove them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Select {
    /// Name of the rule.
    pub name: String,
    /// Pool that the files lie in, if that matters.
    pub from: Option<String>,
    /// Which files.
    pub filter: Filter,
}

/// All rules of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Rules that place new files. A task, which carries out the others, does not keep them.
    #[serde(skip)]
    pub place: Vec<Place>,
    /// Rules that move files.
    pub migrate: Vec<Migrate>,
    /// Rules that give files an object in an archive too. They have no fill.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub premigrate: Vec<Migrate>,
    /// Rules that list files.
    pub list: Vec<Select>,
    /// Rules that remove files.
    pub delete: Vec<Select>,
    /// When it runs by itself, if it does. A task does not keep that.
    #[serde(skip)]
    pub run: Option<Automatic>,
}

/// A policy in encodings without names of fields, as programs that know no premigration have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedPolicy {
    migrate: Vec<Migrate>,
    list: Vec<Select>,
    delete: Vec<Select>,
}

impl From<&Policy> for EncodedPolicy {
    /// Without the rules that place new files and those that premigrate.
    fn from(policy: &Policy) -> EncodedPolicy {
        EncodedPolicy {
            migrate: policy.migrate.clone(),
            list: policy.list.clone(),
            delete: policy.delete.clone(),
        }
    }
}

impl From<EncodedPolicy> for Policy {
    fn from(encoded: EncodedPolicy) -> Policy {
        let EncodedPolicy { migrate, list, delete } = encoded;
        Policy { migrate, list, delete, ..Policy::default() }
    }
}

/// What one rule would do, or does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Name of the rule.
    pub rule: String,
    /// `place`, `migrate`, `premigrate`, `delete` or `list`.
    pub kind: String,
    /// What it does, and why now, or why not.
    pub reason: String,
    /// Files that match, and are to be moved or listed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Paths of these files, of many some.
    pub paths: Vec<String>,
}

/// What a policy would do, with what it took to find out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Rule by rule.
    pub rules: Vec<RuleReport>,
    /// Inodes that were looked at.
    pub inodes: u64,
    /// Time that this took, in seconds.
    pub seconds: f64,
}

impl Policy {
    /// Reads the text of a policy.
    ///
    /// # Errors
    /// What is wrong with it, with the rule and the key.
    pub fn parse(text: &str, accounts: &dyn Accounts) -> Result<Policy, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("a policy has at most {TEXT_BYTES_MAX} bytes"));
        }
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let mut policy = Policy::default();
        for (kind, rules) in &table {
            if kind == "run" {
                let Value::Table(rule) = rules else {
                    return Err("run: write it once, as [run]".to_owned());
                };
                let place = "[run]".to_owned();
                let mut fields = Fields { place, rule, used: Vec::new(), accounts };
                policy.run = Some(Automatic::read(&mut fields)?);
                continue;
            }
            let Value::Array(rules) = rules else {
                return Err(format!("{kind}: rules are written as [[{kind}]]"));
            };
            if rules.len() > RULES_MAX {
                return Err(format!(
                    "{kind}: there are {} rules, and at most {RULES_MAX} may be",
                    rules.len()
                ));
            }
            for (number, rule) in rules.iter().enumerate() {
                let place = format!("[[{kind}]] rule {}", number + 1);
                let Value::Table(rule) = rule else {
                    return Err(format!("{place}: is not a table"));
                };
                let mut fields = Fields { place, rule, used: Vec::new(), accounts };
                match kind.as_str() {
                    "place" => policy.place.push(fields.place()?),
                    "migrate" => policy.migrate.push(fields.migrate()?),
                    "premigrate" => policy.premigrate.push(fields.premigrate()?),
                    "list" => policy.list.push(fields.select()?),
                    "delete" => policy.delete.push(fields.delete()?),
                    _ => {
                        return Err(format!(
                            "there are no rules of kind \"{kind}\"; choose from place, migrate, premigrate, delete, list; [run] says when they run"
                        ));
                    }
                }
                fields.finish()?;
            }
        }
        if policy.filters().next().is_none() {
            return Err(
                "there are no rules: write [[place]], [[migrate]], [[premigrate]], [[delete]] or [[list]]"
                    .to_owned(),
            );
        }
        policy.run.map_or(Ok(()), |run| run.check(&policy))?;
        Ok(policy)
    }

    /// Its rules that move and remove files, and those that list some, as a task carries them out.
    #[must_use]
    pub fn as_task(&self) -> Policy {
        Policy { place: Vec::new(), run: None, ..self.clone() }
    }

    /// The pools that it names.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let moving = self.migrate.iter().chain(&self.premigrate);
        let moved = moving.flat_map(|rule| [rule.from.as_str(), rule.to.as_str()]);
        let selecting = self.list.iter().chain(&self.delete);
        moved.chain(selecting.filter_map(|rule| rule.from.as_deref()))
    }

    /// The names of its rules that change anything.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let moving = self.migrate.iter().chain(&self.premigrate).map(|rule| rule.name.as_str());
        moving.chain(self.delete.iter().map(|rule| rule.name.as_str()))
    }

    /// The filesets that it names.
    pub fn filesets(&self) -> impl Iterator<Item = &str> {
        self.filters().filter_map(|filter| filter.fileset.as_deref())
    }

    fn filters(&self) -> impl Iterator<Item = &Filter> {
        let placing = self.place.iter().map(|rule| &rule.filter);
        let to_other_pools = self.migrate.iter().chain(&self.premigrate);
        let moving = placing.chain(to_other_pools.map(|rule| &rule.filter));
        moving.chain(self.list.iter().chain(&self.delete).map(|rule| &rule.filter))
    }

    /// Whether it moves or removes files, and does not only list them.
    #[must_use]
    pub fn changes_anything(&self) -> bool {
        !self.migrate.is_empty() || !self.premigrate.is_empty() || !self.delete.is_empty()
    }

    /// Whether names matter.
    #[must_use]
    pub fn needs_names(&self) -> bool {
        self.filters().any(|filter| !filter.files.is_empty())
    }
}

/// The keys of one rule.
struct Fields<'a> {
    place: String,
    rule: &'a Table,
    used: Vec<&'a str>,
    accounts: &'a dyn Accounts,
}

impl<'a> Fields<'a> {
    fn get(&mut self, key: &'a str) -> Option<&'a Value> {
        self.used.push(key);
        self.rule.get(key)
    }

    fn wrong(&self, key: &str, allowed: &str) -> String {
        let value = self.rule.get(key).map(ToString::to_string).unwrap_or_default();
        format!("{}: {key} = {value}: expected {allowed}", self.place)
    }

    fn text(&mut self, key: &'a str) -> Result<Option<String>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map(|text| Some(text.to_owned())).ok_or_else(|| self.wrong(key, "a text"))
    }

    fn needed(&mut self, key: &'a str) -> Result<String, String> {
        self.text(key)?.ok_or_else(|| format!("{}: {key} is missing", self.place))
    }

    fn size(&mut self, key: &'a str) -> Result<Option<u64>, String> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let size = value::size(found, ByteSize(0), ByteSize(u64::MAX));
        size.map(|size| Some(size.0)).ok_or_else(|| self.wrong(key, "a size such as \"10 MiB\""))
    }

    fn switch(&mut self, key: &'a str) -> Result<Option<bool>, String> {
        let Some(found) = self.get(key) else { return Ok(None) };
        found.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }

    fn percent(&mut self, key: &'a str) -> Result<Option<u64>, String> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let percent = value::number(found, 0, 100);
        percent.map(Some).ok_or_else(|| self.wrong(key, "a number of percent from 0 to 100"))
    }

    fn age(&mut self, key: &'a str) -> Result<Option<u64>, String> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let days = found.as_str().and_then(|text| text.trim().strip_suffix('d')).map(str::trim);
        let of_days = days.and_then(|days| days.parse::<u64>().ok()).filter(|days| *days <= 36_500);
        let seconds = of_days.map(|days| days * 86_400).or_else(|| {
            let most = Duration::from_secs(36_500 * 86_400);
            value::duration(found, Duration::ZERO, most).map(|time| time.as_secs())
        });
        seconds.map(Some).ok_or_else(|| self.wrong(key, "a time such as \"30 d\" or \"12 h\""))
    }

    fn account(
        &mut self,
        key: &'a str,
        look: impl Fn(&dyn Accounts, &str) -> Option<u32>,
    ) -> Result<Option<u32>, String> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let number = match found {
            Value::Integer(number) => u32::try_from(*number).ok(),
            Value::String(name) => name.parse().ok().or_else(|| look(self.accounts, name)),
            _ => None,
        };
        number
            .map(Some)
            .ok_or_else(|| self.wrong(key, &format!("a {key} of this machine, or its number")))
    }

    fn patterns(&mut self, key: &'a str) -> Result<Vec<String>, String> {
        let Some(found) = self.get(key) else { return Ok(Vec::new()) };
        let one = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty() && !text.contains('/'))
                .map(ToOwned::to_owned)
        };
        let all = match found {
            Value::Array(all) if !all.is_empty() => all.iter().map(one).collect(),
            single => one(single).map(|one| vec![one]),
        };
        all.ok_or_else(|| self.wrong(key, "patterns of names without /, such as [\"*.h5\"]"))
    }

    fn filter(&mut self) -> Result<Filter, String> {
        let fileset = self.text("fileset")?;
        Ok(Filter {
            fileset: fileset.map(|name| if name == "/" { String::new() } else { name }),
            user: self.account("user", |accounts, name| accounts.user(name))?,
            group: self.account("group", |accounts, name| accounts.group(name))?,
            files: self.patterns("files")?,
            larger: self.size("larger")?,
            smaller: self.size("smaller")?,
            older_seconds: self.age("older")?,
        })
    }

    fn migrate(&mut self) -> Result<Migrate, String> {
        let (name, from, to) = (self.needed("name")?, self.needed("from")?, self.needed("to")?);
        if from == to {
            return Err(format!("{}: from and to are both \"{from}\"", self.place));
        }
        let fill = match (self.percent("above")?, self.percent("until")?) {
            (None, None) => None,
            (Some(above), Some(until)) if until <= above => Some((above, until)),
            (Some(_), Some(_)) => return Err(self.wrong("until", "no more than above")),
            _ => return Err(format!("{}: above and until are given together", self.place)),
        };
        Ok(Migrate { name, from, to, fill, filter: self.filter()? })
    }

    /// What is premigrated takes no less here: it has no fill to go by.
    fn premigrate(&mut self) -> Result<Migrate, String> {
        for key in ["above", "until"] {
            if self.rule.contains_key(key) {
                return Err(format!(
                    "{}: {key} is for [[migrate]] rules, which evict premigrated files first: premigrating frees no space",
                    self.place
                ));
            }
        }
        self.migrate()
    }

    /// A new file has no size and no age.
    fn place(&mut self) -> Result<Place, String> {
        let (name, to) = (self.needed("name")?, self.needed("to")?);
        let filter = self.filter()?;
        for key in ["larger", "smaller", "older"] {
            if self.rule.contains_key(key) {
                return Err(format!(
                    "{}: {key} is not known when a file is created: use fileset, user, group and files",
                    self.place
                ));
            }
        }
        Ok(Place { name, to, filter })
    }

    fn select(&mut self) -> Result<Select, String> {
        Ok(Select { name: self.needed("name")?, from: self.text("from")?, filter: self.filter()? })
    }

    /// A rule that removes files says of which fileset, and how old they must be: a rule that is too short must not
    /// remove everything.
    fn delete(&mut self) -> Result<Select, String> {
        let rule = self.select()?;
        if rule.filter.fileset.is_none() || rule.filter.older_seconds.is_none() {
            return Err(format!(
                "{}: a rule that removes files needs fileset and older",
                self.place
            ));
        }
        Ok(rule)
    }

    fn finish(&self) -> Result<(), String> {
        let unknown = self.rule.keys().find(|key| !self.used.contains(&key.as_str()));
        unknown.map_or(Ok(()), |key| {
            let known = self.used.join(", ");
            Err(format!("{}: there is no key \"{key}\"; choose from {known}", self.place))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) struct Alice;

    impl Accounts for Alice {
        fn user(&self, name: &str) -> Option<u32> {
            (name == "alice").then_some(1000)
        }

        fn group(&self, name: &str) -> Option<u32> {
            (name == "physics").then_some(77)
        }
    }

    #[test]
    fn a_policy_is_read_with_names_of_this_machine() {
        let text = r#"
            [[migrate]]
            name = "cold"
            from = "flash"
            to = "archive"
            above = 80
            until = 60
            older = "30 d"
            files = ["*.h5", "*.csv"]
            user = "alice"
            group = 5
            larger = "1 MiB"
            fileset = "/"

            [[list]]
            name = "all"
        "#;
        let policy = Policy::parse(text, &Alice).unwrap();
        let rule = &policy.migrate[0];
        assert_eq!(
            (rule.fill, rule.filter.user, rule.filter.group),
            (Some((80, 60)), Some(1000), Some(5))
        );
        assert_eq!(rule.filter.older_seconds, Some(30 * 86_400));
        assert_eq!((rule.filter.larger, rule.filter.fileset.as_deref()), (Some(1 << 20), Some("")));
        assert!(policy.needs_names());
        assert_eq!(policy.pools().collect::<Vec<_>>(), ["flash", "archive"]);
        assert_eq!(policy.list[0].filter, Filter::default());
    }

    #[test]
    fn a_bad_policy_is_refused_with_the_rule_and_the_key() {
        let cases = [
            ("", "no rules"),
            ("x = [", "TOML"),
            ("[[move]]", "choose from place, migrate, premigrate, delete, list"),
            ("[[place]]\nname = 'a'", "rule 1: to is missing"),
            ("[[place]]\nname = 'a'\nto = 'x'\nolder = '9 d'", "older is not known when"),
            ("[[place]]\nname = 'a'\nto = 'x'\nfrom = 'y'", "no key \"from\""),
            ("[[delete]]\nname = 'a'\nolder = '9 d'", "needs fileset and older"),
            ("[migrate]", "[[migrate]]"),
            ("[[migrate]]\nname = 'a'\nfrom = 'x'", "rule 1: to is missing"),
            ("[[migrate]]\nname = 'a'\nfrom = 'x'\nto = 'x'", "both \"x\""),
            ("[[list]]\nname = 'a'\nsize = 1", "no key \"size\""),
            ("[[list]]\nname = 'a'\nuser = 'bob'", "user = \"bob\""),
            ("[[list]]\nname = 'a'\nolder = 'long'", "such as \"30 d\""),
            ("[[list]]\nname = 'a'\nlarger = 'big'", "such as \"10 MiB\""),
            ("[[list]]\nname = 'a'\nfiles = 'a/b'", "without /"),
            ("[[migrate]]\nname = 'a'\nfrom = 'x'\nto = 'y'\nabove = 60\nuntil = 80", "until = 80"),
            ("[[migrate]]\nname = 'a'\nfrom = 'x'\nto = 'y'\nabove = 60", "given together"),
        ];
        for (text, expected) in cases {
            let said = Policy::parse(text, &Alice).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}

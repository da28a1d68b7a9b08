//! Which features a host must have: `ssd`, `avx512 && !slow`, `(a100 || h100) && ssd`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ParseError, Scanner};
use crate::vocabulary::{FeatureName, as_text};

/// The most bytes of a requirement.
pub const FEATURES_BYTES_MAX: usize = 1024;

/// How deep its parts may lie in each other.
const DEPTH_MAX: u32 = 32;

/// The most alternatives of a requirement that are said to Slurm.
pub(crate) const ALTERNATIVES_MAX: usize = 64;

const EXPECTED: &str = "expected the name of a feature, \"!\" or \"(\", such as ssd && !slow";

/// What must hold of the features of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Features {
    /// It has this one.
    Has(FeatureName),
    /// This does not hold.
    Not(Box<Features>),
    /// All of these hold.
    All(Vec<Features>),
    /// One of these holds.
    Any(Vec<Features>),
}

impl Features {
    /// Whether it holds of a host with these features.
    #[must_use]
    pub fn holds(&self, of: &[FeatureName]) -> bool {
        match self {
            Features::Has(name) => of.contains(name),
            Features::Not(part) => !part.holds(of),
            Features::All(parts) => parts.iter().all(|part| part.holds(of)),
            Features::Any(parts) => parts.iter().any(|part| part.holds(of)),
        }
    }

    /// Does something with every name in it.
    pub fn each<'a>(&'a self, act: &mut impl FnMut(&'a FeatureName)) {
        match self {
            Features::Has(name) => act(name),
            Features::Not(part) => part.each(act),
            Features::All(parts) | Features::Any(parts) => {
                parts.iter().for_each(|part| part.each(act));
            }
        }
    }

    /// Whether something must not be there.
    #[must_use]
    pub fn forbids(&self) -> bool {
        match self {
            Features::Has(_) => false,
            Features::Not(_) => true,
            Features::All(parts) | Features::Any(parts) => parts.iter().any(Features::forbids),
        }
    }

    /// As `--constraint` of Slurm has it; none if something must not be there, which Slurm cannot say. Slurm reads one level of
    /// parentheses, so what lies deeper is written as one list of alternatives; none if that has too many.
    #[must_use]
    pub fn in_slurm(&self) -> Option<String> {
        match self {
            Features::Has(name) => Some(name.to_string()),
            Features::Not(_) => None,
            Features::All(parts) => in_list(parts, "&").or_else(|| self.as_alternatives()),
            Features::Any(parts) => in_list(parts, "|").or_else(|| self.as_alternatives()),
        }
    }

    fn as_alternatives(&self) -> Option<String> {
        let alternatives = self.alternatives()?.into_iter().map(|names| {
            let names: Vec<&str> = names.into_iter().map(FeatureName::as_str).collect();
            if names.len() == 1 { names.concat() } else { format!("({})", names.join("&")) }
        });
        Some(alternatives.collect::<Vec<_>>().join("|"))
    }

    /// Sets of features such that it holds of a host that has all of one of them.
    fn alternatives(&self) -> Option<Vec<BTreeSet<&FeatureName>>> {
        let mut all = vec![BTreeSet::new()];
        match self {
            Features::Has(name) => all[0].extend([name]),
            Features::Not(_) => return None,
            Features::Any(parts) => {
                all.clear();
                for part in parts {
                    all.extend(part.alternatives()?);
                }
            }
            Features::All(parts) => {
                for part in parts {
                    let more = part.alternatives()?;
                    let joined = |one: &BTreeSet<_>| {
                        more.iter().map(|other| one | other).collect::<Vec<_>>()
                    };
                    all = all.iter().flat_map(joined).collect();
                    if all.len() > ALTERNATIVES_MAX {
                        return None;
                    }
                }
            }
        }
        (all.len() <= ALTERNATIVES_MAX).then_some(all)
    }

    /// Reads `--constraint` of Slurm, in which `&` and `|` have the same precedence: `a|b&c` is `(a|b)&c`. A comma is an old sign
    /// for `&`.
    ///
    /// # Errors
    /// If it is not one.
    pub fn of_slurm(text: &str) -> Result<Features, ParseError> {
        let mut scanner = Scanner::new("features", text);
        check_length(&scanner, text)?;
        let read = in_order(&mut scanner, 0)?;
        scanner.finish("\"&\", \"|\" or the end")?;
        Ok(read)
    }

    /// Both; one alone if there is no other.
    #[must_use]
    pub fn and(self, other: Option<Features>) -> Features {
        match other {
            Some(other) => joined(vec![self, other], Features::All),
            None => self,
        }
    }
}

/// Names, and lists of names in parentheses, with a sign between; none if they hold anything else.
fn in_list(parts: &[Features], sign: &str) -> Option<String> {
    let name = |part: &Features| match part {
        Features::Has(name) => Some(name.to_string()),
        Features::Not(_) | Features::All(_) | Features::Any(_) => None,
    };
    let names = |parts: &[Features], sign: &str| {
        Some(format!("({})", parts.iter().map(name).collect::<Option<Vec<_>>>()?.join(sign)))
    };
    let parts = parts.iter().map(|part| match part {
        Features::Has(_) | Features::Not(_) => name(part),
        Features::All(parts) => names(parts, "&"),
        Features::Any(parts) => names(parts, "|"),
    });
    Some(parts.collect::<Option<Vec<_>>>()?.join(sign))
}

fn check_length(scanner: &Scanner<'_>, text: &str) -> Result<(), ParseError> {
    if text.len() > FEATURES_BYTES_MAX {
        return Err(scanner.refuse(format!("it has at most {FEATURES_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Several parts as one; those that are of the same kind are taken in.
fn joined(parts: Vec<Features>, kind: fn(Vec<Features>) -> Features) -> Features {
    let is_all = matches!(kind(Vec::new()), Features::All(_));
    let mut flat = Vec::new();
    for part in parts {
        match part {
            Features::All(inner) if is_all => flat.extend(inner),
            Features::Any(inner) if !is_all => flat.extend(inner),
            part => flat.push(part),
        }
    }
    if flat.len() == 1 { flat.remove(0) } else { kind(flat) }
}

fn any(scanner: &mut Scanner<'_>, depth: u32) -> Result<Features, ParseError> {
    let mut parts = vec![all(scanner, depth)?];
    loop {
        scanner.skip_blanks();
        if !scanner.take("||") && !scanner.take("|") {
            return Ok(joined(parts, Features::Any));
        }
        parts.push(all(scanner, depth)?);
    }
}

fn all(scanner: &mut Scanner<'_>, depth: u32) -> Result<Features, ParseError> {
    let mut parts = vec![one(scanner, depth, any)?];
    loop {
        scanner.skip_blanks();
        if !scanner.take("&&") && !scanner.take("&") {
            return Ok(joined(parts, Features::All));
        }
        parts.push(one(scanner, depth, any)?);
    }
}

/// What Slurm reads from left to right.
fn in_order(scanner: &mut Scanner<'_>, depth: u32) -> Result<Features, ParseError> {
    let mut read = one(scanner, depth, in_order)?;
    loop {
        scanner.skip_blanks();
        let kind: fn(Vec<Features>) -> Features = if scanner.take("&") || scanner.take(",") {
            Features::All
        } else if scanner.take("|") {
            Features::Any
        } else {
            return Ok(read);
        };
        read = joined(vec![read, one(scanner, depth, in_order)?], kind);
    }
}

/// Reads what stands in parentheses.
type Inner = fn(&mut Scanner<'_>, u32) -> Result<Features, ParseError>;

fn one(scanner: &mut Scanner<'_>, depth: u32, inside: Inner) -> Result<Features, ParseError> {
    scanner.skip_blanks();
    if depth >= DEPTH_MAX {
        return Err(scanner.refuse(format!("at most {DEPTH_MAX} levels lie in each other")));
    }
    if scanner.take("!") {
        return Ok(match one(scanner, depth + 1, inside)? {
            Features::Not(inner) => *inner,
            part => Features::Not(Box::new(part)),
        });
    }
    if scanner.take("(") {
        let inner = inside(scanner, depth + 1)?;
        scanner.skip_blanks();
        scanner.expect(")")?;
        return Ok(inner);
    }
    let start = scanner.at();
    let word = scanner.run(|c| c.is_ascii_alphanumeric() || "_.-@$".contains(c));
    if word.is_empty() {
        return Err(scanner.refuse(EXPECTED));
    }
    let name = word.parse().map_err(|fault: String| scanner.refuse_at(start, fault));
    Ok(Features::Has(name?))
}

impl FromStr for Features {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Features, ParseError> {
        let mut scanner = Scanner::new("features", text);
        check_length(&scanner, text)?;
        let read = any(&mut scanner, 0)?;
        scanner.finish("\"&&\", \"||\" or the end")?;
        Ok(read)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = |f: &mut fmt::Formatter<'_>, part: &Features| match part {
            Features::Has(_) | Features::Not(_) => write!(f, "{part}"),
            Features::All(_) | Features::Any(_) => write!(f, "({part})"),
        };
        let (parts, sign) = match self {
            Features::Has(name) => return write!(f, "{name}"),
            Features::Not(part) => {
                f.write_str("!")?;
                return within(f, part);
            }
            Features::All(parts) => (parts, " && "),
            Features::Any(parts) => (parts, " || "),
        };
        for (place, part) in parts.iter().enumerate() {
            f.write_str(if place > 0 { sign } else { "" })?;
            within(f, part)?;
        }
        Ok(())
    }
}

as_text!(Features);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_reads_back_as_it_is_written_and_holds_of_hosts() {
        let of = |names: &[&str]| -> Vec<FeatureName> {
            names.iter().map(|name| name.parse().unwrap()).collect()
        };
        for (text, written, slurm) in [
            ("ssd", "ssd", Some("ssd")),
            ("ssd&avx512", "ssd && avx512", Some("ssd&avx512")),
            ("a|b && c", "a || (b && c)", Some("a|(b&c)")),
            ("(a || b) && !c", "(a || b) && !c", None),
            ("!(a&&b)", "!(a && b)", None),
            ("!!a", "a", Some("a")),
            ("((a))&&(b&&c)", "a && b && c", Some("a&b&c")),
            ("a && (b || (c && d))", "a && (b || (c && d))", Some("(a&b)|(a&c&d)")),
            ("a || (a && (b || a))", "a || (a && (b || a))", Some("a|(a&b)|a")),
            ("a && (b || (c && !d))", "a && (b || (c && !d))", None),
        ] {
            let read: Features = text.parse().unwrap();
            assert_eq!(read.to_string(), written, "{text}");
            assert_eq!(written.parse(), Ok(read.clone()));
            assert_eq!(read.in_slurm().as_deref(), slurm, "{text}");
        }
        let needed: Features = "(a || b) && !c".parse().unwrap();
        assert!(needed.holds(&of(&["b"])) && needed.holds(&of(&["a", "d"])));
        assert!(!needed.holds(&of(&["a", "c"])) && !needed.holds(&of(&[])));
        let pairs = |number: u32| format!("(a{number} || (b{number} && (c || d)))");
        let many = (0..12).map(pairs).collect::<Vec<_>>().join(" && ");
        assert_eq!(many.parse::<Features>().unwrap().in_slurm(), None, "too many to be listed");
        let deep = format!("{}a{}", "(".repeat(40), ")".repeat(40));
        for bad in ["", "a &&", "(a", "a b", "a*2", "&a", "!", &deep, &"a".repeat(2000)] {
            assert!(bad.parse::<Features>().is_err(), "{bad}");
        }
    }

    #[test]
    fn slurm_reads_from_left_to_right() {
        for (text, written) in [
            ("a|b&c", "(a || b) && c"),
            ("a&b|c", "(a && b) || c"),
            ("(a|b)&c", "(a || b) && c"),
            ("a|(b&c)", "a || (b && c)"),
            ("a|b|c&d,e", "(a || b || c) && d && e"),
            ("ssd", "ssd"),
        ] {
            assert_eq!(Features::of_slurm(text).unwrap().to_string(), written, "{text}");
        }
        for bad in ["", "a&", "|a", "(a|b", "a b", "a&|b", "a&&b", "a||b", "a*2"] {
            assert!(Features::of_slurm(bad).is_err(), "{bad}");
        }
    }
}

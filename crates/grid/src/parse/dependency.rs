//! Dependency expressions: `done(12) && ended(load*) || exit(3, > 1)`, as LSF writes them.
//!
//! `&&` binds more tightly than `||`; parentheses group. Each condition names a job by its number, or
//! the user's jobs by a name in which `*` stands for any characters, and one element with `[3]`. A
//! bare job means `done`; `singleton()` is about the jobs with the same name. There is no negation: what was true and becomes false could let a job start
//! whose reason has gone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::period::Period;
use super::{ParseError, Scanner};
use crate::vocabulary::{JobId, NAME_BYTES_MAX, as_text};

/// The deepest nesting of parentheses.
pub const DEPTH_MAX: u32 = 32;
/// The most conditions of an expression.
pub const CONDITIONS_MAX: u32 = 1000;

/// Conditions joined by and and or; `R` says of which job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition<R> {
    /// Every one of them.
    All(Vec<Condition<R>>),
    /// One of them at least.
    Any(Vec<Condition<R>>),
    /// Something about a job.
    Is(Test, R),
    /// Something about the element of another job with the same index as the element that waits.
    Each(Test, R),
    /// Of the unfinished jobs of the user with the name of the job itself it is the first, and no other one is on a host.
    Singleton,
}

/// What is asked of a job. Of a whole array it is asked of all elements together, as said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// It ended with exit value 0; every element did.
    Done,
    /// It ended, no matter how; every element did.
    Ended,
    /// It ended otherwise than with 0, or with an exit value that compares so; of an array, every
    /// element ended and one of them like this.
    Exit(Option<Comparison>),
    /// It has started or ended; every element has.
    Started,
    /// It ended with 0 and its work area was removed; of every element.
    PostDone,
    /// Its work area could not be removed; of one element at least.
    PostErr,
    /// How many elements are so compares so.
    Number(Countable, Comparison),
    /// It started so long ago at least, or ended without having been started; every element did.
    StartedFor(Period),
}

/// What is counted of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Countable {
    /// Elements that ended with 0.
    Done,
    /// Elements that ended otherwise.
    Exit,
    /// Elements that ended.
    Ended,
    /// Elements that started or ended.
    Started,
}

/// A comparison with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// How.
    pub how: Compare,
    /// With what.
    pub number: u32,
}

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `==`
    Equal,
    /// `!=`
    Unequal,
}

const COMPARES: [(&str, Compare); 6] = [
    (">=", Compare::AtLeast),
    ("<=", Compare::AtMost),
    ("==", Compare::Equal),
    ("!=", Compare::Unequal),
    (">", Compare::Greater),
    ("<", Compare::Less),
];

impl Comparison {
    /// Whether `number` compares so.
    #[must_use]
    pub fn holds(self, number: u32) -> bool {
        match self.how {
            Compare::Greater => number > self.number,
            Compare::AtLeast => number >= self.number,
            Compare::Less => number < self.number,
            Compare::AtMost => number <= self.number,
            Compare::Equal => number == self.number,
            Compare::Unequal => number != self.number,
        }
    }
}

/// Which jobs a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// By number or name.
    pub job: JobName,
    /// One element of it.
    pub index: Option<u32>,
}

/// A job by number or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobName {
    /// Its number.
    Number(JobId),
    /// Its name: with `*` all of the user's jobs that match, without the latest of that name.
    Name(String),
}

/// A dependency expression as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency(pub Condition<JobRef>);

const CALLS: &str = "done, ended, exit, started, post_done, post_err, numdone, numexit, numended, \
                     numstart, singleton";

/// Which element of a job is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// The one that is named, or all.
    Named,
    /// The one with the index of the element that waits.
    SameIndex,
}

impl Which {
    fn ask(self, test: Test, job: JobRef) -> Condition<JobRef> {
        match self {
            Which::Named => Condition::Is(test, job),
            Which::SameIndex => Condition::Each(test, job),
        }
    }
}

struct Reader<'a> {
    scanner: Scanner<'a>,
    depth: u32,
    conditions: u32,
}

impl Reader<'_> {
    fn any(&mut self) -> Result<Condition<JobRef>, ParseError> {
        self.joined("||", Reader::all, Condition::Any)
    }

    fn all(&mut self) -> Result<Condition<JobRef>, ParseError> {
        self.joined("&&", Reader::one, Condition::All)
    }

    fn joined(
        &mut self,
        sign: &str,
        part: fn(&mut Self) -> Result<Condition<JobRef>, ParseError>,
        join: fn(Vec<Condition<JobRef>>) -> Condition<JobRef>,
    ) -> Result<Condition<JobRef>, ParseError> {
        let first = part(self)?;
        self.scanner.skip_blanks();
        if !self.scanner.rest().starts_with(sign) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.scanner.take(sign) {
            parts.push(part(self)?);
            self.scanner.skip_blanks();
        }
        Ok(join(parts))
    }

    fn one(&mut self) -> Result<Condition<JobRef>, ParseError> {
        self.scanner.skip_blanks();
        let start = self.scanner.at();
        if self.scanner.take("!") {
            let reason = "\"!\" is not supported: write what must become true, such as exit(12)";
            return Err(self.scanner.refuse_at(start, reason));
        }
        if self.scanner.take("(") {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                let reason = format!("nested more than {DEPTH_MAX} deep");
                return Err(self.scanner.refuse_at(start, reason));
            }
            let inner = self.any()?;
            self.scanner.skip_blanks();
            if !self.scanner.take(")") {
                return Err(self.scanner.refuse("expected \"&&\", \"||\" or \")\""));
            }
            self.depth -= 1;
            return Ok(inner);
        }
        self.conditions += 1;
        if self.conditions > CONDITIONS_MAX {
            let reason = format!("more than {CONDITIONS_MAX} conditions");
            return Err(self.scanner.refuse_at(start, reason));
        }
        let word = self.word()?;
        if word.1 || !self.scanner.take("(") {
            let (job, which) = self.job(word, start)?;
            return Ok(which.ask(Test::Done, job));
        }
        self.call(&word.0, start)
    }

    /// A quoted or bare word, and whether it was quoted.
    fn word(&mut self) -> Result<(String, bool), ParseError> {
        self.scanner.skip_blanks();
        let start = self.scanner.at();
        if self.scanner.take("\"") {
            let word = self.scanner.run(|c| c != '"').to_owned();
            if !self.scanner.take("\"") {
                return Err(self.scanner.refuse_at(start, "this quote is not closed"));
            }
            return Ok((word, true));
        }
        let word = self.scanner.run(|c| !c.is_whitespace() && !"()[]&|,!<>=\"".contains(c));
        if word.is_empty() {
            let reason = format!("expected a job, \"(\" or one of {CALLS}");
            return Err(self.scanner.refuse(reason));
        }
        Ok((word.to_owned(), false))
    }

    fn job(&mut self, word: (String, bool), start: usize) -> Result<(JobRef, Which), ParseError> {
        let (text, quoted) = word;
        let job = match text.parse::<u64>() {
            Ok(0) => return Err(self.scanner.refuse_at(start, "job numbers start at 1")),
            Ok(number) if !quoted => JobName::Number(JobId(number)),
            Ok(_) | Err(_) if text.is_empty() => {
                return Err(self.scanner.refuse_at(start, "the name of a job must not be empty"));
            }
            Ok(_) | Err(_) if text.len() > NAME_BYTES_MAX => {
                let reason = format!("the name of a job has at most {NAME_BYTES_MAX} bytes");
                return Err(self.scanner.refuse_at(start, reason));
            }
            Ok(_) | Err(_) => JobName::Name(text),
        };
        let (mut index, mut which) = (None, Which::Named);
        if self.scanner.take("[*]") {
            which = Which::SameIndex;
        } else if self.scanner.take("[") {
            let at = self.scanner.at();
            let number = self.scanner.number("the index of an element", super::array::INDEX_MAX)?;
            if number == 0 {
                return Err(self.scanner.refuse_at(at, "indices start at 1"));
            }
            self.scanner.expect("]")?;
            index = Some(number);
        }
        Ok((JobRef { job, index }, which))
    }

    /// What follows the opening parenthesis of a call.
    fn call(&mut self, name: &str, start: usize) -> Result<Condition<JobRef>, ParseError> {
        if name == "singleton" {
            self.scanner.skip_blanks();
            self.scanner.expect(")")?;
            return Ok(Condition::Singleton);
        }
        let countable = match name {
            "numdone" => Some(Countable::Done),
            "numexit" => Some(Countable::Exit),
            "numended" => Some(Countable::Ended),
            "numstart" => Some(Countable::Started),
            _ => None,
        };
        let plain = match name {
            "done" => Some(Test::Done),
            "ended" => Some(Test::Ended),
            "exit" => Some(Test::Exit(None)),
            "started" => Some(Test::Started),
            "post_done" => Some(Test::PostDone),
            "post_err" => Some(Test::PostErr),
            _ => None,
        };
        if plain.is_none() && countable.is_none() {
            let reason = format!("\"{name}\" is unknown; choose from {CALLS}");
            return Err(self.scanner.refuse_at(start, reason));
        }
        self.scanner.skip_blanks();
        let at = self.scanner.at();
        let word = self.word()?;
        let (job, which) = self.job(word, at)?;
        if countable.is_some() && which == Which::SameIndex {
            let reason = format!("{name} counts all elements: omit [*]");
            return Err(self.scanner.refuse_at(at, reason));
        }
        self.scanner.skip_blanks();
        let comma = self.scanner.at();
        let mut comparison = None;
        if plain == Some(Test::Started) && self.scanner.take(",") {
            let period = self.period()?;
            return Ok(which.ask(Test::StartedFor(period), job));
        }
        if self.scanner.take(",") {
            if plain.is_some_and(|test| test != Test::Exit(None)) {
                let reason = format!("{name} takes exactly one job");
                return Err(self.scanner.refuse_at(comma, reason));
            }
            comparison = Some(self.comparison()?);
        }
        let test = match (plain, countable, comparison) {
            (Some(Test::Exit(_)), _, comparison) => Test::Exit(comparison),
            (Some(test), _, _) => test,
            (None, Some(countable), Some(comparison)) => Test::Number(countable, comparison),
            (None, _, _) => {
                let reason = "expected a comma and a comparison, such as numdone(12, >= 5)";
                return Err(self.scanner.refuse(reason));
            }
        };
        self.scanner.skip_blanks();
        self.scanner.expect(")")?;
        Ok(which.ask(test, job))
    }

    /// A time up to the closing parenthesis.
    fn period(&mut self) -> Result<Period, ParseError> {
        self.scanner.skip_blanks();
        let start = self.scanner.at();
        let text = self.scanner.run(|c| c != ')').trim().to_owned();
        let period = text.parse::<Period>();
        let period = period.map_err(|error| self.scanner.refuse_at(start, error.to_string()))?;
        self.scanner.expect(")")?;
        Ok(period)
    }

    fn comparison(&mut self) -> Result<Comparison, ParseError> {
        self.scanner.skip_blanks();
        let how = COMPARES
            .iter()
            .find(|(sign, _)| self.scanner.take(sign))
            .map_or(Compare::Equal, |(_, how)| *how);
        self.scanner.skip_blanks();
        let number =
            self.scanner.number("a number, or >, >=, <, <=, ==, != and a number", u32::MAX)?;
        Ok(Comparison { how, number })
    }
}

impl FromStr for Dependency {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Dependency, ParseError> {
        let scanner = Scanner::new("dependency", text);
        let mut reader = Reader { scanner, depth: 0, conditions: 0 };
        let condition = reader.any()?;
        reader.scanner.finish("\"&&\", \"||\" or the end")?;
        Ok(Dependency(condition))
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            JobName::Number(number) => write!(f, "{number}")?,
            JobName::Name(name) => write!(f, "\"{name}\"")?,
        }
        self.index.map_or(Ok(()), |index| write!(f, "[{index}]"))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = COMPARES.iter().find(|(_, how)| *how == self.how).map_or("==", |(sign, _)| sign);
        write!(f, "{sign} {}", self.number)
    }
}

/// Prints one condition of a job.
fn print_test(f: &mut fmt::Formatter<'_>, test: Test, job: &impl fmt::Display) -> fmt::Result {
    match test {
        Test::Done => write!(f, "done({job})"),
        Test::Ended => write!(f, "ended({job})"),
        Test::Exit(None) => write!(f, "exit({job})"),
        Test::Exit(Some(comparison)) => write!(f, "exit({job}, {comparison})"),
        Test::Started => write!(f, "started({job})"),
        Test::StartedFor(period) => write!(f, "started({job}, {period})"),
        Test::PostDone => write!(f, "post_done({job})"),
        Test::PostErr => write!(f, "post_err({job})"),
        Test::Number(countable, comparison) => {
            let name = match countable {
                Countable::Done => "numdone",
                Countable::Exit => "numexit",
                Countable::Ended => "numended",
                Countable::Started => "numstart",
            };
            write!(f, "{name}({job}, {comparison})")
        }
    }
}

impl<R: fmt::Display> fmt::Display for Condition<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, sign) = match self {
            Condition::Is(test, job) => return print_test(f, *test, job),
            Condition::Singleton => return f.write_str("singleton()"),
            Condition::Each(test, job) => return print_test(f, *test, &format_args!("{job}[*]")),
            Condition::All(parts) => (parts, " && "),
            Condition::Any(parts) => (parts, " || "),
        };
        for (place, part) in parts.iter().enumerate() {
            if place > 0 {
                f.write_str(sign)?;
            }
            match part {
                Condition::Is(..) | Condition::Each(..) | Condition::Singleton => part.fmt(f)?,
                Condition::All(_) | Condition::Any(_) => write!(f, "({part})")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(Dependency);

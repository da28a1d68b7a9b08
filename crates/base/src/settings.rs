//! Settings in a file: `key = value`, in TOML.
//!
//! Each crate contributes a [`Section`]: a table with the default of each setting, what is allowed and what it means.
//! Reading, checking and the commented file that people start from all come from these tables. A bad file is refused
//! with the key, the value, what is allowed and the line.

use std::fmt::Write as _;

use toml::Value;

/// One setting of a section `S`.
pub struct Setting<S> {
    /// Key in the file.
    pub name: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// What is allowed, in words.
    pub allowed: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Sets it; `None` if the value is not allowed.
    pub set: fn(&mut S, &Value) -> Option<()>,
}

/// The settings of one crate.
pub trait Section: Sized + 'static {
    /// All of them.
    const TABLE: &'static [Setting<Self>];

    /// All settings with their defaults.
    ///
    /// # Panics
    /// If a default is not TOML, or not allowed: a mistake in the table.
    #[must_use]
    fn with_defaults(mut self) -> Self {
        for setting in Self::TABLE {
            let value: Value = format!("x = {}", setting.default)
                .parse::<toml::Table>()
                .ok()
                .and_then(|mut table| table.remove("x"))
                .expect("defaults are valid TOML");
            (setting.set)(&mut self, &value).expect("defaults are allowed");
        }
        self
    }
}

/// A section of any type, as a file sees it.
pub trait AnySection {
    /// The names of its settings.
    fn names(&self) -> Vec<&'static str>;
    /// Sets one, or says what is allowed; `None` if it is not in this section.
    fn set(&mut self, name: &str, value: &Value) -> Option<Result<(), &'static str>>;
    /// Writes each setting, commented out, with its meaning.
    fn write_template(&self, text: &mut String);
}

impl<S: Section> AnySection for S {
    fn names(&self) -> Vec<&'static str> {
        S::TABLE.iter().map(|setting| setting.name).collect()
    }

    fn set(&mut self, name: &str, value: &Value) -> Option<Result<(), &'static str>> {
        let setting = S::TABLE.iter().find(|setting| setting.name == name)?;
        Some((setting.set)(self, value).ok_or(setting.allowed))
    }

    fn write_template(&self, text: &mut String) {
        for setting in S::TABLE {
            let _ = write!(
                text,
                "\n# {}\n# Allowed: {}.\n#{} = {}\n",
                setting.meaning, setting.allowed, setting.name, setting.default
            );
        }
    }
}

/// Reads the text of a settings file into the sections that it is made of; `file` is its name for messages.
///
/// # Errors
/// A text that names the file and line, the key, the value and what is allowed.
pub fn read(file: &str, text: &str, sections: &mut [&mut dyn AnySection]) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_of_offset(text, span.start));
        format!("{file}, line {line}: {}", error.message())
    })?;
    for (key, value) in &table {
        let line = line_of_key(text, key);
        match sections.iter_mut().find_map(|section| section.set(key, value)) {
            Some(Ok(())) => {}
            Some(Err(allowed)) => {
                return Err(format!(
                    "{file}, line {line}: {key} = {value} is not allowed: must be {allowed}"
                ));
            }
            None => {
                let names: Vec<&str> =
                    sections.iter().flat_map(|section| section.names()).collect();
                return Err(format!(
                    "{file}, line {line}: unknown key \"{key}\" (value {value}); allowed keys are: {}",
                    names.join(", ")
                ));
            }
        }
    }
    Ok(())
}

/// The file that people start from: every setting, commented out, with its meaning. `heading` is its first line.
#[must_use]
pub fn template(heading: &str, sections: &[&dyn AnySection]) -> String {
    let mut text = format!(
        "# {heading}\n# Each line shows the default: remove the # in front to change it.\n"
    );
    for section in sections {
        section.write_template(&mut text);
    }
    text
}

fn line_of_offset(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

fn line_of_key(text: &str, key: &str) -> usize {
    let is_key_line = |line: &str| {
        let name = line.split(['=', '.']).next().unwrap_or("").trim();
        name.trim_matches(['"', '\'', '[', ']']) == key
    };
    text.lines().position(is_key_line).map_or(1, |index| index + 1)
}

/// Values as people write them.
pub mod value {
    use std::time::Duration;

    use toml::Value;

    use crate::ByteSize;

    /// A whole number within bounds.
    #[must_use]
    pub fn number(value: &Value, low: u64, high: u64) -> Option<u64> {
        let number = u64::try_from(value.as_integer()?).ok()?;
        (low..=high).contains(&number).then_some(number)
    }

    /// A number of things within bounds.
    #[must_use]
    pub fn count(value: &Value, low: usize, high: usize) -> Option<usize> {
        usize::try_from(number(value, low as u64, high as u64)?).ok()
    }

    /// A size within bounds: a number of bytes, or a text with a unit.
    #[must_use]
    pub fn size(value: &Value, low: ByteSize, high: ByteSize) -> Option<ByteSize> {
        let size = match value {
            Value::String(text) => text.parse().ok()?,
            other => ByteSize(u64::try_from(other.as_integer()?).ok()?),
        };
        (low..=high).contains(&size).then_some(size)
    }

    /// A time within bounds: a number with us, ms, s, min or h.
    #[must_use]
    pub fn duration(value: &Value, low: Duration, high: Duration) -> Option<Duration> {
        let text = value.as_str()?.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let duration = match text[digits..].trim() {
            "us" => Duration::from_micros(number),
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "min" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            _ => return None,
        };
        (low..=high).contains(&duration).then_some(duration)
    }
}

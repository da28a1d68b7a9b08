//! Parameters: what may be set for a run of a mix.
//!
//! A value written as `"${block}"` in the mix is replaced, quotes included, by the value of the
//! parameter `block`. The replacement is done in the text, before it is parsed, within the line, so that
//! messages name the right line.

use serde::Deserialize;
use toml::Value;

use super::refuse;
use crate::error::{Error, Result};

/// Something that may be set for a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Its value unless set.
    pub default: Value,
    /// What it means, with its unit.
    pub help: String,
}

impl Parameter {
    /// Its value as people write it.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.default {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        }
    }
}

/// The part of a mix that has the parameters.
#[derive(Deserialize)]
struct Parameters {
    #[serde(default)]
    parameters: std::collections::BTreeMap<String, Parameter>,
}

/// A value as it is given on a command line: a number or a boolean if it reads as one, a text otherwise.
pub(super) fn value(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return Value::Integer(number);
    }
    match (text.parse::<f64>(), text.parse::<bool>()) {
        (Ok(number), _) if number.is_finite() => Value::Float(number),
        (_, Ok(truth)) => Value::Boolean(truth),
        _ => Value::String(text.to_owned()),
    }
}

/// Replaces the parameters in `text`.
pub(super) fn substitute(
    source: &str,
    text: &str,
    settings: &[(String, String)],
) -> Result<String> {
    let known: Parameters = toml::from_str(text).map_err(|error| refuse(source, &error))?;
    for (name, value) in settings {
        if !known.parameters.contains_key(name) {
            let names: Vec<&str> = known.parameters.keys().map(String::as_str).collect();
            let reason = match names.as_slice() {
                [] => format!("unknown parameter \"{name}\": {source} has no parameters"),
                names => {
                    format!("unknown parameter \"{name}\"; choose from {}", names.join(", "))
                }
            };
            let (name, value) = (name.clone(), value.clone());
            return Err(Error::Parameter { name, value, reason });
        }
    }
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let mut rest = line;
        while let Some(start) = rest.find("\"${") {
            let Some(length) = rest[start..].find("}\"") else { break };
            let name = &rest[start + 3..start + length];
            let parameter = known.parameters.get(name).ok_or_else(|| Error::Mix {
                file: source.to_owned(),
                reason: format!("line {}: there is no parameter \"{name}\"", number + 1),
            })?;
            let set = settings.iter().rev().find(|(set, _)| set == name);
            let value = set.map_or_else(|| parameter.default.clone(), |(_, text)| value(text));
            out.push_str(&rest[..start]);
            out.push_str(&value.to_string());
            rest = &rest[start + length + 2..];
        }
        out.push_str(rest);
    }
    Ok(out)
}

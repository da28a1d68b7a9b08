//! The option `-o` of LSF's lists: `-o "FIELD[:[-]WIDTH] ... [delimiter='X']"`.

use anyhow::{Result, bail};

use super::super::columns::{Room, Side};
use super::NOTHING;

/// A field: its name, another name for it, and its usual width.
pub type Field = (&'static str, &'static str, usize);

/// One column.
struct Column {
    name: &'static str,
    heading: String,
    room: Room,
}

/// What a list shows.
pub struct Format {
    columns: Vec<Column>,
    delimiter: Option<String>,
}

impl Format {
    /// Reads `jobid:8 stat:-5 job_name delimiter=','`.
    ///
    /// # Errors
    /// If a field or a width is not one.
    pub fn read(format: &str, fields: &[Field]) -> Result<Format> {
        let mut delimiter = None;
        let mut format = format.to_owned();
        if let Some((before, rest)) = format.split_once("delimiter=") {
            let quote = rest.chars().next().filter(|c| ['\'', '"'].contains(c));
            let value = match quote {
                Some(quote) => rest[1..].split(quote).next().unwrap_or_default(),
                None => rest.split(' ').next().unwrap_or_default(),
            };
            delimiter = Some(value.to_owned());
            let skipped = value.len() + if quote.is_some() { 2 } else { 0 };
            format = format!("{before} {}", rest.get(skipped..).unwrap_or_default());
        }
        let columns: Vec<Column> =
            format.split_whitespace().map(|word| column(word, fields)).collect::<Result<_>>()?;
        if columns.is_empty() {
            bail!("-o \"{format}\": name at least one field");
        }
        Ok(Format { columns, delimiter })
    }

    /// The lines of a list, with the value of each field; a field without a value shows as `-`.
    pub fn table<T>(
        &self,
        rows: &[T],
        without_heading: bool,
        value: impl Fn(&T, &str) -> Option<String>,
    ) -> String {
        let mut text = String::new();
        if !without_heading {
            text += &self.line(|column| column.heading.clone());
        }
        for row in rows {
            text +=
                &self.line(|column| value(row, column.name).unwrap_or_else(|| NOTHING.to_owned()));
        }
        text
    }

    /// The same as JSON, as LSF writes it with `-json`; a field without a value is empty. `counted` is what the number of records is called.
    pub fn json<T>(
        &self,
        (command, counted): (&str, &str),
        rows: &[T],
        value: impl Fn(&T, &str) -> Option<String>,
    ) -> String {
        let record = |row: &T| {
            let fields = self.columns.iter().map(|column| {
                let said = value(row, column.name).unwrap_or_default();
                (column.heading.clone(), serde_json::Value::String(said))
            });
            serde_json::Value::Object(fields.collect())
        };
        let records: Vec<serde_json::Value> = rows.iter().map(record).collect();
        let whole =
            serde_json::json!({ "COMMAND": command, counted: rows.len(), "RECORDS": records });
        format!("{whole:#}\n")
    }

    fn line(&self, cell: impl Fn(&Column) -> String) -> String {
        let cells: Vec<String> = match &self.delimiter {
            Some(_) => self.columns.iter().map(cell).collect(),
            None => self
                .columns
                .iter()
                .map(|column| column.room.fit(&cell(column), Some('*')))
                .collect(),
        };
        cells.join(self.delimiter.as_deref().unwrap_or(" ")) + "\n"
    }
}

fn column(word: &str, fields: &[Field]) -> Result<Column> {
    let (name, width) =
        word.split_once(':').map_or((word, None), |(name, width)| (name, Some(width)));
    let lower = name.to_ascii_lowercase();
    let known = fields.iter().find(|(known, alias, _)| *known == lower || *alias == lower);
    let Some((name, _, usual)) = known else {
        let all: Vec<&str> = fields.iter().map(|(name, _, _)| *name).collect();
        bail!("{name}: Invalid field name; choose from {}", all.join(", "));
    };
    let (side, digits) = match width.and_then(|width| width.strip_prefix('-')) {
        Some(digits) => (Side::Right, Some(digits)),
        None => (Side::Left, width),
    };
    let width = digits.and_then(|digits| digits.parse().ok()).unwrap_or(*usual);
    let heading = name.to_ascii_uppercase();
    Ok(Column { name, heading, room: Room { width: Some(width), side } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field] = &[("jobid", "id", 7), ("stat", "stat", 5), ("job_name", "name", 10)];

    #[test]
    fn the_fields_of_a_format_have_widths_and_a_delimiter() {
        let found = Format::read("jobid:8 STAT:-5 name delimiter='^' id", FIELDS).unwrap();
        let seen: Vec<_> =
            found.columns.iter().map(|c| (c.name, c.room.width, c.room.side)).collect();
        assert_eq!(
            seen,
            [
                ("jobid", Some(8), Side::Left),
                ("stat", Some(5), Side::Right),
                ("job_name", Some(10), Side::Left),
                ("jobid", Some(7), Side::Left),
            ]
        );
        assert_eq!(found.delimiter.as_deref(), Some("^"));
        assert!(Format::read("jobid nosuch", FIELDS).is_err());
        assert!(Format::read("", FIELDS).is_err());
    }

    #[test]
    fn json_has_a_record_with_texts_for_each_row() {
        let format = Format::read("id stat", FIELDS).unwrap();
        let value = |row: &u32, name: &str| (name == "jobid").then(|| row.to_string());
        let said: serde_json::Value =
            serde_json::from_str(&format.json(("bjobs", "JOBS"), &[7], value)).unwrap();
        let expected = serde_json::json!({
            "COMMAND": "bjobs", "JOBS": 1, "RECORDS": [{ "JOBID": "7", "STAT": "" }],
        });
        assert_eq!(said, expected);
        let none: serde_json::Value =
            serde_json::from_str(&format.json(("bjobs", "JOBS"), &[], value)).unwrap();
        assert_eq!(none, serde_json::json!({ "COMMAND": "bjobs", "JOBS": 0, "RECORDS": [] }));
    }

    #[test]
    fn a_field_without_a_value_shows_as_a_dash() {
        let format = Format::read("id:3 stat:-4", FIELDS).unwrap();
        let value = |row: &u32, name: &str| (name == "jobid").then(|| row.to_string());
        assert_eq!(format.table(&[7, 12345], false, value), "JO* STAT\n7      -\n12*    -\n");
    }
}

//! Whether two engines gave the same answer.

use std::fs::File;
use std::path::Path;

use forebay_analytics::error::{Error, Result};

/// How far sums of the same numbers in another order may be apart, as a part of the larger one.
const ROUNDING: f64 = 1e-9;

type Records = csv::StringRecordsIntoIter<File>;

fn records(path: &Path) -> Result<Records> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    Ok(csv::ReaderBuilder::new().has_headers(true).flexible(true).from_reader(file).into_records())
}

fn wrong(path: &Path, reason: String) -> Error {
    Error::WrongResult { path: path.to_owned(), reason }
}

fn next(records: &mut Records, path: &Path) -> Result<Option<csv::StringRecord>> {
    records.next().transpose().map_err(|error| wrong(path, error.to_string()))
}

fn alike(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (Ok(one), Ok(other)) = (one.parse::<f64>(), other.parse::<f64>()) else { return false };
    (one - other).abs() <= ROUNDING * one.abs().max(other.abs())
}

/// Refuses a CSV file whose rows are not those of the other one.
pub fn same(path: &Path, other: &Path) -> Result<()> {
    let (mut rows, mut others) = (records(path)?, records(other)?);
    for number in 1_u64.. {
        match (next(&mut rows, path)?, next(&mut others, other)?) {
            (None, None) => break,
            (Some(row), Some(second)) => {
                if row.len() == second.len() && row.iter().zip(&second).all(|(a, b)| alike(a, b)) {
                    continue;
                }
                let shown = |row: &csv::StringRecord| row.iter().collect::<Vec<_>>().join(",");
                let (row, second) = (shown(&row), shown(&second));
                let there = other.display();
                return Err(wrong(
                    path,
                    format!("row {number} is {row}, but in {there} it is {second}"),
                ));
            }
            (row, _) => {
                let which = if row.is_some() { "more" } else { "fewer" };
                return Err(wrong(path, format!("it has {which} rows than {}", other.display())));
            }
        }
    }
    Ok(())
}

/// Refuses a CSV file with rows.
pub fn empty(path: &Path) -> Result<()> {
    match next(&mut records(path)?, path)? {
        None => Ok(()),
        Some(row) => {
            let row = row.iter().collect::<Vec<_>>().join(",");
            Err(wrong(path, format!("it must have no rows, but begins with {row}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_may_differ_by_rounding_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let one = file("one", "flag,price,lines\nA,471907093.5767468,94486\nB,,2\n");
        let rounded = file("rounded", "flag,price,lines\nA,471907093.5767485,94486\nB,,2\n");
        same(&one, &rounded).unwrap();
        for (text, reason) in [
            ("flag,price,lines\nA,471907093.5767485,94487\nB,,2\n", "row 1 is"),
            ("flag,price,lines\nA,471907193.5767485,94486\nB,,2\n", "row 1 is"),
            ("flag,price,lines\nA,471907093.5767485,94486\nB,0,2\n", "row 2 is"),
            ("flag,price,lines\nA,471907093.5767485,94486\n", "more rows"),
            ("flag,price,lines\nA,471907093.5767485,94486\nB,,2\nC,,3\n", "fewer rows"),
        ] {
            let error = same(&one, &file("other", text)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        empty(&file("none", "a,b\n")).unwrap();
        assert!(empty(&one).unwrap_err().to_string().contains("no rows"));
        assert!(empty(&folder.path().join("missing")).unwrap_err().to_string().contains("missing"));
    }
}

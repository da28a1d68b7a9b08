//! The tables of a comparison.

use forebay_analytics::{Cell, Table};

use super::{Compared, Comparison, Pairing, ROUNDS_MIN, class_of};
use crate::summary::Sheet;

impl Comparison {
    /// Its tables; tables without rows are left out.
    #[must_use]
    pub fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = vec![
            self.sheet("comparison", "Comparison", |compared| !compared.figure.is_of_part()),
            self.sheet("comparison_classes", "Comparison of real times, by class of jobs", |one| {
                class_of(&one.figure.key).is_some()
            }),
            self.sheet("comparison_parts", "Comparison of stages and steps", |compared| {
                compared.figure.is_of_part() && class_of(&compared.figure.key).is_none()
            }),
            self.sides_sheet(),
        ];
        sheets.retain(|sheet| !sheet.table.rows.is_empty());
        sheets
    }

    fn sheet(&self, name: &'static str, title: &str, keep: fn(&Compared) -> bool) -> Sheet {
        // Of classes the spread is that over jobs.
        let of_jobs = name == "comparison_classes";
        let with_spread = of_jobs || self.sides.iter().any(|side| side.rounds > 1);
        let mut columns = vec!["figure".to_owned(), "unit".to_owned()];
        for side in &self.sides {
            columns.push(side.label.clone());
            if with_spread {
                columns.extend(["min", "max"].map(|part| format!("{} {part}", side.label)));
            }
        }
        for side in &self.sides[1..] {
            let ratio = format!("{}/{}", side.label, self.sides[0].label);
            columns.extend([
                ratio.clone(),
                format!("{ratio} from"),
                format!("{ratio} to"),
                format!("{} is", side.label),
            ]);
        }
        let mut table = Table { columns, ..Table::default() };
        for compared in self.figures.iter().filter(|compared| keep(compared)) {
            table.push(row(compared, with_spread));
        }
        let mut notes = self.notes();
        if of_jobs {
            notes.insert(
                0,
                "Median, least and greatest real time of the jobs of a class, over all rounds."
                    .to_owned(),
            );
        }
        Sheet { name, title: title.to_owned(), notes, table }
    }

    fn notes(&self) -> Vec<String> {
        let pairing = match self.pairing {
            Pairing::ByRound => {
                "Rounds alternated between the sides: ratios are taken in each round, and their median, \
                 least and greatest are given."
            }
            Pairing::Unpaired => {
                "Rounds did not alternate and are not paired: ratios are those of medians, and their \
                 range goes from least / greatest to greatest / least. They include whatever changed on the \
                 machine between the studies."
            }
        };
        vec![
            pairing.to_owned(),
            format!(
                "A difference is claimed only if that range does not include 1, and with at least {ROUNDS_MIN} \
                 rounds. With few rounds a range may exclude 1 by chance."
            ),
        ]
    }

    fn sides_sheet(&self) -> Sheet {
        let mut table = Table::new(&["side", "storage", "rounds", "started", "version"]);
        for side in &self.sides {
            table.push(vec![
                side.label.as_str().into(),
                side.storage.as_str().into(),
                (side.rounds as u64).into(),
                side.started.as_str().into(),
                side.version.as_str().into(),
            ]);
        }
        Sheet { name: "sides", title: "What is compared".to_owned(), notes: Vec::new(), table }
    }
}

fn row(compared: &Compared, with_spread: bool) -> Vec<Cell> {
    let mut row: Vec<Cell> =
        vec![compared.figure.label.as_str().into(), compared.figure.unit.into()];
    for spread in &compared.spreads {
        row.push(spread.map(|spread| spread.median).into());
        if with_spread {
            row.extend([
                Cell::from(spread.map(|spread| spread.min)),
                spread.map(|spread| spread.max).into(),
            ]);
        }
    }
    for difference in &compared.differences {
        row.extend([
            Cell::from(difference.map(|difference| difference.ratio)),
            difference.map(|difference| difference.low).into(),
            difference.map(|difference| difference.high).filter(|high| high.is_finite()).into(),
            difference.map(|difference| difference.outcome.describe()).into(),
        ]);
    }
    row
}

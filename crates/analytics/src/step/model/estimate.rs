//! Estimated coefficients and their tests.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

use crate::linear::Symmetric;
use crate::table::Table;

/// One estimated coefficient of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// `intercept`, the predictor's name, or `name=level` for a level of a class predictor.
    pub term: String,
    /// The estimate.
    pub estimate: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Estimate over standard error; `None` if the standard error is zero.
    pub statistic: Option<f64>,
    /// Probability of a statistic at least as far from zero if the coefficient is zero (two-sided).
    pub p: Option<f64>,
}

/// The distribution that Wald's statistic is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reference {
    /// The standard normal one.
    Normal,
    /// Student's on so many degrees of freedom.
    Student(f64),
}

impl Reference {
    fn two_sided(self, statistic: f64) -> Option<f64> {
        let size = statistic.abs();
        match self {
            Reference::Normal => Normal::new(0.0, 1.0).ok().map(|d| 2.0 * d.sf(size)),
            Reference::Student(df) => StudentsT::new(0.0, 1.0, df).ok().map(|d| 2.0 * d.sf(size)),
        }
    }
}

impl Estimate {
    /// An estimate with Wald's test against zero.
    pub(crate) fn new(term: &str, estimate: f64, variance: f64, reference: Reference) -> Estimate {
        let standard_error = variance.max(0.0).sqrt();
        let statistic = (standard_error > 0.0).then(|| estimate / standard_error);
        let p = statistic.and_then(|statistic| reference.two_sided(statistic));
        Estimate { term: term.to_owned(), estimate, standard_error, statistic, p }
    }

    /// Estimates of all terms from their values and covariances.
    pub(crate) fn all(
        terms: &[String],
        values: &[f64],
        covariances: &Symmetric,
        reference: Reference,
    ) -> Vec<Estimate> {
        let with_value = terms.iter().zip(values).enumerate();
        with_value
            .map(|(i, (term, &value))| Estimate::new(term, value, covariances.at(i, i), reference))
            .collect()
    }

    /// Estimates as a table; `statistic` names the test statistic's column.
    pub(crate) fn table(estimates: &[Estimate], statistic: &str) -> Table {
        let mut table = Table::new(&["term", "estimate", "std_error", statistic, "p"]);
        for e in estimates {
            table.push(vec![
                e.term.as_str().into(),
                e.estimate.into(),
                e.standard_error.into(),
                e.statistic.into(),
                e.p.into(),
            ]);
        }
        table
    }
}

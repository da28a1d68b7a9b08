//! Projection: pensions of cohorts under random returns and mortality (Monte Carlo).
//!
//! A member of a cohort pays a part of a growing salary into an account until the retirement age. Each
//! year's return is lognormal, the same for all cohorts of a path. At retirement the account buys an
//! annuity, whose price follows Gompertz' law of mortality (B. Gompertz, Philosophical Transactions
//! 115, 1825), and the first pension over the last salary is the replacement rate. Whether a member
//! reaches retirement is drawn by the same law.

use std::f64::consts::LN_2;

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::amount::{Count, Scale, Size};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::Table;

/// The oldest age of the mortality table.
const AGE_MAX: u32 = 120;
/// Most paths.
const PATHS_MAX: u64 = 1 << 32;
/// Paths between two calls of progress.
const PROGRESS_EVERY: usize = 4096;

/// Members of one age and salary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cohort {
    /// Age today, in years; below the retirement age.
    pub age: u32,
    /// Salary of this year.
    pub salary: f64,
    /// The account today.
    #[serde(default)]
    pub balance: f64,
    /// The part of the salary that is paid in at the end of each year.
    pub contribution: f64,
}

/// Projects the accounts and replacement rates of `cohorts` over random paths and keeps all of them:
/// uses 8 bytes for each path and year of the youngest cohort, and 16 for each path and cohort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Projection {
    /// The cohorts; nine of ages 25 to 65 if left out.
    pub cohorts: Vec<Cohort>,
    /// Age at which the pension starts.
    pub retirement_age: u32,
    /// Growth of salaries each year.
    pub salary_growth: f64,
    /// Mean of the logarithm of one year's return factor.
    pub log_return_mean: f64,
    /// Its standard deviation; 0 for a sure return.
    pub log_return_deviation: f64,
    /// Interest in the price of the annuity.
    pub annuity_interest: f64,
    /// Yearly force of mortality at age 0, by Gompertz' law.
    pub mortality_level: f64,
    /// Growth of the force with each year of age, as a logarithm.
    pub mortality_growth: f64,
    /// Paths; as many as fit in `memory` if left out.
    pub paths: Option<Count>,
    /// Memory to use if `paths` is left out; that of the context if this is left out too.
    pub memory: Option<Size>,
    /// Where returns and deaths come from; the job's own if left out.
    pub seed: Option<u64>,
}

impl Default for Projection {
    /// Retirement at 67; salaries grow by 2 %, returns have a logarithm of 4 % with a deviation of 12 %;
    /// annuities at 1.5 %; the force of mortality doubles every 7 years from 1 in 30,000.
    fn default() -> Projection {
        let cohort = |age: u32| Cohort {
            age,
            salary: 30_000.0 + 500.0 * f64::from(age - 25),
            balance: 2500.0 * f64::from(age - 25),
            contribution: 0.1,
        };
        Projection {
            cohorts: (25..=65).step_by(5).map(cohort).collect(),
            retirement_age: 67,
            salary_growth: 0.02,
            log_return_mean: 0.04,
            log_return_deviation: 0.12,
            annuity_interest: 0.015,
            mortality_level: 1.0 / 30_000.0,
            mortality_growth: LN_2 / 7.0,
            paths: None,
            memory: None,
            seed: None,
        }
    }
}

/// Percentiles that a projection gives.
pub const PERCENTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// What a projection found for one cohort.
#[derive(Clone, Debug, PartialEq)]
pub struct CohortProjection {
    /// Age today.
    pub age: u32,
    /// The mean account at retirement, over all paths.
    pub balance_mean: f64,
    /// Its standard deviation.
    pub balance_deviation: f64,
    /// The mean replacement rate.
    pub replacement_mean: f64,
    /// Replacement rates at [`PERCENTILES`].
    pub replacement: [f64; 5],
    /// The part of the members who reach retirement, as drawn.
    pub surviving: f64,
    /// The same by Gompertz' law.
    pub surviving_expected: f64,
    /// Price of a pension of 1 a year at retirement.
    pub annuity: f64,
}

/// What a projection found.
#[derive(Clone, Debug, PartialEq)]
pub struct Projected {
    /// The cohorts as given.
    pub cohorts: Vec<CohortProjection>,
    /// Paths drawn.
    pub paths: u64,
    /// Bytes of the numbers kept.
    pub memory_bytes: u64,
}

impl Projection {
    /// Runs the step at `scale`; `progress` hears paths, once for each cohort.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds.
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<Projected> {
        self.check()?;
        let years = self.years();
        let path_bytes = (8 * years + 16 * self.cohorts.len()) as u64;
        let memory = self.memory.map_or(ByteSize::gib(2), |memory| memory.at(scale));
        let paths = self.paths.map_or(memory.0 / path_bytes, |paths| paths.at(scale));
        if !(2..=PATHS_MAX).contains(&paths) {
            return Err(Error::Setting {
                setting: "paths",
                value: paths.to_string(),
                allowed: format!("from 2 to {PATHS_MAX} (a path takes {path_bytes} bytes)"),
            });
        }
        let mut random = StdRng::seed_from_u64(self.seed.unwrap_or(0));
        let factors = self.draw_factors(paths as usize * years, &mut random);
        let mut balances = vec![0.0; paths as usize * self.cohorts.len()];
        let mut rates = balances.clone();
        let mut cohorts = Vec::with_capacity(self.cohorts.len());
        let by_cohort =
            balances.chunks_exact_mut(paths as usize).zip(rates.chunks_exact_mut(paths as usize));
        let mut done = 0;
        for (cohort, (balances, rates)) in self.cohorts.iter().zip(by_cohort) {
            let before = done;
            self.project(cohort, &factors, years, balances, &mut |some| {
                done = before + some;
                progress(done);
            });
            cohorts.push(self.summarise(cohort, balances, rates, &mut random));
        }
        Ok(Projected { cohorts, paths, memory_bytes: paths * path_bytes })
    }

    /// Years of the youngest cohort to retirement.
    fn years(&self) -> usize {
        let youngest = self.cohorts.iter().map(|cohort| cohort.age).min();
        youngest.map_or(0, |age| (self.retirement_age - age) as usize)
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, allowed: &str| {
            Err(Error::Setting { setting, value, allowed: allowed.to_owned() })
        };
        if self.cohorts.is_empty() {
            return refuse("cohorts", "[]".to_owned(), "at least one cohort");
        }
        if !(1..AGE_MAX).contains(&self.retirement_age) {
            return refuse("retirement_age", self.retirement_age.to_string(), "from 1 to 119");
        }
        for cohort in &self.cohorts {
            if cohort.age >= self.retirement_age {
                return refuse("age", cohort.age.to_string(), "below the retirement age");
            }
            let amounts = [cohort.balance, cohort.contribution];
            if !(cohort.salary > 0.0 && cohort.salary.is_finite())
                || amounts.iter().any(|amount| !(amount.is_finite() && *amount >= 0.0))
            {
                return refuse("cohorts", format!("{cohort:?}"), "amounts of 0 or more");
            }
        }
        for (setting, value, least) in [
            ("salary_growth", self.salary_growth, -0.5),
            ("log_return_mean", self.log_return_mean, -1.0),
            ("log_return_deviation", self.log_return_deviation, 0.0),
            ("annuity_interest", self.annuity_interest, -0.5),
            ("mortality_level", self.mortality_level, 0.0),
            ("mortality_growth", self.mortality_growth, 1e-6),
        ] {
            if !(least..=1.0).contains(&value) {
                return refuse(setting, value.to_string(), "a yearly rate, at most 1");
            }
        }
        Ok(())
    }

    fn draw_factors(&self, count: usize, random: &mut StdRng) -> Vec<f64> {
        let (mean, deviation) = (self.log_return_mean, self.log_return_deviation);
        let mut draw = || -> f64 {
            let normal: f64 = StandardNormal.sample(random);
            (mean + deviation * normal).exp()
        };
        (0..count).map(|_| draw()).collect()
    }

    /// Fills `balances` with the accounts at retirement, one for each path.
    fn project(
        &self,
        cohort: &Cohort,
        factors: &[f64],
        years: usize,
        balances: &mut [f64],
        progress: &mut Progress<'_>,
    ) {
        let own_years = (self.retirement_age - cohort.age) as usize;
        let mut contributions = Vec::with_capacity(own_years);
        let mut salary = cohort.salary;
        for _ in 0..own_years {
            contributions.push(cohort.contribution * salary);
            salary *= 1.0 + self.salary_growth;
        }
        for (path, (balance, factors)) in
            balances.iter_mut().zip(factors.chunks_exact(years)).enumerate()
        {
            let mut account = cohort.balance;
            for (factor, contribution) in factors.iter().zip(&contributions) {
                account = account * factor + contribution;
            }
            *balance = account;
            if (path + 1).is_multiple_of(PROGRESS_EVERY) {
                progress(path as u64 + 1);
            }
        }
        progress(balances.len() as u64);
    }

    fn summarise(
        &self,
        cohort: &Cohort,
        balances: &[f64],
        rates: &mut [f64],
        random: &mut StdRng,
    ) -> CohortProjection {
        let n = balances.len() as f64;
        let annuity = self.annuity();
        let years = (self.retirement_age - cohort.age) as i32;
        let last_salary = cohort.salary * (1.0 + self.salary_growth).powi(years - 1);
        for (rate, balance) in rates.iter_mut().zip(balances) {
            *rate = balance / annuity / last_salary;
        }
        let mean = balances.iter().sum::<f64>() / n;
        let squares: f64 = balances.iter().map(|b| (b - mean) * (b - mean)).sum();
        let replacement_mean = rates.iter().sum::<f64>() / n;
        let expected = self.survival(cohort.age, self.retirement_age);
        let survivors = (0..balances.len()).filter(|_| random.random_bool(expected)).count();
        CohortProjection {
            age: cohort.age,
            balance_mean: mean,
            balance_deviation: (squares / (n - 1.0)).sqrt(),
            replacement_mean,
            replacement: PERCENTILES.map(|part| percentile(rates, part)),
            surviving: survivors as f64 / n,
            surviving_expected: expected,
            annuity,
        }
    }

    /// The part of those of age `from` who reach age `to`: the exponential of minus the force of
    /// mortality between them.
    #[must_use]
    pub fn survival(&self, from: u32, to: u32) -> f64 {
        let force = |age: u32| (self.mortality_growth * f64::from(age)).exp();
        let total = self.mortality_level / self.mortality_growth * (force(to) - force(from));
        (-total).exp().clamp(0.0, 1.0)
    }

    /// Price of 1 a year in advance from retirement to death, or age 120.
    #[must_use]
    pub fn annuity(&self) -> f64 {
        (self.retirement_age..=AGE_MAX)
            .map(|age| {
                let years = (age - self.retirement_age) as i32;
                self.survival(self.retirement_age, age) / (1.0 + self.annuity_interest).powi(years)
            })
            .sum()
    }
}

/// The value below which `part` of `values` lies; puts them in another order.
fn percentile(values: &mut [f64], part: f64) -> f64 {
    let rank = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(rank, f64::total_cmp).1
}

impl Action for Projection {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory.into());
        self.seed.get_or_insert(context.seed_for("projection"));
        Ok(())
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let found = self.run(context.scale, progress)?;
        Ok(Outcome::table(found.paths, found.table())
            .with("cohorts", found.cohorts.len() as f64)
            .with("memory_bytes", found.memory_bytes as f64))
    }
}

impl Projected {
    /// The cohorts as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            "age",
            "balance",
            "std_dev",
            "replacement",
            "p5",
            "p25",
            "p50",
            "p75",
            "p95",
            "surviving",
            "annuity",
        ]);
        for c in &self.cohorts {
            let mut row = vec![u64::from(c.age).into(), c.balance_mean.into()];
            row.extend([c.balance_deviation.into(), c.replacement_mean.into()]);
            row.extend(c.replacement.map(crate::Cell::from));
            row.extend([c.surviving.into(), c.annuity.into()]);
            table.push(row);
        }
        table
    }
}

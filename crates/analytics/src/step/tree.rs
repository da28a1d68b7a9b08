//! Tree: a classification or regression tree (CART) on binned predictors.
//!
//! Binary splits by Gini's index or by variance (L. Breiman, J. H. Friedman, R. A. Olshen, C. J. Stone,
//! "Classification and Regression Trees", 1984), grown level by level from histograms: each level is
//! one pass over the rows, or several if its histograms do not fit in memory. Thresholds lie between
//! neighbouring values if a predictor has no more values than bins, else between quantiles of a sample.
//! Levels of class predictors are told apart one against the rest. The tree is not pruned.
//!
//! Memory: a page; up to half of `memory` for the rows, which are read again for every level if they do
//! not fit; a quarter each for the sample and the histograms.

mod growth;

use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use self::growth::{Growth, Layout, Stop, cuts};
use super::Progress;
use super::model::ClassPredictor;
use super::model::frame::{Columns, Frame, Needed};
use super::model::groups::MEMORY_DEFAULT;
use super::model::passes::Passes;
use super::output::refuse_input;
use crate::dataset::{Column, Field, PAGE_BYTES_DEFAULT, Reader, RowBuffer, Writer};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The deepest tree.
const DEPTH_MAX: u32 = 30;
/// The most bins of a predictor.
const BINS_MAX: usize = 65_536;
/// Rows of the sample that thresholds are taken from, at most.
const SAMPLE_ROWS_MAX: u64 = 200_000;

/// Rows of the sample per bin, at least.
const SAMPLE_ROWS_PER_BIN: u64 = 4;

/// What a tree predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The likeliest value of a text or number column; splits by Gini's index.
    Classification,
    /// The mean of a number column; splits by variance.
    Regression,
}

/// Grows a tree for `response` on `predictors` and `class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// The data set.
    pub input: PathBuf,
    /// The column to predict.
    pub response: String,
    /// What is predicted.
    pub kind: Kind,
    /// Number columns to split by.
    #[serde(default)]
    pub predictors: Vec<String>,
    /// Columns whose values are levels.
    #[serde(default)]
    pub class: Vec<ClassPredictor>,
    /// Splits from the root to a leaf at most, 1 to 30.
    #[serde(default = "depth_max_default")]
    pub depth_max: u32,
    /// Rows of a leaf at least.
    #[serde(default = "leaf_rows_min_default")]
    pub leaf_rows_min: u64,
    /// What a split must gain at least, as a part of the root's impurity.
    #[serde(default)]
    pub gain_min: f64,
    /// Bins of a predictor at most, from 2.
    #[serde(default = "bins_default")]
    pub bins: usize,
    /// Where to write the rows with a new column `predicted`, and `probability` if classes are
    /// predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Page size of the output.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
    /// Memory for rows, sample and histograms; 2 GiB unless the program says otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// The seed of the sample; the program's for this step if left out, else 0.
    #[serde(default)]
    pub seed: Option<u64>,
}

fn depth_max_default() -> u32 {
    5
}

fn leaf_rows_min_default() -> u64 {
    5
}

fn bins_default() -> usize {
    256
}

/// One node of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeNode {
    /// The node above; `None` for the root.
    pub parent: Option<u64>,
    /// Splits from the root.
    pub depth: u32,
    /// What is asked here: those for whom it holds are in the first node below. `None` in a leaf.
    pub rule: Option<String>,
    /// Rows.
    pub rows: u64,
    /// Gini's index, or the variance.
    pub impurity: f64,
    /// The prediction.
    pub predicted: Cell,
    /// Part of the rows that are of the class predicted.
    pub probability: Option<f64>,
}

/// What was grown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeFit {
    /// The nodes, level by level; the root first.
    pub nodes: Vec<TreeNode>,
    /// Leaves.
    pub leaves: u64,
    /// Part of all gains that each predictor made; together 1 unless there is no split.
    pub importances: Vec<(String, f64)>,
    /// Part of the rows that are predicted wrongly, or the mean squared error.
    pub error: f64,
    /// Rows that the tree is grown from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Passes over all rows, in memory or not.
    pub passes: u64,
}

impl Tree {
    /// Grows a tree of the usual size for `response` on `predictors`.
    #[must_use]
    pub fn new(input: PathBuf, kind: Kind, response: &str, predictors: &[&str]) -> Tree {
        Tree {
            input,
            response: response.to_owned(),
            kind,
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
            class: Vec::new(),
            depth_max: depth_max_default(),
            leaf_rows_min: leaf_rows_min_default(),
            gain_min: 0.0,
            bins: bins_default(),
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
    /// does not suit; [`Error::TooFewRows`]; [`Error::Memory`] if the sample or the histogram of
    /// one node does not fit; those of reading and writing.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<TreeFit> {
        self.check()?;
        let mut needed = vec![match self.kind {
            Kind::Classification => Needed::Level(&self.response),
            Kind::Regression => Needed::Number(&self.response),
        }];
        needed.extend(self.predictors.iter().map(|name| Needed::Number(name)));
        let columns = Columns { predictors: &[], class: &self.class, needed: &needed };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let leaf_rows_min = self.leaf_rows_min;
        if frame.rows < 2 * leaf_rows_min {
            return Err(Error::TooFewRows { rows: frame.rows, needed: 2 * leaf_rows_min });
        }
        let labels = frame.label_cells(0);
        let terms = frame.terms.len();
        let names: Vec<String> = frame.terms[1..].iter().chain(&self.predictors).cloned().collect();
        let layout = Layout {
            features: (1..terms).chain(terms + 1..frame.width()).collect(),
            response: terms,
            classes: labels.len(),
            center: frame.extra_spread[0].mean,
        };
        let memory = self.memory.unwrap_or(MEMORY_DEFAULT).0;
        let mut passes = Passes::new(frame, memory / 2);
        let cuts = self.cuts(&layout, &mut passes, memory / 4, progress)?;
        let mut growth = Growth::new(layout, cuts);
        let node_bytes = growth.histogram() as u64 * 8;
        if node_bytes > memory / 4 {
            return Err(Error::Memory {
                what: "four times the histograms of a node",
                needed: ByteSize(4 * node_bytes),
                memory: ByteSize(memory),
                instead: "take fewer bins, or allow more",
            });
        }
        let stop = Stop {
            depth_max: self.depth_max,
            leaf_rows_min: leaf_rows_min as f64,
            gain_min: self.gain_min,
        };
        let batch = memory / 4 / node_bytes;
        growth.grow(&mut passes, &stop, batch as usize, progress)?;
        let fit = report(&growth, &names, &labels, &passes);
        if let Some(output) = &self.output {
            self.write(output, &growth, &fit, &mut passes.frame, progress)?;
        }
        Ok(fit)
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, allowed: String| {
            Err(Error::Setting { setting, value, allowed })
        };
        if self.predictors.is_empty() && self.class.is_empty() {
            return refuse("predictors", "[]".to_owned(), "at least one column".to_owned());
        }
        if !(1..=DEPTH_MAX).contains(&self.depth_max) {
            return refuse("depth_max", self.depth_max.to_string(), format!("1 to {DEPTH_MAX}"));
        }
        if !(2..=BINS_MAX).contains(&self.bins) {
            return refuse("bins", self.bins.to_string(), format!("2 to {BINS_MAX}"));
        }
        if !(1..=u64::from(u32::MAX)).contains(&self.leaf_rows_min) {
            let value = self.leaf_rows_min.to_string();
            return refuse("leaf_rows_min", value, "at least 1".to_owned());
        }
        if !(0.0..1.0).contains(&self.gain_min) {
            return refuse("gain_min", self.gain_min.to_string(), "from 0 to below 1".to_owned());
        }
        self.output.as_ref().map_or(Ok(()), |output| refuse_input(output, &[&self.input]))
    }

    /// Thresholds of every feature from a sample of the rows (J. S. Vitter, "Random sampling with a
    /// reservoir", ACM Transactions on Mathematical Software 11, 1985, algorithm R).
    fn cuts(
        &self,
        layout: &Layout,
        passes: &mut Passes,
        memory_bytes: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Vec<f64>>> {
        let features = layout.features.len();
        // A feature is sorted in two copies of its own.
        let row_bytes = 8 * (features as u64 + 2);
        let room = memory_bytes / row_bytes;
        let least = passes.frame.rows.min(SAMPLE_ROWS_PER_BIN * self.bins as u64);
        if room < least.min(SAMPLE_ROWS_MAX) {
            return Err(Error::Memory {
                what: "four times the rows of the sample",
                needed: ByteSize(4 * least * row_bytes),
                memory: ByteSize(memory_bytes * 4),
                instead: "take fewer bins, or allow more",
            });
        }
        let rows = passes.frame.rows.min(SAMPLE_ROWS_MAX).min(room).max(1) as usize;
        let mut sample = vec![0.0; rows * features];
        let mut random = StdRng::seed_from_u64(self.seed.unwrap_or(0));
        let mut seen = 0;
        passes.for_each(progress, |values| {
            let place = if seen < rows { seen } else { random.random_range(0..=seen) };
            seen += 1;
            if place < rows {
                let to = &mut sample[place * features..(place + 1) * features];
                to.iter_mut().zip(&layout.features).for_each(|(to, &at)| *to = values[at]);
            }
        })?;
        let mut column = vec![0.0; rows];
        let cuts_of = |feature: usize| {
            let values = sample[feature..].iter().step_by(features);
            column.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
            cuts(&mut column, self.bins)
        };
        Ok((0..features).map(cuts_of).collect())
    }

    fn write(
        &self,
        output: &Path,
        growth: &Growth,
        fit: &TreeFit,
        frame: &mut Frame,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut reader = Reader::open(&self.input)?;
        let position = reader.schema().columns().len();
        let mut predicted = Column::number("predicted");
        if let Some(response) = reader.schema().position(&self.response)
            && self.kind == Kind::Classification
        {
            predicted.kind = reader.schema().columns()[response].kind;
        }
        let mut schema = reader.schema().with(predicted)?;
        if self.kind == Kind::Classification {
            schema = schema.with(Column::number("probability"))?;
        }
        let mut row = RowBuffer::new(&schema);
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        let mut writer = Writer::create(output, schema.clone(), page_bytes.0)?;
        let mut values = vec![0.0; frame.width()];
        while let Some(rows) = reader.next_rows()? {
            for from in rows.iter() {
                row.clear();
                row.bytes_mut()[..from.len()].copy_from_slice(from);
                if frame.read(from, &mut values) {
                    let node = &fit.nodes[growth.leaf(&values)];
                    match (schema.field(position), &node.predicted) {
                        (Field::Number(field), Cell::Number(value)) => {
                            field.set(row.bytes_mut(), *value);
                        }
                        (Field::Text(field), Cell::Text(text)) => {
                            // It fits: it is a value of a column of this width.
                            let _ = field.set(row.bytes_mut(), text.as_bytes());
                        }
                        (Field::Number(_) | Field::Text(_), _) => {}
                    }
                    if let Some(probability) = node.probability
                        && let Field::Number(field) = schema.field(position + 1)
                    {
                        field.set(row.bytes_mut(), probability);
                    }
                }
                writer.push(row.bytes())?;
            }
            progress(writer.rows());
        }
        writer.finish().map(|_| ())
    }
}

fn report(growth: &Growth, names: &[String], labels: &[Cell], passes: &Passes) -> TreeFit {
    let layout = &growth.layout;
    let mut gains = vec![0.0; names.len()];
    let (mut leaves, mut wrong) = (0, 0.0);
    let mut nodes = Vec::with_capacity(growth.nodes.len());
    for node in &growth.nodes {
        let rows = layout.rows(&node.sums);
        let impurity = layout.impurity(&node.sums);
        let mut likeliest = 0;
        for class in 1..layout.classes {
            if node.sums[class] > node.sums[likeliest] {
                likeliest = class;
            }
        }
        let (predicted, probability) = if layout.classes > 0 {
            (labels[likeliest].clone(), Some(node.sums[likeliest] / rows))
        } else {
            ((layout.center + node.sums[1] / rows).into(), None)
        };
        match &node.split {
            Some(split) => gains[split.feature] += split.gain,
            None => {
                leaves += 1;
                wrong += if layout.classes > 0 { rows - node.sums[likeliest] } else { impurity };
            }
        }
        nodes.push(TreeNode {
            parent: node.parent.map(|parent| parent as u64),
            depth: node.depth,
            rule: node
                .split
                .map(|split| format!("{} <= {}", names[split.feature], split.threshold)),
            rows: rows as u64,
            impurity: impurity / rows,
            predicted,
            probability,
        });
    }
    let total: f64 = gains.iter().sum();
    let parts = gains.iter().map(|gain| if total > 0.0 { gain / total } else { 0.0 });
    TreeFit {
        importances: names.iter().cloned().zip(parts).collect(),
        nodes,
        leaves,
        error: wrong / passes.frame.rows as f64,
        n: passes.frame.rows,
        missing: passes.frame.missing,
        passes: passes.count,
    }
}

impl Action for Tree {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory);
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.seed.get_or_insert(context.seed_for("tree"));
        if let Some(output) = &mut self.output {
            context.resolve(output)?;
        }
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("leaves", fit.leaves as f64)
            .with("error", fit.error)
            .with("passes", fit.passes as f64))
    }
}

impl TreeFit {
    /// The nodes as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            "node",
            "parent",
            "depth",
            "rule",
            "rows",
            "impurity",
            "predicted",
            "probability",
        ]);
        for (number, node) in self.nodes.iter().enumerate() {
            table.push(vec![
                (number as u64).into(),
                node.parent.into(),
                u64::from(node.depth).into(),
                node.rule.clone().into(),
                node.rows.into(),
                node.impurity.into(),
                node.predicted.clone(),
                node.probability.into(),
            ]);
        }
        table
    }
}

//! The byte code: how it is generated and run.
//!
//! All numbers are little endian. A tree is its look-up, then its root; a condition is followed by the
//! branch taken if it holds.
//!
//! | instruction | bytes | operands | what it does |
//! |---|---|---|---|
//! | `LOOKUP` | 7 | column u16, salt u32 | adds the weight in the slot of the column's value |
//! | `BELOW` | 11 | column u16, threshold f32, skip u32 | goes on if the value is below, else skips |
//! | `LEAF` | 9 | weight f32, skip u32 | adds the weight and skips the rest of the tree |
//! | `END` | 1 | | ends the program |

use rand::Rng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, StandardNormal};

const LOOKUP: u8 = 1;
const BELOW: u8 = 2;
const LEAF: u8 = 3;
const END: u8 = 4;

const LOOKUP_BYTES: u64 = 7;
const BELOW_BYTES: u64 = 11;
const LEAF_BYTES: u64 = 9;

/// A tree before it is code.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// The column that is looked up.
    pub column: u16,
    /// What tells the slots of this tree from those of others.
    pub salt: u32,
    /// Its conditions, root first, each level after the one above it, from left (holds) to right.
    pub conditions: Vec<Condition>,
    /// Weights of the leaves from left to right.
    pub leaves: Vec<f32>,
}

/// One condition: the column's value is below the threshold. A missing value is not below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// The column.
    pub column: u16,
    /// The threshold.
    pub threshold: f32,
}

/// A scoring program.
#[derive(Clone, Debug)]
pub struct Code {
    code: Vec<u8>,
    weights: Vec<f32>,
    trees: u64,
}

/// The slot of `value` among `slots`, a power of two (the finaliser of SplitMix64, G. L. Steele, D. Lea
/// and C. H. Flood, OOPSLA 2014, over the bits of the value as a single and the salt).
#[must_use]
pub fn slot(value: f64, salt: u32, slots: usize) -> usize {
    // Halves, so that neighbours share a slot, as the categories of a look-up do.
    let key = if value.is_nan() { u32::MAX } else { ((value * 2.0).floor() as f32).to_bits() };
    let mut hash = (u64::from(salt) << 32) | u64::from(key);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) as usize & (slots - 1)
}

impl Tree {
    /// Draws a tree of `depth` on `columns` columns.
    #[must_use]
    pub fn draw(depth: u32, columns: u16, random: &mut StdRng) -> Tree {
        let leaves = 1_usize << depth;
        let condition = |random: &mut StdRng| {
            let threshold: f32 = StandardNormal.sample(random);
            Condition { column: random.random_range(0..columns), threshold }
        };
        Tree {
            column: random.random_range(0..columns),
            salt: random.random(),
            conditions: (1..leaves).map(|_| condition(random)).collect(),
            leaves: (0..leaves).map(|_| random.random_range(-1.0..1.0)).collect(),
        }
    }
}

impl Code {
    /// Bytes of one tree of `depth`.
    #[must_use]
    pub fn tree_bytes(depth: u32) -> u64 {
        let leaves = 1_u64 << depth;
        LOOKUP_BYTES + (leaves - 1) * BELOW_BYTES + leaves * LEAF_BYTES
    }

    /// Generates trees of `depth` on `columns` columns until `code_bytes` are full (at least one), and
    /// weights for look-ups: a power of two of them, in at most `weights_bytes`.
    #[must_use]
    pub fn generate(
        code_bytes: u64,
        weights_bytes: u64,
        depth: u32,
        columns: u16,
        random: &mut StdRng,
    ) -> Code {
        let slots = 1_usize << (weights_bytes / 4).max(1).ilog2();
        let trees = (code_bytes.saturating_sub(1) / Code::tree_bytes(depth)).max(1);
        let mut code = Code {
            weights: (0..slots).map(|_| random.random_range(-1.0..1.0)).collect(),
            code: Vec::with_capacity((trees * Code::tree_bytes(depth) + 1) as usize),
            trees,
        };
        for _ in 0..trees {
            code.compile(&Tree::draw(depth, columns, random), depth);
        }
        code.code.push(END);
        code
    }

    fn compile(&mut self, tree: &Tree, depth: u32) {
        self.code.push(LOOKUP);
        self.code.extend(tree.column.to_le_bytes());
        self.code.extend(tree.salt.to_le_bytes());
        let end = self.code.len() as u64 + Code::tree_bytes(depth) - LOOKUP_BYTES;
        self.compile_below(tree, 0, depth, end);
    }

    /// Writes the branch at `node` (counted from 0, level by level), `depth` levels deep.
    fn compile_below(&mut self, tree: &Tree, node: usize, depth: u32, end: u64) {
        let Some(condition) = tree.conditions.get(node) else {
            self.code.push(LEAF);
            self.code.extend(tree.leaves[node - tree.conditions.len()].to_le_bytes());
            let next = self.code.len() as u64 + 4;
            self.code.extend(((end - next) as u32).to_le_bytes());
            return;
        };
        self.code.push(BELOW);
        self.code.extend(condition.column.to_le_bytes());
        self.code.extend(condition.threshold.to_le_bytes());
        // The branch that is skipped over: a tree of one level less, without a look-up.
        let skip = Code::tree_bytes(depth - 1) - LOOKUP_BYTES;
        self.code.extend((skip as u32).to_le_bytes());
        self.compile_below(tree, 2 * node + 1, depth - 1, end);
        self.compile_below(tree, 2 * node + 2, depth - 1, end);
    }

    /// Bytes of code.
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        self.code.len() as u64
    }

    /// Bytes of the weights of look-ups.
    #[must_use]
    pub fn weights_bytes(&self) -> u64 {
        4 * self.weights.len() as u64
    }

    /// The weights of look-ups.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Trees in the program.
    #[must_use]
    pub fn trees(&self) -> u64 {
        self.trees
    }

    /// Runs the program over one row; returns the score and the number of instructions.
    ///
    /// # Panics
    /// If `row` has fewer columns than the program was generated for.
    #[must_use]
    pub fn score(&self, row: &[f64]) -> (f64, u64) {
        let (mut at, mut score, mut instructions) = (0, 0.0, 0);
        loop {
            instructions += 1;
            match self.code[at] {
                LOOKUP => {
                    let [a, b, c, d, e, f] = self.operands(at);
                    let value = row[usize::from(u16::from_le_bytes([a, b]))];
                    let salt = u32::from_le_bytes([c, d, e, f]);
                    score += f64::from(self.weights[slot(value, salt, self.weights.len())]);
                    at += LOOKUP_BYTES as usize;
                }
                BELOW => {
                    let [a, b, c, d, e, f, g, h, i, j] = self.operands(at);
                    let value = row[usize::from(u16::from_le_bytes([a, b]))];
                    let below = value < f64::from(f32::from_le_bytes([c, d, e, f]));
                    let skip = if below { 0 } else { u32::from_le_bytes([g, h, i, j]) as usize };
                    at += BELOW_BYTES as usize + skip;
                }
                LEAF => {
                    let [a, b, c, d, e, f, g, h] = self.operands(at);
                    score += f64::from(f32::from_le_bytes([a, b, c, d]));
                    at += LEAF_BYTES as usize + u32::from_le_bytes([e, f, g, h]) as usize;
                }
                END => return (score, instructions),
                other => unreachable!("byte {at} of the code is {other}"),
            }
        }
    }

    #[inline]
    fn operands<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut operands = [0; N];
        operands.copy_from_slice(&self.code[at + 1..at + 1 + N]);
        operands
    }
}

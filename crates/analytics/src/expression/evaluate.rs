//! Evaluation, operation by operation over columns of numbers.

use std::cmp::Ordering;

use super::is_true;
use crate::dataset::{NumberField, Rows, TextField};

/// The most rows that are evaluated at a time: a few columns of so many numbers stay in the cache.
pub const CHUNK_ROWS: usize = 512;

/// One operation on the columns at the top of the stack.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// Puts the numbers of a column on top.
    Column(NumberField),
    /// Puts the given column of this position on top.
    Given(usize),
    /// Puts a number on top.
    Constant(f64),
    /// Puts the numbers of the rows on top.
    Row,
    /// Puts on top whether a text is missing.
    TextMissing(TextField),
    /// Puts on top how a column compares with a text.
    TextCompare(TextField, Comparison, Vec<u8>),
    /// Puts on top how two columns compare.
    TextColumns(TextField, Comparison, TextField),
    /// Puts on top whether a column is one of these texts.
    TextIn(TextField, Vec<Vec<u8>>),
    /// Replaces the top.
    Unary(Unary),
    /// Replaces the top by whether it is one of these numbers.
    In(Vec<f64>),
    /// Replaces the two on top.
    Binary(Binary),
    /// Replaces the three on top: condition, then, otherwise.
    If,
}

/// Operations on one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Negate,
    Not,
    Missing,
    Abs,
    Ceil,
    Cos,
    Exp,
    Floor,
    Ln,
    Log10,
    Round,
    Sign,
    Sin,
    Sqrt,
}

/// Operations on two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Rest,
    Power,
    Min,
    Max,
    RoundTo,
    Coalesce,
    And,
    Or,
    Compare(Comparison),
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// The comparison with its sides changed over.
    pub fn turned(self) -> Comparison {
        match self {
            Comparison::Equal | Comparison::NotEqual => self,
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
        }
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// `value` if `defined`, else missing.
fn defined(defined: bool, value: f64) -> f64 {
    if defined { value } else { f64::NAN }
}

pub(super) fn evaluate<'a>(
    ops: &[Op],
    stack: &'a mut [Vec<f64>],
    rows: &Rows<'_>,
    first_row: u64,
    given: &[Vec<f64>],
) -> &'a [f64] {
    let count = rows.count();
    assert!(count <= CHUNK_ROWS, "more rows than fit");
    let mut depth = 0;
    for op in ops {
        depth = match op {
            Op::Unary(unary) => {
                apply_unary(*unary, &mut stack[depth - 1][..count]);
                depth
            }
            Op::In(values) => {
                let among = |x: f64| defined(!x.is_nan(), truth(values.contains(&x)));
                stack[depth - 1][..count].iter_mut().for_each(|x| *x = among(*x));
                depth
            }
            Op::Binary(binary) => {
                let (below, top) = stack.split_at_mut(depth - 1);
                apply_binary(*binary, &mut below[depth - 2][..count], &top[0][..count]);
                depth - 1
            }
            Op::If => {
                let (conditions, values) = stack.split_at_mut(depth - 2);
                let branches = values[0].iter().zip(&values[1]);
                for (x, (then, otherwise)) in
                    conditions[depth - 3][..count].iter_mut().zip(branches)
                {
                    let chosen = if *x != 0.0 { *then } else { *otherwise };
                    *x = defined(!x.is_nan(), chosen);
                }
                depth - 2
            }
            Op::Row => {
                let numbers = stack[depth][..count].iter_mut().zip(first_row + 1..);
                numbers.for_each(|(x, number)| *x = number as f64);
                depth + 1
            }
            _ => {
                load(op, &mut stack[depth][..count], rows, given);
                depth + 1
            }
        };
    }
    &stack[0][..count]
}

/// Puts a column of `rows` or a constant into `to`.
fn load(op: &Op, to: &mut [f64], rows: &Rows<'_>, given: &[Vec<f64>]) {
    let pairs = to.iter_mut().zip(rows.iter());
    match op {
        Op::Column(field) => pairs.for_each(|(x, row)| *x = field.get(row)),
        Op::Given(position) => to.copy_from_slice(&given[*position][..to.len()]),
        Op::Constant(number) => to.fill(*number),
        Op::TextMissing(field) => pairs.for_each(|(x, row)| *x = truth(field.get(row).is_empty())),
        Op::TextCompare(field, comparison, text) => pairs.for_each(|(x, row)| {
            let value = field.get(row);
            *x = defined(!value.is_empty(), truth(comparison.holds(value.cmp(text))));
        }),
        Op::TextColumns(a, comparison, b) => pairs.for_each(|(x, row)| {
            let (a, b) = (a.get(row), b.get(row));
            *x = defined(!a.is_empty() && !b.is_empty(), truth(comparison.holds(a.cmp(b))));
        }),
        Op::TextIn(field, texts) => pairs.for_each(|(x, row)| {
            let value = field.get(row);
            *x = defined(!value.is_empty(), truth(texts.iter().any(|text| text == value)));
        }),
        Op::Row | Op::Unary(_) | Op::In(_) | Op::Binary(_) | Op::If => {
            unreachable!("these take columns from the stack or count rows")
        }
    }
}

fn apply_unary(unary: Unary, values: &mut [f64]) {
    fn each(values: &mut [f64], f: impl Fn(f64) -> f64) {
        values.iter_mut().for_each(|x| *x = f(*x));
    }
    match unary {
        Unary::Negate => each(values, |x| -x),
        Unary::Not => each(values, |x| defined(!x.is_nan(), truth(x == 0.0))),
        Unary::Missing => each(values, |x| truth(x.is_nan())),
        Unary::Abs => each(values, f64::abs),
        Unary::Ceil => each(values, f64::ceil),
        Unary::Cos => each(values, f64::cos),
        Unary::Exp => each(values, f64::exp),
        Unary::Floor => each(values, f64::floor),
        Unary::Ln => each(values, |x| defined(x > 0.0, x.ln())),
        Unary::Log10 => each(values, |x| defined(x > 0.0, x.log10())),
        Unary::Round => each(values, f64::round),
        Unary::Sign => each(values, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        Unary::Sin => each(values, f64::sin),
        Unary::Sqrt => each(values, f64::sqrt),
    }
}

fn apply_binary(binary: Binary, to: &mut [f64], other: &[f64]) {
    fn each(to: &mut [f64], other: &[f64], f: impl Fn(f64, f64) -> f64) {
        to.iter_mut().zip(other).for_each(|(a, &b)| *a = f(*a, b));
    }
    let known = |a: f64, b: f64, holds: bool| defined(!a.is_nan() && !b.is_nan(), truth(holds));
    match binary {
        Binary::Add => each(to, other, |a, b| a + b),
        Binary::Subtract => each(to, other, |a, b| a - b),
        Binary::Multiply => each(to, other, |a, b| a * b),
        Binary::Divide => each(to, other, |a, b| defined(b != 0.0, a / b)),
        Binary::Rest => each(to, other, |a, b| a % b),
        Binary::Power => each(to, other, |a, b| defined(!a.is_nan() && !b.is_nan(), a.powf(b))),
        // NaN in, NaN out, unlike f64::min.
        Binary::Min => each(to, other, |a, b| if a < b || a.is_nan() { a } else { b }),
        Binary::Max => each(to, other, |a, b| if a > b || a.is_nan() { a } else { b }),
        Binary::RoundTo => each(to, other, |a, b| defined(b != 0.0, (a / b).round() * b)),
        Binary::Coalesce => each(to, other, |a, b| if a.is_nan() { b } else { a }),
        Binary::And => each(to, other, |a, b| {
            let is_false = a == 0.0 || b == 0.0;
            if is_false { 0.0 } else { known(a, b, true) }
        }),
        Binary::Or => {
            each(to, other, |a, b| {
                let any = is_true(a) || is_true(b);
                if any { 1.0 } else { known(a, b, false) }
            });
        }
        Binary::Compare(comparison) => match comparison {
            Comparison::Equal => each(to, other, |a, b| known(a, b, a == b)),
            Comparison::NotEqual => each(to, other, |a, b| known(a, b, a != b)),
            Comparison::Less => each(to, other, |a, b| known(a, b, a < b)),
            Comparison::LessOrEqual => each(to, other, |a, b| known(a, b, a <= b)),
            Comparison::Greater => each(to, other, |a, b| known(a, b, a > b)),
            Comparison::GreaterOrEqual => each(to, other, |a, b| known(a, b, a >= b)),
        },
    }
}

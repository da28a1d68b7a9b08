//! How the values of a column are made.

use rand::Rng as _;
use rand::distr::{Distribution, Uniform};
use rand_distr::weighted::WeightedAliasIndex;
use rand_distr::{Exp1, Gamma, LogNormal, Poisson, StandardNormal, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::response::Response;
use crate::amount::{Count, Scale, ScaledCount};
use crate::dataset::{parse_date, parse_datetime};
use crate::error::{Error, Result};

/// A number, a date (`2013-01-01`) or time (`2013-01-01T10:00:00Z`) as a text, or a number that grows with
/// the scale (`{ full = 1000 }`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bound {
    /// A number; days or seconds since 1970-01-01 of a date or time.
    Number(f64),
    /// A date or time.
    Text(String),
    /// A number that grows with the scale, so that keys of one data set go on matching those of another.
    Scaled(ScaledCount),
}

impl From<f64> for Bound {
    fn from(number: f64) -> Bound {
        Bound::Number(number)
    }
}

impl Bound {
    fn get(&self, scale: Scale) -> Result<f64> {
        match self {
            Bound::Number(number) => Ok(*number),
            Bound::Scaled(count) => Ok(Count::Scaled(*count).at(scale) as f64),
            Bound::Text(text) => parse_date(text.as_bytes())
                .or_else(|| parse_datetime(text.as_bytes()))
                .ok_or_else(|| Error::Setting {
                    setting: "value",
                    value: format!("\"{text}\""),
                    allowed: "a number, a date (2013-01-01) or a time (2013-01-01T10:00:00Z)"
                        .to_owned(),
                }),
        }
    }
}

/// One of several given values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Label {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// How the values of a column are made. Written as `{ normal = { mean = 10, sd = 2 } }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Value {
    /// From `min` to below `max`, all alike.
    Uniform {
        /// The least.
        min: Bound,
        /// Above all.
        max: Bound,
    },
    /// Normal.
    Normal {
        /// Mean.
        #[serde(default)]
        mean: f64,
        /// Standard deviation, not negative.
        #[serde(default = "one")]
        sd: f64,
    },
    /// Its logarithm is normal.
    Lognormal {
        /// Mean of the logarithm.
        #[serde(default)]
        mean: f64,
        /// Standard deviation of the logarithm, not negative.
        #[serde(default = "one")]
        sd: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean, above 0.
        mean: f64,
    },
    /// Gamma.
    Gamma {
        /// Shape, above 0.
        shape: f64,
        /// Mean divided by the shape, above 0.
        scale: f64,
    },
    /// Poisson.
    Poisson {
        /// Mean, above 0.
        mean: f64,
    },
    /// Whole numbers from `min` to `max`, both included, all alike.
    Integer {
        /// The least.
        min: Bound,
        /// The largest.
        max: Bound,
    },
    /// Whole numbers from 1 to `keys`, number `k` as often as `k ^ -exponent` tells: few keys with
    /// many rows.
    Zipf {
        /// The largest, at least 1.
        keys: Count,
        /// 0 for all alike; 1 is usual.
        #[serde(default = "one")]
        exponent: f64,
    },
    /// `start + step * i`, where `i` grows by 1 every `each` rows and starts again after `cycle`
    /// values.
    Sequence {
        /// The first.
        #[serde(default = "first")]
        start: Bound,
        /// From one to the next.
        #[serde(default = "one")]
        step: f64,
        /// Rows with the same value, at least 1.
        #[serde(default = "once")]
        each: u64,
        /// Values before it starts again; never if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cycle: Option<u64>,
    },
    /// The values one after another, again and again.
    Cycle {
        /// Numbers, or texts in a text column.
        values: Vec<Label>,
    },
    /// Any of the values.
    Categories {
        /// Numbers, or texts in a text column.
        values: Vec<Label>,
        /// How often each; all alike if left out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        weights: Vec<f64>,
    },
    /// Texts of small letters, all alike, to the column's width.
    Letters,
    /// Follows from other columns.
    Response(Response),
}

fn one() -> f64 {
    1.0
}

fn once() -> u64 {
    1
}

fn first() -> Bound {
    Bound::Number(1.0)
}

/// A distribution that is ready to be drawn from.
pub(super) enum Sampler {
    Uniform { min: f64, width: f64 },
    Normal { mean: f64, sd: f64 },
    Exponential { mean: f64 },
    Lognormal(LogNormal<f64>),
    Gamma(Gamma<f64>),
    Poisson(Poisson<f64>),
    Integer(Uniform<i64>),
    Zipf(Zipf<f64>),
    Sequence { start: f64, step: f64, each: u64, cycle: u64 },
    Weighted(WeightedAliasIndex<f64>),
}

/// The largest whole number up to which all whole numbers are numbers of a data set.
const WHOLE_MAX: f64 = (1_u64 << 53) as f64;

impl Sampler {
    /// Checks the settings of the column `name`. `None` for values that are no draws of their own.
    pub fn new(name: &str, value: &Value, scale: Scale) -> Result<Option<Sampler>> {
        let refuse = |allowed: &str| Error::Setting {
            setting: "value",
            value: format!("{value:?} (column \"{name}\")"),
            allowed: allowed.to_owned(),
        };
        let finite = |number: f64| number.is_finite();
        Ok(Some(match value {
            Value::Uniform { min, max } => {
                let (min, max) = (min.get(scale)?, max.get(scale)?);
                if !(finite(max - min) && min < max) {
                    return Err(refuse("finite, min below max"));
                }
                Sampler::Uniform { min, width: max - min }
            }
            &Value::Normal { mean, sd } if finite(mean) && finite(sd) && sd >= 0.0 => {
                Sampler::Normal { mean, sd }
            }
            &Value::Lognormal { mean, sd } if finite(mean) && finite(sd) && sd >= 0.0 => {
                Sampler::Lognormal(LogNormal::new(mean, sd).map_err(|e| refuse(&e.to_string()))?)
            }
            Value::Normal { .. } | Value::Lognormal { .. } => {
                return Err(refuse("a finite mean and a finite sd of at least 0"));
            }
            &Value::Exponential { mean } if finite(mean) && mean > 0.0 => {
                Sampler::Exponential { mean }
            }
            Value::Exponential { .. } => return Err(refuse("of a finite mean above 0")),
            &Value::Gamma { shape, scale } => {
                if !(finite(shape) && finite(scale)) {
                    return Err(refuse("of a finite shape and scale above 0"));
                }
                Sampler::Gamma(Gamma::new(shape, scale).map_err(|e| refuse(&e.to_string()))?)
            }
            &Value::Poisson { mean } => {
                Sampler::Poisson(Poisson::new(mean).map_err(|e| refuse(&e.to_string()))?)
            }
            Value::Integer { min, max } => {
                let (min, max) = (min.get(scale)?, max.get(scale)?);
                if !(min <= max && min.abs() <= WHOLE_MAX && max.abs() <= WHOLE_MAX) {
                    return Err(refuse("within 2^53 of zero, min no larger than max"));
                }
                let range = Uniform::new_inclusive(min.ceil() as i64, max.floor() as i64);
                Sampler::Integer(range.map_err(|e| refuse(&e.to_string()))?)
            }
            &Value::Zipf { keys, exponent } => {
                let keys = keys.at(scale);
                if keys == 0 || keys as f64 > WHOLE_MAX || !finite(exponent) {
                    return Err(refuse("of 1 to 2^53 keys and a finite exponent"));
                }
                let zipf = Zipf::new(keys as f64, exponent);
                Sampler::Zipf(zipf.map_err(|e| refuse(&e.to_string()))?)
            }
            Value::Sequence { start, step, each, cycle } => {
                if *each == 0 || *cycle == Some(0) || !finite(*step) {
                    return Err(refuse("of a finite step, each and cycle at least 1"));
                }
                let cycle = cycle.unwrap_or(u64::MAX);
                Sampler::Sequence { start: start.get(scale)?, step: *step, each: *each, cycle }
            }
            Value::Cycle { values } if !values.is_empty() => {
                // Draws places in the list; so do categories.
                let cycle = values.len() as u64;
                Sampler::Sequence { start: 0.0, step: 1.0, each: 1, cycle }
            }
            Value::Categories { values, weights } if !values.is_empty() => {
                let weights =
                    if weights.is_empty() { vec![1.0; values.len()] } else { weights.clone() };
                if weights.len() != values.len() || !weights.iter().all(|&weight| finite(weight)) {
                    return Err(refuse("of as many finite weights as values"));
                }
                let index = WeightedAliasIndex::new(weights);
                Sampler::Weighted(index.map_err(|e| refuse(&e.to_string()))?)
            }
            Value::Cycle { .. } | Value::Categories { .. } => {
                return Err(refuse("of at least one value"));
            }
            Value::Letters | Value::Response(_) => return Ok(None),
        }))
    }

    /// Draws the values of the rows from `first_row` on.
    pub fn fill(&self, random: &mut Xoshiro256PlusPlus, first_row: u64, values: &mut [f64]) {
        fn draw(
            distribution: &impl Distribution<f64>,
            random: &mut Xoshiro256PlusPlus,
            values: &mut [f64],
        ) {
            values.iter_mut().for_each(|value| *value = distribution.sample(random));
        }
        match self {
            Sampler::Uniform { min, width } => {
                values.iter_mut().for_each(|value| *value = min + width * random.random::<f64>());
            }
            Sampler::Normal { mean, sd } => {
                draw(&StandardNormal, random, values);
                values.iter_mut().for_each(|value| *value = mean + sd * *value);
            }
            Sampler::Exponential { mean } => {
                draw(&Exp1, random, values);
                values.iter_mut().for_each(|value| *value *= mean);
            }
            Sampler::Lognormal(lognormal) => draw(lognormal, random, values),
            Sampler::Gamma(gamma) => draw(gamma, random, values),
            Sampler::Poisson(poisson) => draw(poisson, random, values),
            Sampler::Zipf(zipf) => draw(zipf, random, values),
            Sampler::Integer(range) => {
                values.iter_mut().for_each(|value| *value = range.sample(random) as f64);
            }
            Sampler::Weighted(index) => {
                values.iter_mut().for_each(|value| *value = index.sample(random) as f64);
            }
            Sampler::Sequence { start, step, each, cycle } => {
                for (value, row) in values.iter_mut().zip(first_row..) {
                    *value = start + step * (row / each % cycle) as f64;
                }
            }
        }
    }
}

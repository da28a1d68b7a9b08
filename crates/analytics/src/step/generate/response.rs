//! Responses: columns that follow from others by a known law, so that a model has something true to
//! find.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use rand::distr::Distribution as _;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Gamma, Poisson, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::error::{Error, Result};

/// What is drawn around the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Normal with the standard deviation `noise`.
    #[default]
    Normal,
    /// Poisson counts.
    Poisson,
    /// 1 with the probability of the mean, else 0.
    Bernoulli,
    /// Gamma with the standard deviation `noise` times the mean.
    Gamma,
}

/// How the linear predictor follows from the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// It is the mean.
    Identity,
    /// It is the mean's logarithm.
    Log,
    /// It is the logarithm of the odds.
    Logit,
    /// It is the normal quantile of the mean.
    Probit,
    /// It is one over the mean.
    Inverse,
}

/// A column that follows from columns before it: `link(mean) = intercept + sum of terms + group
/// effects`, and the value is drawn around the mean. A value whose mean is impossible in the family is
/// missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// What is drawn around the mean.
    #[serde(default)]
    pub family: Family,
    /// Identity for normal, log for Poisson and gamma, logit for Bernoulli, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// The linear predictor where all terms are zero.
    #[serde(default)]
    pub intercept: f64,
    /// Coefficients by column.
    #[serde(default)]
    pub terms: BTreeMap<String, f64>,
    /// Spread of normal and gamma responses, 1 unless given; the other families have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Random effects of groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<GroupEffect>,
}

/// One normal random number for each value of a column, added to the linear predictor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEffect {
    /// The column that tells the group.
    pub by: String,
    /// Standard deviation between groups.
    pub sd: f64,
    /// The column that the effect is multiplied by (a random slope); none for a random intercept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slope: Option<String>,
}

/// A response that knows where its columns are.
pub(super) struct Law {
    family: Family,
    link: Link,
    intercept: f64,
    /// Slot and coefficient.
    terms: Vec<(usize, f64)>,
    noise: f64,
    groups: Vec<Group>,
}

struct Group {
    by: usize,
    sd: f64,
    slope: Option<usize>,
    seed: u64,
}

impl Law {
    /// Checks a response; `slot` finds the values of a column before it, `seed` is that of the column
    /// `name`.
    pub fn new(
        name: &str,
        response: &Response,
        seed: u64,
        mut slot: impl FnMut(&str) -> Result<usize>,
    ) -> Result<Law> {
        let refuse = |allowed: &str| Error::Setting {
            setting: "response",
            value: format!("{response:?} (column \"{name}\")"),
            allowed: allowed.to_owned(),
        };
        match (response.family, response.noise) {
            (Family::Normal, None | Some(0.0..)) | (Family::Poisson | Family::Bernoulli, None) => {}
            (Family::Gamma, None) => {}
            (Family::Gamma, Some(noise)) if noise > 0.0 => {}
            (Family::Normal, Some(_)) => return Err(refuse("of a noise of at least 0")),
            (Family::Gamma, Some(_)) => return Err(refuse("of a noise above 0")),
            (Family::Poisson | Family::Bernoulli, Some(_)) => {
                return Err(refuse("without noise in this family"));
            }
        }
        let numbers = response.terms.values().chain(response.group.iter().map(|group| &group.sd));
        if !numbers.chain([&response.intercept]).chain(&response.noise).all(|n| n.is_finite()) {
            return Err(refuse("of finite numbers"));
        }
        let terms = response
            .terms
            .iter()
            .map(|(column, &coefficient)| slot(column).map(|slot| (slot, coefficient)));
        let terms = terms.collect::<Result<Vec<_>>>()?;
        let mut groups = Vec::new();
        for (number, group) in (1..).zip(&response.group) {
            groups.push(Group {
                by: slot(&group.by)?,
                sd: group.sd,
                slope: group.slope.as_deref().map(&mut slot).transpose()?,
                seed: seed ^ number,
            });
        }
        Ok(Law {
            family: response.family,
            link: response.link.unwrap_or(match response.family {
                Family::Normal => Link::Identity,
                Family::Poisson | Family::Gamma => Link::Log,
                Family::Bernoulli => Link::Logit,
            }),
            intercept: response.intercept,
            terms,
            noise: response.noise.unwrap_or(1.0),
            groups,
        })
    }

    /// Draws responses to the values in `slots`.
    pub fn fill(&self, random: &mut Xoshiro256PlusPlus, slots: &[Vec<f64>], values: &mut [f64]) {
        values.fill(self.intercept);
        for &(slot, coefficient) in &self.terms {
            for (value, x) in values.iter_mut().zip(&slots[slot]) {
                *value += coefficient * x;
            }
        }
        for group in &self.groups {
            for (row, value) in values.iter_mut().enumerate() {
                let slope = group.slope.map_or(1.0, |slot| slots[slot][row]);
                *value += slope * group.effect(slots[group.by][row]);
            }
        }
        for value in values {
            *value = self.draw(random, self.mean(*value));
        }
    }

    fn mean(&self, predictor: f64) -> f64 {
        match self.link {
            Link::Identity => predictor,
            Link::Log => predictor.exp(),
            Link::Logit => 1.0 / (1.0 + (-predictor).exp()),
            Link::Probit => Normal::standard().cdf(predictor),
            Link::Inverse => 1.0 / predictor,
        }
    }

    fn draw(&self, random: &mut Xoshiro256PlusPlus, mean: f64) -> f64 {
        match self.family {
            Family::Normal => {
                let z: f64 = StandardNormal.sample(random);
                mean + self.noise * z
            }
            Family::Poisson => Poisson::new(mean).map_or(f64::NAN, |d| d.sample(random)),
            Family::Bernoulli => {
                let draw: f64 = random.random();
                if (0.0..=1.0).contains(&mean) {
                    f64::from(u8::from(draw < mean))
                } else {
                    f64::NAN
                }
            }
            Family::Gamma => {
                let shape = 1.0 / (self.noise * self.noise);
                Gamma::new(shape, mean / shape).map_or(f64::NAN, |d| d.sample(random))
            }
        }
    }
}

impl Group {
    /// The effect of the group of `value`: the same for the same value wherever it stands, and not
    /// kept, however many groups there are.
    fn effect(&self, value: f64) -> f64 {
        let mut hasher = SipHasher13::new_with_keys(self.seed, 0);
        hasher.write_u64(value.to_bits());
        let mut random = Xoshiro256PlusPlus::seed_from_u64(hasher.finish());
        let z: f64 = StandardNormal.sample(&mut random);
        self.sd * z
    }
}

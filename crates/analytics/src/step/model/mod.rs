//! What the kinds of models share: the numbers that they see of a row, passes over them, groups of
//! rows, Newton's method for generalised linear models, a maximiser for those without a closed form,
//! and tables of estimates.
//!
//! Rows with a missing value in any column of the model are left out and counted. Predictors are
//! centred and scaled inside, which costs no digits and makes tolerances mean the same for all; all
//! results are in the units of the data.

pub(super) mod estimate;
pub(super) mod frame;
pub(super) mod groups;
pub(super) mod integral;
pub(super) mod irls;
pub(super) mod maximise;
pub(super) mod passes;
pub(super) mod quadrature;

pub use estimate::Estimate;
pub use frame::ClassPredictor;
pub use irls::{Family, Link};

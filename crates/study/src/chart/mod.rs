//! Charts: data to inline SVG, without scripts and without a library.
//!
//! Every chart is a pure function from data to markup. Horizontal positions are percentages and vertical
//! ones pixels, so that one chart fills a laptop, a phone and a sheet of paper while its text keeps its
//! size; curves lie in a nested SVG that is stretched, with strokes that are not. Colours are classes
//! (`s1` to `s8`) whose values the page's style sets for light and dark. A chart without data is `None`:
//! the caller says why it is missing. Curves hold at most [`POINTS_MAX`] points and Gantt charts at most
//! [`gantt::JOBS_MAX`] bars, so that size is bounded whatever the length of a run.
//!
//! What a script may add (reading values under the pointer) it takes from the drawing itself: see the
//! `data-` attributes in [`time`].

pub mod bars;
pub mod curve;
pub mod figure;
pub mod gantt;
pub mod histogram;
pub mod scale;
pub mod thin;
pub mod time;
pub mod unit;

pub use figure::{Ink, Key};
pub use unit::Unit;

/// Most points of one curve.
pub const POINTS_MAX: usize = 1000;

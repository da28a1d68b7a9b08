//! Placeholder module documentation; replaced as the crate is written.

//! The probe: streams that count exactly, notice damage, and leave nothing.

mod names;
mod places;
mod stream;

//! The probe: streams that count exactly, notice damage, and leave nothing.

mod probe {
    mod names;
    mod places;
    mod stream;
}

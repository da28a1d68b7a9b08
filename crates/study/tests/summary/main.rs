//! What a summary computes, checked on records made by hand and on a stored one.

mod builder;
mod fixture;
mod synthetic;

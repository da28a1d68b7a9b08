//! The web server of a grid: its REST API, its pages in a real browser, its history, and alerts.

mod alerts;
mod api;
mod browser;
mod buttons;
mod client;
mod failing_disk;
mod faults;
mod fixture;
mod history;
mod pages;
mod schema;

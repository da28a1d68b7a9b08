//! Forebay over HTTP: a REST API for programs, pages for people, the history behind both, and alerts.
//!
//! - [`serve`](mod@serve) puts the server together; [`http`] carries requests and [`app`] is what they share.
//! - [`api`] is the REST API with its description; [`page`] the pages; [`feed`] the changes that both follow.
//! - [`token`] knows who asks, [`door`] is the socket on which commands make tokens and login links.
//! - [`history`] keeps samples of the past; [`alerts`] says what is wrong and notifies people.
//! - [`metrics`] is what the server reports to monitors.
//! - [`watched`] is the seam to the file system and the machine, which the command fills in.
//!
//! The server decides nothing: it asks the controller for the user whose token or session it was shown, and the controller grants or
//! refuses as it does to commands. It runs as root or as the user whose grid it is, who alone may ask for other users. Files
//! of jobs are read with the rights of the user who asks.
//!
//! What survives a crash: tokens, mutes and alerts (files that are replaced as a whole), and samples (rings of checksummed slots).
//! Sessions of browsers do not.

pub mod alerts;
pub mod api;
pub mod app;
pub mod door;
pub mod feed;
pub mod history;
pub mod http;
pub mod metrics;
pub mod page;
pub mod problem;
pub mod serve;
pub mod settings;
pub mod token;
pub mod watched;

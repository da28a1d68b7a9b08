//! How commands talk to the controller.

use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};

use crate::home::GridHome;
use crate::message::{Answer, Ask};
use crate::socket::{self, Reader};

/// A connection to the controller.
pub struct Client {
    stream: UnixStream,
    reader: Reader,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// If no controller answers.
    pub fn connect(home: &GridHome) -> Result<Client> {
        let stream = socket::connect(&home.socket()).with_context(|| {
            let folder = home.folder().display();
            format!("the controller of {folder} does not answer; is the grid up?")
        })?;
        let reader = Reader::new(stream.try_clone()?);
        Ok(Client { stream, reader })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the controller went away, or refused: with its reason.
    pub fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        socket::write(&self.stream, ask)?;
        match self.reader.read()?.context("the controller went away before it answered")? {
            Answer::Refused { reason } => bail!("{reason}"),
            answer => Ok(answer),
        }
    }
}

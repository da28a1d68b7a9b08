//! Where DuckDB and Polars come from.
//!
//! `FOREBAY_PYTHON` names an interpreter that has them. Without it, the `python3` of the path runs them from a directory in
//! the user's cache (`$XDG_CACHE_HOME/forebay` or `~/.cache/forebay`), into which pip installs them when they are first
//! needed.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::make_directory;
use rustix::fs::FlockOperation;

/// The variable that names an interpreter which has the packages.
pub const PYTHON_VARIABLE: &str = "FOREBAY_PYTHON";

/// What pip installs.
const PACKAGES: [&str; 2] = ["duckdb>=1.1,<3", "polars>=1.20,<3"];

/// The directory of the packages in the cache; another number when [`PACKAGES`] change.
const FOLDER: &str = "lakehouse-1";

/// An interpreter that can load the engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    program: PathBuf,
    packages: Option<PathBuf>,
}

fn failed(reason: String) -> Error {
    Error::Program { program: "pip".to_owned(), reason }
}

impl Python {
    /// The interpreter, after the packages were installed if need be; `installing` hears of the directory before that. Several
    /// processes may call this at the same time: one installs, the others wait.
    ///
    /// # Errors
    /// [`Error::Program`] if pip cannot install them, with what it said; [`Error::Io`] if the cache cannot be written.
    pub fn find_or_install(installing: &mut dyn FnMut(&Path)) -> Result<Python> {
        if let Some(program) = std::env::var_os(PYTHON_VARIABLE).filter(|name| !name.is_empty()) {
            return Ok(Python { program: program.into(), packages: None });
        }
        let cache = cache().ok_or_else(|| {
            failed(format!(
                "HOME is not set, so there is no place for DuckDB and Polars; set {PYTHON_VARIABLE} to a Python that has them"
            ))
        })?;
        let python = Python { program: "python3".into(), packages: Some(cache.join(FOLDER)) };
        python.ensure(&cache, installing)?;
        Ok(python)
    }

    /// The interpreter.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A command of the interpreter, which finds the packages.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(packages) = &self.packages {
            command.env("PYTHONPATH", packages);
        }
        command
    }

    fn ensure(&self, cache: &Path, installing: &mut dyn FnMut(&Path)) -> Result<()> {
        let Some(packages) = &self.packages else { return Ok(()) };
        if packages.is_dir() {
            return Ok(());
        }
        make_directory(cache)?;
        let lock = cache.join(format!("{FOLDER}.lock"));
        let locked = File::create(&lock).map_err(Error::io("create", &lock))?;
        rustix::fs::flock(&locked, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("lock", &lock)(io::Error::from(error)))?;
        if packages.is_dir() {
            return Ok(());
        }
        installing(packages);
        // Renamed when it is whole, so that whoever finds the directory finds all of it.
        let unfinished = cache.join(format!("{FOLDER}.new"));
        let cleared = std::fs::remove_dir_all(&unfinished);
        cleared
            .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .map_err(Error::io("remove", &unfinished))?;
        self.install(&unfinished)?;
        std::fs::rename(&unfinished, packages).map_err(Error::io("rename", &unfinished))
    }

    fn install(&self, folder: &Path) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ]);
        command.arg(folder).args(PACKAGES).stdin(Stdio::null());
        let advice = format!(
            "install python3 with pip, or set {PYTHON_VARIABLE} to a Python that has duckdb and polars"
        );
        let output = command.output().map_err(|error| {
            failed(format!("{} cannot be run: {error}; {advice}", self.program.display()))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        Err(failed(format!("DuckDB and Polars cannot be installed: {last}; {advice}")))
    }
}

fn cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(folder.join("forebay"))
}

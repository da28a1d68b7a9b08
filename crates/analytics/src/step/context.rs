//! Where and for whom a program runs.

use std::hash::Hasher as _;
use std::path::{Component, Path, PathBuf};

use forebay_base::{ByteSize, Clock};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use crate::amount::Scale;
use crate::error::{Error, Result};

/// The directories of the three areas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// What stays: inputs and results.
    pub data: PathBuf,
    /// Temporary data sets of this job.
    pub work: PathBuf,
    /// Utility files of this job's sorts and joins.
    pub util: PathBuf,
}

/// Which job of a run this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name, unique in the run.
    pub name: String,
    /// The class of jobs that it belongs to.
    pub class: String,
    /// Its number in the class, from 0.
    pub number: u64,
    /// Jobs in the class.
    pub count: u64,
}

/// Memory and page sizes that steps use unless their own settings say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffers {
    /// Page size of data sets (BUFSIZE).
    pub page_bytes: ByteSize,
    /// Memory of a sort or join (SORTSIZE).
    pub sort_memory: ByteSize,
    /// Memory of everything else (MEMSIZE).
    pub memory: ByteSize,
}

impl Default for Buffers {
    /// Pages of 256 KiB, 256 MiB for a sort, 2 GiB in all: the settings of the studies.
    fn default() -> Buffers {
        Buffers {
            page_bytes: ByteSize::kib(256),
            sort_memory: ByteSize::mib(256),
            memory: ByteSize::gib(2),
        }
    }
}

/// Where and for whom a program runs.
pub struct Context<'a> {
    /// The directories of the areas.
    pub places: Places,
    /// Which job it is.
    pub job: Job,
    /// The seed of the run: the same seed gives the same numbers.
    pub seed: u64,
    /// The scale of the run, for amounts in settings.
    pub scale: Scale,
    /// Memory and page sizes.
    pub buffers: Buffers,
    /// The clock.
    pub clock: &'a dyn Clock,
}

impl Context<'_> {
    /// Replaces the area that `path` starts with by its directory, and `{job}`, `{class}` and `{number}`
    /// by those of the job.
    ///
    /// # Errors
    /// [`Error::Setting`] if the path does not start with an area or leads out of it.
    pub fn resolve(&self, path: &mut PathBuf) -> Result<()> {
        let refuse = |path: &Path| Error::Setting {
            setting: "path",
            value: path.display().to_string(),
            allowed: "a path below data, work or util, such as data/sales".to_owned(),
        };
        let text = path.to_str().ok_or_else(|| refuse(path))?;
        let text = text
            .replace("{job}", &self.job.name)
            .replace("{class}", &self.job.class)
            .replace("{number}", &self.job.number.to_string());
        let given = Path::new(&text);
        let mut components = given.components();
        let area = match components.next() {
            Some(Component::Normal(area)) if area == "data" => &self.places.data,
            Some(Component::Normal(area)) if area == "work" => &self.places.work,
            Some(Component::Normal(area)) if area == "util" => &self.places.util,
            _ => return Err(refuse(path)),
        };
        let rest = components.as_path();
        if !rest.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refuse(path));
        }
        // Not joined with an empty path, which would add a slash.
        *path = if rest.as_os_str().is_empty() { area.clone() } else { area.join(rest) };
        Ok(())
    }

    /// [`Context::resolve`] for several paths.
    ///
    /// # Errors
    /// As [`Context::resolve`].
    pub fn resolve_all<const N: usize>(&self, paths: [&mut PathBuf; N]) -> Result<()> {
        paths.into_iter().try_for_each(|path| self.resolve(path))
    }

    /// A seed for one use in this job: the same for the same run seed, job and `purpose`, on every
    /// machine.
    #[must_use]
    pub fn seed_for(&self, purpose: &str) -> u64 {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(self.seed, self.job.number);
        hasher.write(self.job.class.as_bytes());
        hasher.write_u8(0);
        hasher.write(purpose.as_bytes());
        hasher.finish()
    }

    /// Random numbers from [`Context::seed_for`].
    #[must_use]
    pub fn random(&self, purpose: &str) -> StdRng {
        StdRng::seed_from_u64(self.seed_for(purpose))
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::time::SystemClock;

    use super::*;

    fn context() -> Context<'static> {
        let places = Places { data: "/d".into(), work: "/w/j".into(), util: "/u/j".into() };
        let job = Job { name: "sort-3".into(), class: "sort".into(), number: 2, count: 4 };
        Context {
            places,
            job,
            seed: 1,
            scale: Scale::FULL,
            buffers: Buffers::default(),
            clock: &SystemClock,
        }
    }

    #[test]
    fn paths_lie_in_areas() {
        for (given, expected) in [
            ("data/x", "/d/x"),
            ("work/a/{job}.csv", "/w/j/a/sort-3.csv"),
            ("util", "/u/j"),
            ("data/{class}-{number}", "/d/sort-2"),
        ] {
            let mut path = PathBuf::from(given);
            context().resolve(&mut path).unwrap();
            assert_eq!(path.as_os_str(), expected, "{given}");
        }
        for given in ["/etc/passwd", "x", "", "../data/x", "data/../../x", "."] {
            let mut path = PathBuf::from(given);
            assert!(matches!(context().resolve(&mut path), Err(Error::Setting { .. })), "{given}");
        }
    }

    #[test]
    fn seeds_differ_by_job_and_purpose_and_stay_the_same() {
        let one = context();
        let mut other = context();
        other.job.number = 3;
        assert_eq!(one.seed_for("rows"), context().seed_for("rows"));
        assert_ne!(one.seed_for("rows"), one.seed_for("sizes"));
        assert_ne!(one.seed_for("rows"), other.seed_for("rows"));
    }
}

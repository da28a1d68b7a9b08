//! Sequential: writes one file front to back and reads it back.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use forebay_base::{ByteSize, Clock};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{DropCaches, Transfer, check_bytes, drop_caches, timed};
use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::ScratchDir;

/// Seed of the content.
const SEED: u64 = 0x5e9;

/// Whether the file is made durable before writing counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Writing ends with the last write call.
    #[default]
    None,
    /// The time of an fsync after the last write call is measured and part of the writing.
    Fsync,
}

/// Whether what is read is compared with what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// Only the length is.
    #[default]
    Length,
    /// Every byte is; the time it takes is part of the reading.
    Content,
}

/// Writes a file in calls of one size, reads it back (hot: from whatever caches it), and reads it
/// again after caches were dropped (cold). Uses the memory of two calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sequential {
    /// Bytes of the file.
    pub total_bytes: ByteSize,
    /// Bytes per call, 512 B to 64 MiB.
    pub call_bytes: ByteSize,
    /// Whether the file is synced.
    pub durability: Durability,
    /// Whether content is compared.
    pub verification: Verification,
}

impl Default for Sequential {
    /// 1 GiB in calls of 256 KiB, without sync or verification.
    fn default() -> Sequential {
        Sequential {
            total_bytes: ByteSize::gib(1),
            call_bytes: ByteSize::kib(256),
            durability: Durability::None,
            verification: Verification::Length,
        }
    }
}

/// What a sequential load measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequentialResult {
    /// Writing, from creating the file to closing it.
    pub write: Transfer,
    /// The part of the writing that the fsync took, if one was asked for.
    pub fsync_seconds: Option<f64>,
    /// Reading right after writing.
    pub read_hot: Transfer,
    /// Reading after caches were dropped.
    pub read_cold: Option<Transfer>,
}

impl Sequential {
    /// Runs the load in `target`.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::WrongContent`] if something else is
    /// read than was written; [`Error::Io`].
    pub fn run(
        &self,
        target: &Path,
        clock: &dyn Clock,
        drop: Option<&mut DropCaches<'_>>,
    ) -> Result<SequentialResult> {
        check_bytes("call_bytes", self.call_bytes, 512, 64 << 20)?;
        check_bytes("total_bytes", self.total_bytes, 1, 1 << 60)?;
        let scratch = ScratchDir::create(target, "sequential")?;
        let path = scratch.path().join("file");
        let total = self.total_bytes.0;
        let mut pattern = Pattern::new(self.call_bytes.as_usize(), SEED);
        let (fsync_seconds, write_seconds) =
            timed(clock, || self.write(&path, &mut pattern, clock))?;
        let ((), hot_seconds) = timed(clock, || self.read(&path, &mut pattern))?;
        let read_cold = match drop {
            None => None,
            Some(drop) => {
                drop_caches(drop, target)?;
                let ((), seconds) = timed(clock, || self.read(&path, &mut pattern))?;
                Some(Transfer::new(total, seconds))
            }
        };
        scratch.remove()?;
        Ok(SequentialResult {
            write: Transfer::new(total, write_seconds),
            fsync_seconds,
            read_hot: Transfer::new(total, hot_seconds),
            read_cold,
        })
    }

    /// Offset and length of every call.
    fn calls(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (total, call) = (self.total_bytes.0, self.call_bytes.as_usize());
        (0..total).step_by(call).map(move |offset| (offset, call.min((total - offset) as usize)))
    }

    fn write(&self, path: &Path, pattern: &mut Pattern, clock: &dyn Clock) -> Result<Option<f64>> {
        let mut file = File::create(path).map_err(Error::io("create", path))?;
        pattern.write_file(&mut file, path, self.total_bytes.0, self.call_bytes.as_usize())?;
        match self.durability {
            Durability::None => Ok(None),
            Durability::Fsync => timed(clock, || file.sync_all().map_err(Error::io("sync", path)))
                .map(|((), seconds)| Some(seconds)),
        }
    }

    fn read(&self, path: &Path, pattern: &mut Pattern) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let mut buffer = vec![0; self.call_bytes.as_usize()];
        for (offset, length) in self.calls() {
            let buffer = &mut buffer[..length];
            file.read_exact(buffer).map_err(Error::io("read", path))?;
            match self.verification {
                Verification::Content if pattern.at(offset, length) != buffer => {
                    let reason = format!("other bytes in the {length} from offset {offset}");
                    return Err(Error::WrongContent { path: path.to_owned(), reason });
                }
                Verification::Content | Verification::Length => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    #[test]
    fn the_load_measures_and_leaves_nothing() {
        let target = tempfile::tempdir().unwrap();
        let load = Sequential {
            total_bytes: ByteSize(1_000_001),
            call_bytes: ByteSize::kib(64),
            durability: Durability::Fsync,
            verification: Verification::Content,
        };
        let mut drops = 0;
        let result = load
            .run(
                target.path(),
                &SystemClock,
                Some(&mut || {
                    drops += 1;
                    Ok(())
                }),
            )
            .unwrap();
        assert_eq!(drops, 1);
        assert_eq!(result.write.bytes, 1_000_001);
        assert!(result.write.seconds >= result.fsync_seconds.unwrap());
        assert!(result.read_hot.mb_per_second > 0.0 && result.read_cold.is_some());
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    }

    #[test]
    fn changed_content_is_noticed() {
        let target = tempfile::tempdir().unwrap();
        let load = Sequential {
            total_bytes: ByteSize::kib(256),
            call_bytes: ByteSize::kib(64),
            verification: Verification::Content,
            ..Sequential::default()
        };
        let mut damage = || {
            let scratch = std::fs::read_dir(target.path())?.next().unwrap()?.path();
            let mut content = std::fs::read(scratch.join("file"))?;
            content[150_000] ^= 1;
            std::fs::write(scratch.join("file"), content)
        };
        let result = load.run(target.path(), &SystemClock, Some(&mut damage));
        let text = result.unwrap_err().to_string();
        assert!(text.ends_with("other bytes in the 65536 from offset 131072"), "{text}");
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    }
}

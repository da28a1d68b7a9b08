//! Where the stores of a cluster are, and their limits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use forebay_etcd::{Client, Options, Runtime};
use serde::{Deserialize, Serialize};

use super::stores::SlateStores;
use crate::{Result, StoreError};

/// The stores of a cluster: where they are, and their limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlateConfig {
    /// Where the objects of the databases are.
    pub place: Place,
    /// What the names of all objects begin with. Two clusters in one place have two prefixes.
    pub prefix: String,
    /// Folder on a local disk for blocks that were read or written; none without it. What is in it can be removed while no
    /// daemon runs.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Bytes of the cache on disk, for all filesets together.
    #[serde(default = "default_cache_bytes_max")]
    pub cache_bytes_max: u64,
    /// Bytes of blocks in memory, for all filesets together.
    #[serde(default = "default_memory_bytes_max")]
    pub memory_bytes_max: u64,
    /// A commit or read that was not answered within this time ends; the outcome of a commit is then open.
    #[serde(default = "default_timeout_milliseconds")]
    pub timeout_milliseconds: u64,
    /// Time between two rounds of looking after etcd: its history is compacted to the state of the round before.
    #[serde(default = "default_upkeep_seconds")]
    pub upkeep_seconds: u64,
    /// An upload to etcd that was not completed within this time is removed.
    #[serde(default = "default_upload_age_max_seconds")]
    pub upload_age_max_seconds: u64,
}

fn default_cache_bytes_max() -> u64 {
    4 << 30
}

fn default_memory_bytes_max() -> u64 {
    256 << 20
}

fn default_timeout_milliseconds() -> u64 {
    30_000
}

fn default_upkeep_seconds() -> u64 {
    60
}

fn default_upload_age_max_seconds() -> u64 {
    3600
}

impl SlateConfig {
    /// Everything but the place and the prefix as by default: a cache of 4 GiB on disk (if a folder is named) and of 256 MiB
    /// in memory, calls end after 30 s, etcd is looked after every minute, an upload may take an hour.
    #[must_use]
    pub fn new(place: Place, prefix: impl Into<String>) -> SlateConfig {
        SlateConfig {
            place,
            prefix: prefix.into(),
            cache: None,
            cache_bytes_max: default_cache_bytes_max(),
            memory_bytes_max: default_memory_bytes_max(),
            timeout_milliseconds: default_timeout_milliseconds(),
            upkeep_seconds: default_upkeep_seconds(),
            upload_age_max_seconds: default_upload_age_max_seconds(),
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_milliseconds)
    }
}

/// Where the objects of the databases are.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Place {
    /// In etcd itself.
    Etcd(EtcdPlace),
    /// In an S3-compatible object store.
    S3(S3Place),
    /// In a directory that all nodes mount. It must have link(2) and fsync(2), and show each node what another has linked.
    Directory(PathBuf),
    /// In the memory of this process, for tests. Stores that are opened together share it.
    Memory,
}

/// `etcd`, `s3://BUCKET` or `s3://BUCKET/FOLDER`, `dir:PATH`. Endpoints of etcd and of the object store are filled in by the
/// caller.
impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Place, String> {
        if text == "etcd" {
            return Ok(Place::Etcd(EtcdPlace::default()));
        }
        if let Some(path) = text.strip_prefix("dir:").filter(|path| path.starts_with('/')) {
            return Ok(Place::Directory(path.into()));
        }
        if let Some(rest) = text.strip_prefix("s3://").filter(|rest| !rest.is_empty()) {
            let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
            let folder = folder.trim_matches('/').to_owned();
            return Ok(Place::S3(S3Place {
                bucket: bucket.to_owned(),
                folder,
                ..S3Place::default()
            }));
        }
        Err(format!("{text:?} is not a place for names: use etcd, s3://BUCKET/FOLDER or dir:/PATH"))
    }
}

/// Names in etcd.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdPlace {
    /// Endpoints of the members; not needed where the caller gives a client.
    pub endpoints: Vec<String>,
    /// The quota of its database (`--quota-backend-bytes`) where etcd does not say it itself (before 3.6) and `quota_of` does
    /// not know it; 0 for etcd's default of 2 GiB.
    pub quota_bytes: u64,
    /// Who asks a member for its quota in another way.
    #[serde(skip)]
    pub quota_of: Option<QuotaOf>,
}

/// Says the quota of the member at an endpoint, in bytes. May block.
pub type AskQuota = dyn Fn(&str) -> Option<u64> + Send + Sync;

/// Who says it.
#[derive(Clone)]
pub struct QuotaOf(pub Arc<AskQuota>);

impl fmt::Debug for QuotaOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuotaOf")
    }
}

/// Names in an S3-compatible object store.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Place {
    /// The bucket, which must exist.
    pub bucket: String,
    /// What is put before the prefix.
    pub folder: String,
    /// `http://HOST:PORT` or `https://HOST:PORT` of the service; AWS without it.
    pub endpoint: Option<String>,
    /// Its region; `AWS_REGION` of the environment without it.
    pub region: Option<String>,
    /// Key of access; the environment's (`AWS_ACCESS_KEY_ID`, roles of the machine) without it.
    pub access_key: Option<String>,
    /// Secret of that key.
    pub secret_key: Option<String>,
}

/// Without the secret.
impl fmt::Debug for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Place")
            .field("bucket", &self.bucket)
            .field("folder", &self.folder)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// The stores that `config` describes. They use `etcd` where the place is etcd and a client is there already; otherwise they
/// connect to the endpoints of the configuration.
///
/// # Errors
/// [`StoreError::Io`]: the configuration is not well-formed, or the folder of the cache cannot be made.
pub fn open_stores(
    config: &SlateConfig,
    runtime: &Runtime,
    etcd: Option<&Client>,
) -> Result<Arc<SlateStores>> {
    let etcd = match (&config.place, etcd) {
        (Place::Etcd(_), Some(client)) => Some(client.clone()),
        (Place::Etcd(place), None) => {
            let options = Options::new(place.endpoints.clone());
            let client = Client::connect(runtime, options);
            Some(client.map_err(|error| StoreError::Io(error.to_string()))?)
        }
        (Place::S3(_) | Place::Directory(_) | Place::Memory, _) => None,
    };
    SlateStores::open(config, runtime, etcd.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_in_a_word() {
        assert!(matches!("etcd".parse(), Ok(Place::Etcd(_))));
        assert!(
            matches!("dir:/nfs/names".parse(), Ok(Place::Directory(path)) if path.to_str() == Some("/nfs/names"))
        );
        for (text, folder) in [("s3://b", ""), ("s3://b/", ""), ("s3://b/x/y/", "x/y")] {
            let Ok(Place::S3(place)) = text.parse::<Place>() else { panic!("{text}") };
            assert_eq!((place.bucket.as_str(), place.folder.as_str()), ("b", folder));
        }
        for text in ["", "s3://", "dir:relative", "redb", "etcd:"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}

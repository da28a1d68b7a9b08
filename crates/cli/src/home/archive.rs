//! Archives: disks in an object store, or in a directory elsewhere.
//!
//! They are named by an address: `s3://BUCKET/FOLDER` or `file:///DIRECTORY`. Endpoint, region and keys of S3 are those of the
//! file `s3.toml` of the home folder, otherwise those of the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`,
//! `AWS_ACCESS_KEY_ID`, ...), as the stores of a cluster take them.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::archive::bucket::Bucket;
use forebay_disk::archive::directory::DirectoryBucket;
use forebay_disk::archive::objects::ObjectBucket;
use forebay_disk::directory::Label;
use forebay_etcd::Runtime;
use forebay_store::slate::{Place, S3Place, s3_bucket};

/// Name of the file with what S3 needs.
pub const S3_FILE: &str = "s3.toml";
/// Threads that talk to object stores.
const THREADS: usize = 2;

/// Whether a disk is named by the address of an archive.
pub fn is_archive(location: &str) -> bool {
    location.starts_with("s3://") || location.starts_with("file://")
}

/// As the file system notes it: without what may be written in several ways.
///
/// # Errors
/// If it is not the address of an archive.
pub fn normal(location: &str) -> Result<String> {
    if let Some(path) = location.strip_prefix("file://") {
        ensure!(
            path.starts_with('/'),
            "{location}: write file:// and the full path of a directory, such as file:///mnt/nas/forebay"
        );
        let path = Path::new(path);
        let path = path
            .canonicalize()
            .with_context(|| format!("{location}: name an existing, empty directory"))?;
        return Ok(format!("file://{}", path.display()));
    }
    let Ok(Place::S3(place)) = location.parse::<Place>() else {
        bail!(
            "{location} is not the address of an archive: use s3://BUCKET/FOLDER or file:///DIRECTORY"
        );
    };
    Ok(match place.folder.as_str() {
        "" => format!("s3://{}", place.bucket),
        folder => format!("s3://{}/{folder}", place.bucket),
    })
}

/// The store at an address.
///
/// # Errors
/// If what S3 needs is missing or malformed; the store itself is not asked.
pub fn bucket(root: &Path, location: &str) -> Result<Box<dyn Bucket>> {
    if let Some(path) = location.strip_prefix("file://") {
        return Ok(Box::new(DirectoryBucket::at(&PathBuf::from(path))));
    }
    let Ok(Place::S3(named)) = location.parse::<Place>() else {
        bail!("{location} is not the address of an archive");
    };
    let place = S3Place { bucket: named.bucket, folder: named.folder, ..access(root)? };
    let store = s3_bucket(&place).with_context(|| format!("archive {location}"))?;
    Ok(Box::new(ObjectBucket::new(store, &place.folder, runtime()?)))
}

/// The disk of a label at an address.
///
/// # Errors
/// As [`bucket`].
pub fn open(root: &Path, location: &str, label: Label) -> Result<ArchiveDisk> {
    Ok(ArchiveDisk::open(bucket(root, location)?, label, location))
}

/// What S3 needs, from the file of the home folder, if there is one.
fn access(root: &Path) -> Result<S3Place> {
    let path = root.join(S3_FILE);
    match path.try_exists() {
        Ok(false) => Ok(S3Place::default()),
        _ => Ok(s3_access_in(&path)?.0),
    }
}

/// What S3 needs, from a file that others may not read, and its text.
///
/// # Errors
/// If the file cannot be read, others may read it, or it is malformed.
pub fn s3_access_in(path: &Path) -> Result<(S3Place, String)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mode = std::fs::metadata(path)?.mode();
    ensure!(
        mode & 0o077 == 0,
        "{0} holds a secret, and others may read it: chmod 600 {0}",
        path.display()
    );
    let place = s3_access(&text).with_context(|| path.display().to_string())?;
    Ok((place, text))
}

/// What S3 needs, from the text of such a file.
///
/// # Errors
/// If it is malformed.
pub fn s3_access(text: &str) -> Result<S3Place> {
    let place: S3Place =
        toml::from_str(text).context("the keys are endpoint, region, access_key and secret_key")?;
    ensure!(
        place.bucket.is_empty() && place.folder.is_empty(),
        "bucket and folder are given in the address, s3://BUCKET/FOLDER"
    );
    Ok(place)
}

/// The threads that talk to object stores, started with the first one.
fn runtime() -> Result<Runtime> {
    static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
    let mut known = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*known {
        return Ok(runtime.clone());
    }
    let runtime = Runtime::start(THREADS).context("cannot start threads")?;
    *known = Some(runtime.clone());
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_noted_in_one_form() {
        assert_eq!(normal("s3://b/x/y/").unwrap(), "s3://b/x/y");
        assert_eq!(normal("s3://b/").unwrap(), "s3://b");
        assert_eq!(normal("file:///tmp/").unwrap(), "file:///tmp");
        for bad in ["s3://", "file://tmp", "file:///nowhere/at/all", "gs://b"] {
            assert!(normal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_with_a_secret_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(S3_FILE);
        let text = "endpoint = 'http://127.0.0.1:9'\nregion = 'us-east-1'\naccess_key = 'a'\nsecret_key = 'b'\n";
        std::fs::write(&path, text).unwrap();
        let set =
            |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o644);
        assert!(access(folder.path()).unwrap_err().to_string().contains("chmod 600"));
        set(0o600);
        assert_eq!(access(folder.path()).unwrap().secret_key.as_deref(), Some("b"));
        std::fs::write(&path, "key = 'a'\n").unwrap();
        assert!(access(folder.path()).is_err());
    }
}

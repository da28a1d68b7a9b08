//! The object stores beneath the databases.

use std::sync::Arc;
use std::time::Duration;

use forebay_etcd::Client;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::config::{Place, S3Place, SlateConfig};
use super::etcd_objects::{EtcdObjects, Written};
use crate::{Result, StoreError};

/// The objects of a place, and what of it the engine must know.
pub(super) struct Objects {
    pub store: Arc<dyn ObjectStore>,
    /// Whether an object can be replaced on condition that nobody changed it.
    pub conditional_replace: bool,
    /// The same objects where they are in etcd.
    pub in_etcd: Option<EtcdObjects>,
}

pub(super) fn open(
    config: &SlateConfig,
    etcd: Option<&Client>,
    written: Arc<dyn Written>,
) -> Result<Objects> {
    let bad = |error: object_store::Error| StoreError::Io(error.to_string());
    let (store, conditional_replace): (Arc<dyn ObjectStore>, bool) = match &config.place {
        Place::Etcd(_) => {
            let client =
                etcd.ok_or_else(|| StoreError::Io("no endpoint of etcd was given".to_owned()))?;
            // The prefix is part of its keys.
            let objects = EtcdObjects::new(client.connection(), &config.prefix, written);
            let store = Arc::new(objects.clone());
            return Ok(Objects { store, conditional_replace: true, in_etcd: Some(objects) });
        }
        Place::S3(place) => (Arc::new(s3(place)?), true),
        Place::Directory(path) => {
            // It is not made: where it is missing, what it is on may not be mounted.
            if !path.is_dir() {
                return Err(StoreError::Io(format!("{} is not a directory", path.display())));
            }
            // An object is a staged file that is synced and then linked or renamed into place.
            let files = LocalFileSystem::new_with_prefix(path).map_err(bad)?;
            (Arc::new(files.with_fsync(true).with_automatic_cleanup(true)), false)
        }
        Place::Memory => (Arc::new(InMemory::new()), true),
    };
    let store: Arc<dyn ObjectStore> = match config.prefix.as_str() {
        "" => store,
        prefix => Arc::new(PrefixStore::new(store, prefix)),
    };
    Ok(Objects { store, conditional_replace, in_etcd: None })
}

fn s3(place: &S3Place) -> Result<impl ObjectStore + use<>> {
    let bucket = builder_of(place)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .build()
        .map_err(|error| StoreError::Io(format!("names in s3://{}: {error}", place.bucket)))?;
    Ok(PrefixStore::new(bucket, place.folder.as_str()))
}

/// How often a request of an archive is repeated, and for how long: whoever waits for a file is told soon that the store does
/// not answer, and asks again.
const ARCHIVE_RETRIES: usize = 3;
const ARCHIVE_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const ARCHIVE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The bucket of an archive, whole: the folder of `place` is for the caller.
///
/// # Errors
/// [`StoreError::Io`] if the configuration is not well-formed.
pub fn s3_bucket(place: &S3Place) -> Result<AmazonS3> {
    let retry = RetryConfig {
        max_retries: ARCHIVE_RETRIES,
        retry_timeout: ARCHIVE_RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    let options = ClientOptions::new()
        .with_connect_timeout(ARCHIVE_CONNECT_TIMEOUT)
        .with_allow_http(is_plain(place));
    builder_of(place)
        .with_client_options(options)
        .with_retry(retry)
        .build()
        .map_err(|error| StoreError::Io(format!("s3://{}: {error}", place.bucket)))
}

/// Whether the service is reached without TLS.
fn is_plain(place: &S3Place) -> bool {
    let of_environment = || std::env::var("AWS_ENDPOINT_URL").ok();
    let endpoint = place.endpoint.clone().or_else(of_environment);
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

fn builder_of(place: &S3Place) -> AmazonS3Builder {
    // The only provider that is built in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&place.bucket);
    if let Some(endpoint) = &place.endpoint {
        let plain = endpoint.starts_with("http://");
        builder = builder.with_endpoint(endpoint).with_allow_http(plain);
    }
    if let Some(region) = &place.region {
        builder = builder.with_region(region);
    }
    if let (Some(key), Some(secret)) = (&place.access_key, &place.secret_key) {
        builder = builder.with_access_key_id(key).with_secret_access_key(secret);
    }
    builder
}

//! The object stores beneath the databases.

use std::sync::Arc;

use forebay_etcd::Client;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;

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
            let made = std::fs::create_dir_all(path);
            made.map_err(|error| {
                StoreError::Io(format!("cannot create {}: {error}", path.display()))
            })?;
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
    // The only provider that is built in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&place.bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch);
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
    let bucket = builder
        .build()
        .map_err(|error| StoreError::Io(format!("names in s3://{}: {error}", place.bucket)))?;
    Ok(PrefixStore::new(bucket, place.folder.as_str()))
}

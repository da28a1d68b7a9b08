//! Where the names of a cluster's files lie: in etcd, in an object store, or in a directory that all nodes mount.
//!
//! The cluster's record in etcd says it, and what reaches it, so that nodes that join need nothing else.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::FilesetId;
use forebay_etcd::Runtime;
use forebay_node::etcd_page;
use forebay_node::home::{EtcdAccess, NodeFile};
use forebay_node::members::Book;
use forebay_node::members::record::NamesPlace;
use forebay_store::Stores as _;
use forebay_store::slate::{
    EtcdPlace, Place, QuotaOf, S3Place, SlateConfig, SlateStores, open_stores,
};
use uuid::Uuid;

use super::RUNTIME_THREADS;
use crate::home::{Home, s3_access, s3_access_in};

/// Longest time for the page of a member of etcd.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether blocks of the stores are kept on the node's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In the node's folder, which one process uses.
    Kept,
    /// The daemon of a mount may be using it.
    None,
}

/// The place that a user chose for the names of a new cluster; none for etcd. It is there and answers.
///
/// # Errors
/// If it is not a place for names, or does not answer.
pub fn chosen(place: &str, access: Option<&Path>) -> Result<Option<NamesPlace>> {
    let parsed = place.parse::<Place>().map_err(anyhow::Error::msg)?;
    if matches!(parsed, Place::Etcd(_)) {
        ensure!(access.is_none(), "--names-access is for --names s3://BUCKET/FOLDER");
        return Ok(None);
    }
    let is_s3 = matches!(parsed, Place::S3(_));
    ensure!(is_s3 || access.is_none(), "--names-access is for --names s3://BUCKET/FOLDER");
    let access = access.map(|path| s3_access_in(path).map(|(_, text)| text)).transpose()?;
    let names = NamesPlace { place: place.to_owned(), access };
    let config = SlateConfig::new(place_of(&names)?, "forebay-names");
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for the stores")?;
    let listed = open_stores(&config, &runtime, None).and_then(|stores| stores.list());
    listed.with_context(|| format!("{place} cannot hold names"))?;
    Ok(Some(names))
}

fn place_of(names: &NamesPlace) -> Result<Place> {
    Ok(match names.place.parse::<Place>().map_err(anyhow::Error::msg)? {
        Place::S3(named) => {
            let access = names.access.as_deref().map_or(Ok(S3Place::default()), s3_access)?;
            Place::S3(S3Place { bucket: named.bucket, folder: named.folder, ..access })
        }
        place => place,
    })
}

/// The names are in etcd beside the cluster's records, under its id, as another cluster of the same name may come later; in another
/// place under its id as well.
fn config_of(cluster: Uuid, names: Option<&NamesPlace>, etcd: &EtcdAccess) -> Result<SlateConfig> {
    let Some(names) = names else {
        let etcd = etcd.clone();
        let quota_of = move |endpoint: &str| {
            etcd_page::quota_bytes(&etcd_page::read(&etcd, endpoint, PAGE_TIMEOUT).ok()?)
        };
        let place =
            EtcdPlace { quota_of: Some(QuotaOf(Arc::new(quota_of))), ..EtcdPlace::default() };
        return Ok(SlateConfig::new(Place::Etcd(place), format!("/forebay-names/{cluster}")));
    };
    Ok(SlateConfig::new(place_of(names)?, format!("forebay-names/{cluster}")))
}

/// The place that the cluster's record names; none for etcd.
///
/// # Errors
/// If etcd does not answer, or does not know the cluster.
pub fn place(book: &Book) -> Result<Option<NamesPlace>> {
    let record = book.cluster()?.context("etcd does not know the cluster (any more)")?;
    Ok(record.names)
}

/// How a place is shown.
pub fn shown(names: Option<&NamesPlace>) -> &str {
    names.map_or("etcd", |names| &names.place)
}

/// The stores of the names of a cluster in their place, which may hold none yet.
///
/// # Errors
/// If the place cannot be used.
pub fn open_new(
    names: Option<&NamesPlace>,
    file: &NodeFile,
    home: &Home,
    book: &Book,
    runtime: &Runtime,
    cache: Cache,
) -> Result<Arc<SlateStores>> {
    let mut config = config_of(file.cluster, names, &file.etcd)?;
    config.cache = (cache == Cache::Kept).then(|| home.root().join("cache"));
    Ok(open_stores(&config, runtime, Some(book.client()))?)
}

/// The stores of the names of a cluster that has some.
///
/// # Errors
/// As [`place`] and [`open_new`], and if nothing is there: an empty directory may be one that is not mounted.
pub fn open(
    file: &NodeFile,
    home: &Home,
    book: &Book,
    runtime: &Runtime,
    cache: Cache,
) -> Result<Arc<SlateStores>> {
    let names = place(book)?;
    let stores = open_new(names.as_ref(), file, home, book, runtime, cache)?;
    let Some(names) = names else { return Ok(stores) };
    let listed = stores.list().with_context(|| format!("names in {}", names.place))?;
    if !listed.contains(&FilesetId::ROOT) {
        bail!(
            "{} does not hold the names of cluster {}: is it mounted here?",
            names.place,
            file.cluster_name
        );
    }
    Ok(stores)
}

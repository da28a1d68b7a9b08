//! Which owner may open a database: objects `NNNNN/term/TERM`, of which the one with the largest number counts.
//!
//! The writer epoch alone keeps a former writer out, but would let a late one in. So an owner writes down its term, checks
//! that there is none newer, and then claims the writer epoch that follows the one that it saw *before*. Of two owners who do
//! this at the same time, the newer one wins: if the older one claims first, the newer one sees that its claim fails, and
//! tries again; if the newer one claims first, the older one's claim fails.

use forebay_base::Epoch;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutMode, PutOptions, Result};

/// What is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// No owner with a newer term has been there. Older terms say nothing any more: see [`forget`].
    Newest { older: Vec<Path> },
    /// One has.
    Late,
}

fn folder(database: &Path) -> Path {
    database.clone().join("term")
}

/// Writes down `term` for a database, unless there is a newer one.
pub(super) async fn claim(
    objects: &dyn ObjectStore,
    database: &Path,
    term: Epoch,
) -> Result<Claim> {
    let name = folder(database).join(format!("{:020}", term.0));
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match objects.put_opts(&name, Vec::new().into(), create).await {
        // This owner has been there before.
        Ok(_) | Err(Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error),
    }
    let listed: Vec<_> = objects.list(Some(&folder(database))).try_collect().await?;
    let mut older = Vec::new();
    for object in listed {
        match object.location.filename().and_then(|name| name.parse::<u64>().ok()) {
            Some(number) if number > term.0 => return Ok(Claim::Late),
            Some(number) if number < term.0 => older.push(object.location),
            _ => {}
        }
    }
    Ok(Claim::Newest { older })
}

/// Removes terms that a newer one has replaced.
pub(super) async fn forget(objects: &dyn ObjectStore, older: Vec<Path>) -> Result<()> {
    let older = futures::stream::iter(older.into_iter().map(Ok)).boxed();
    objects.delete_stream(older).try_for_each(|_| async { Ok(()) }).await
}

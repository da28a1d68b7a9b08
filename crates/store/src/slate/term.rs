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
    /// No owner with a newer term has been there. Older terms say nothing any more: see [`forget_older`].
    Newest,
    /// One has.
    Late,
}

fn folder(database: &Path) -> Path {
    database.clone().join("term")
}

/// The object that says that the owner of `term` has been there.
pub(super) fn path(database: &Path, term: Epoch) -> Path {
    folder(database).join(format!("{:020}", term.0))
}

/// The terms of a database.
async fn terms(objects: &dyn ObjectStore, database: &Path) -> Result<Vec<(u64, Path)>> {
    let listed: Vec<_> = objects.list(Some(&folder(database))).try_collect().await?;
    let term = |location: Path| {
        let number = location.filename()?.parse().ok()?;
        Some((number, location))
    };
    Ok(listed.into_iter().filter_map(|object| term(object.location)).collect())
}

/// Writes down `term` for a database, unless there is a newer one.
pub(super) async fn claim(
    objects: &dyn ObjectStore,
    database: &Path,
    term: Epoch,
) -> Result<Claim> {
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match objects.put_opts(&path(database, term), Vec::new().into(), create).await {
        // This owner has been there before.
        Ok(_) | Err(Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error),
    }
    let found = terms(objects, database).await?;
    let is_late = found.iter().any(|(number, _)| *number > term.0);
    Ok(if is_late { Claim::Late } else { Claim::Newest })
}

/// Removes the terms that `term` has replaced.
pub(super) async fn forget_older(
    objects: &dyn ObjectStore,
    database: &Path,
    term: Epoch,
) -> Result<()> {
    let found = terms(objects, database).await?;
    let older = found.into_iter().filter(|(number, _)| *number < term.0).map(|(_, path)| Ok(path));
    let older = futures::stream::iter(older.collect::<Vec<_>>()).boxed();
    objects.delete_stream(older).try_for_each(|_| async { Ok(()) }).await
}

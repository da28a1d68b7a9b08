//! What an object store beneath the databases must do, for objects in etcd and, as the reference, for those in memory.
#![cfg(feature = "cluster")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_etcd::testing::EtcdServer;
use forebay_etcd::{Client, Keys, RangeOptions};
use forebay_store::slate::etcd_objects::garbage::Garbage;
use forebay_store::slate::etcd_objects::{EtcdObjects, VALUE_BYTES_MAX};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, GetRange, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    UpdateVersion,
};

const LARGE: usize = 3 * VALUE_BYTES_MAX + 12_345;

fn bytes(size: usize, salt: usize) -> Bytes {
    (0..size).map(|i| ((i * 31 + i / 251 + salt) % 253) as u8).collect::<Vec<u8>>().into()
}

fn mode(mode: PutMode) -> PutOptions {
    PutOptions { mode, ..PutOptions::default() }
}

async fn put(
    store: &dyn ObjectStore,
    path: &str,
    body: &Bytes,
    how: PutMode,
) -> Result<PutResult, Error> {
    store.put_opts(&Path::from(path), PutPayload::from(body.clone()), mode(how)).await
}

async fn get(store: &dyn ObjectStore, path: &str) -> Result<Bytes, Error> {
    store.get(&Path::from(path)).await?.bytes().await
}

fn version(result: &PutResult) -> UpdateVersion {
    UpdateVersion { e_tag: result.e_tag.clone(), version: result.version.clone() }
}

async fn an_object_reads_back_until_it_is_replaced_or_removed(store: &dyn ObjectStore) {
    assert!(matches!(get(store, "a/b").await, Err(Error::NotFound { .. })));
    for (salt, size) in
        [0, 1, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1, LARGE, 7].into_iter().enumerate()
    {
        let body = bytes(size, salt);
        put(store, "a/b", &body, PutMode::Overwrite).await.unwrap();
        assert_eq!(get(store, "a/b").await.unwrap(), body, "{size}");
        let meta = store.head(&Path::from("a/b")).await.unwrap();
        assert_eq!(meta.size, size as u64);
    }
    store.delete(&Path::from("a/b")).await.unwrap();
    assert!(matches!(get(store, "a/b").await, Err(Error::NotFound { .. })));
}

async fn a_conditional_put_fails_if_its_condition_does_not_hold(store: &dyn ObjectStore) {
    for size in [10, LARGE] {
        let (old, new) = (bytes(size, 1), bytes(size, 2));
        let path = &format!("conditional/{size}");
        let created = put(store, path, &old, PutMode::Create).await.unwrap();
        let again = put(store, path, &new, PutMode::Create).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
        let updated = put(store, path, &new, PutMode::Update(version(&created))).await.unwrap();
        assert_ne!(updated.e_tag, created.e_tag);
        let stale = put(store, path, &old, PutMode::Update(version(&created))).await;
        assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
        assert_eq!(get(store, path).await.unwrap(), new);
        store.delete(&Path::from(path.as_str())).await.unwrap();
        let gone = put(store, path, &old, PutMode::Update(version(&updated))).await;
        assert!(matches!(gone, Err(Error::Precondition { .. })), "{gone:?}");
        put(store, path, &old, PutMode::Create).await.unwrap();
    }
}

async fn of_racing_creators_one_wins(store: &dyn ObjectStore) {
    for round in 0..10 {
        let path = &format!("race/{round}");
        let attempts = (0..8).map(|salt| async move {
            let body = bytes(if salt % 2 == 0 { 10 } else { VALUE_BYTES_MAX + 1 }, salt);
            put(store, path, &body, PutMode::Create).await.map(|_| body)
        });
        let outcomes: Vec<_> = futures::future::join_all(attempts).await;
        let won: Vec<Bytes> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1);
        assert_eq!(get(store, path).await.unwrap(), won[0]);
    }
}

async fn any_range_of_an_object_reads_back(store: &dyn ObjectStore) {
    let limit = VALUE_BYTES_MAX as u64;
    for size in [1000, LARGE] {
        let (body, path) = (bytes(size, 0), Path::from("ranges"));
        put(store, "ranges", &body, PutMode::Overwrite).await.unwrap();
        let all = size as u64;
        for (from, to) in
            [(0, 1), (1, 999), (limit - 1, limit + 1), (limit, 2 * limit), (5, all), (all - 1, all)]
        {
            if from >= all {
                continue;
            }
            let found = store.get_range(&path, from..to).await.unwrap();
            assert_eq!(found, body.slice(from as usize..to.min(all) as usize), "{from}..{to}");
        }
        let options = |range| GetOptions { range: Some(range), ..GetOptions::default() };
        let suffix = store.get_opts(&path, options(GetRange::Suffix(10))).await.unwrap();
        assert_eq!(suffix.bytes().await.unwrap(), body.slice(size - 10..));
        let offset = store.get_opts(&path, options(GetRange::Offset(all - 3))).await.unwrap();
        assert_eq!(offset.bytes().await.unwrap(), body.slice(size - 3..));
        assert!(store.get_range(&path, all + 1..all + 2).await.is_err());
        let several = store.get_ranges(&path, &[0..5, 10..20, all - 2..all]).await.unwrap();
        assert_eq!(several[2], body.slice(size - 2..));
    }
}

async fn lists_go_by_whole_names_and_in_order(store: &dyn ObjectStore) {
    for path in ["x/a", "x/b/c", "x/b/d", "x.y", "xx/e", "x/z"] {
        put(store, path, &bytes(3, 0), PutMode::Overwrite).await.unwrap();
    }
    let x = Path::from("x");
    let names = |metas: Vec<object_store::ObjectMeta>| -> Vec<String> {
        let mut names: Vec<String> =
            metas.into_iter().map(|meta| meta.location.to_string()).collect();
        names.sort();
        names
    };
    let all = store.list(Some(&x)).try_collect().await.unwrap();
    assert_eq!(names(all), ["x/a", "x/b/c", "x/b/d", "x/z"]);
    let after = store.list_with_offset(Some(&x), &Path::from("x/b/c")).try_collect().await.unwrap();
    assert_eq!(names(after), ["x/b/d", "x/z"]);
    let level = store.list_with_delimiter(Some(&x)).await.unwrap();
    assert_eq!(names(level.objects), ["x/a", "x/z"]);
    assert_eq!(level.common_prefixes, [Path::from("x/b")]);
    let top = store.list_with_delimiter(None).await.unwrap();
    assert!(top.common_prefixes.contains(&x) && top.common_prefixes.contains(&Path::from("xx")));
    let none: Vec<_> = store.list(Some(&Path::from("nothing"))).collect().await;
    assert!(none.is_empty());
}

async fn a_long_list_is_complete(store: &dyn ObjectStore) {
    let put = |i: usize| async move {
        put(store, &format!("many/{i:05}"), &Bytes::new(), PutMode::Create).await.unwrap();
    };
    futures::stream::iter(0..1205).for_each_concurrent(16, put).await;
    let all: Vec<_> = store.list(Some(&Path::from("many"))).try_collect().await.unwrap();
    assert_eq!(all.len(), 1205);
}

async fn parts_make_one_object_when_all_are_there(store: &dyn ObjectStore) {
    let path = Path::from("parts");
    let options = PutMultipartOptions::default;
    let mut upload = store.put_multipart_opts(&path, options()).await.unwrap();
    let parts = [bytes(LARGE, 0), bytes(VALUE_BYTES_MAX * 2, 1), bytes(5, 2)];
    let sent: Vec<_> =
        parts.iter().map(|part| upload.put_part(PutPayload::from(part.clone()))).collect();
    // They may arrive in any order.
    futures::future::try_join_all(sent.into_iter().rev()).await.unwrap();
    assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
    upload.complete().await.unwrap();
    assert_eq!(get(store, "parts").await.unwrap(), parts.concat());
    let start = LARGE as u64 - 2;
    let across = store.get_range(&path, start..start + 4).await.unwrap();
    assert_eq!(across, parts.concat()[start as usize..start as usize + 4]);

    let mut dropped = store.put_multipart_opts(&path, options()).await.unwrap();
    dropped.put_part(PutPayload::from(bytes(LARGE, 9))).await.unwrap();
    dropped.abort().await.unwrap();
    assert_eq!(get(store, "parts").await.unwrap(), parts.concat());
    let mut empty = store.put_multipart_opts(&Path::from("empty"), options()).await.unwrap();
    empty.complete().await.unwrap();
    assert_eq!(get(store, "empty").await.unwrap(), Bytes::new());
}

async fn attributes_and_copies_are_kept(store: &dyn ObjectStore) {
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::Metadata("writer".into()), "7".into());
    let options = PutOptions { attributes: attributes.clone(), ..PutOptions::default() };
    let (path, copy, body) = (Path::from("attributed"), Path::from("copy"), bytes(LARGE, 3));
    store.put_opts(&path, body.clone().into(), options).await.unwrap();
    assert_eq!(store.get(&path).await.unwrap().attributes, attributes);
    store.copy(&path, &copy).await.unwrap();
    let create = CopyOptions { mode: CopyMode::Create, ..CopyOptions::default() };
    let again = store.copy_opts(&path, &copy, create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    store.rename(&copy, &Path::from("renamed")).await.unwrap();
    assert!(matches!(store.head(&copy).await, Err(Error::NotFound { .. })));
    assert_eq!(get(store, "renamed").await.unwrap(), body);
    let meta = store.head(&path).await.unwrap();
    let unless = GetOptions { if_none_match: meta.e_tag.clone(), ..GetOptions::default() };
    assert!(matches!(store.get_opts(&path, unless).await, Err(Error::NotModified { .. })));
    let only = GetOptions { if_match: Some("nonsense".to_owned()), ..GetOptions::default() };
    assert!(matches!(store.get_opts(&path, only).await, Err(Error::Precondition { .. })));
}

async fn every_rule(store: &dyn ObjectStore) {
    an_object_reads_back_until_it_is_replaced_or_removed(store).await;
    a_conditional_put_fails_if_its_condition_does_not_hold(store).await;
    of_racing_creators_one_wins(store).await;
    any_range_of_an_object_reads_back(store).await;
    lists_go_by_whole_names_and_in_order(store).await;
    a_long_list_is_complete(store).await;
    parts_make_one_object_when_all_are_there(store).await;
    attributes_and_copies_are_kept(store).await;
}

fn objects(client: &Client, prefix: &str) -> EtcdObjects {
    EtcdObjects::new(client.connection(), prefix, Arc::new(()))
}

/// The keys of a kind below the prefix of `objects("t")`.
fn keys(client: &Client, kind: &str) -> usize {
    let all = RangeOptions { count_only: true, ..RangeOptions::default() };
    client.range(Keys::prefix(format!("t/{kind}/")), all).unwrap().count as usize
}

#[test]
fn objects_in_memory_keep_every_rule() {
    let runtime = forebay_etcd::Runtime::start(1).unwrap();
    runtime.block_on(every_rule(&InMemory::new()));
}

#[test]
fn objects_in_etcd_keep_every_rule_and_leave_no_chunks_behind() {
    let server = EtcdServer::single();
    let client = server.client();
    let store = objects(&client, "t");
    client.runtime().block_on(async {
        every_rule(&store).await;
        let all: Vec<_> =
            store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
        let paths = futures::stream::iter(all.into_iter().map(Ok)).boxed();
        store.delete_stream(paths).try_for_each(|_| async { Ok(()) }).await.unwrap();
    });
    for kind in ["m", "i", "c", "u", "p"] {
        assert_eq!(keys(&client, kind), 0, "keys of kind {kind}");
    }
}

#[test]
fn an_upload_that_is_cut_off_is_never_seen_and_is_collected() {
    let server = EtcdServer::single();
    let client = server.client();
    let store = objects(&client, "t");
    client.runtime().block_on(async {
        let path = Path::from("cut");
        put(&store, "kept", &bytes(LARGE, 1), PutMode::Create).await.unwrap();
        let mut upload =
            store.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap();
        upload.put_part(bytes(LARGE, 2).into()).await.unwrap();
        assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));

        let mut patient = Garbage::new(&store, Duration::from_secs(3600));
        assert_eq!(patient.collect().await.unwrap(), 0, "it may still be completed");
        let mut hasty = Garbage::new(&store, Duration::ZERO);
        assert_eq!(hasty.collect().await.unwrap(), 1);
        assert_eq!(hasty.collect().await.unwrap(), 0);
        // Its writer comes too late, and is told so.
        assert!(upload.put_part(bytes(5, 0).into()).await.is_err());
        assert!(upload.complete().await.is_err());
        assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
        assert_eq!(get(&store, "kept").await.unwrap(), bytes(LARGE, 1));
    });
    assert_eq!((keys(&client, "u"), keys(&client, "c"), keys(&client, "p")), (0, 4, 1));
}

#[test]
fn a_chunked_object_is_whole_or_absent_whenever_etcd_dies() {
    let mut server = EtcdServer::single();
    let client = server.client().with_timeout(Duration::from_secs(2));
    let store = objects(&client, "t");
    let runtime = client.runtime().clone();
    let bodies: Vec<Bytes> = (0..20).map(|salt| bytes(LARGE, salt)).collect();
    for round in 0..3 {
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for body in &bodies {
                    // It may fail: etcd is killed meanwhile.
                    let _ = runtime.block_on(put(&store, "o", body, PutMode::Overwrite));
                }
            });
            std::thread::sleep(Duration::from_millis(100 + 150 * round));
            server.restart(0);
            writing.join().unwrap();
        });
        let found = runtime.block_on(get(&store, "o")).unwrap();
        assert!(bodies.contains(&found), "a mixture of two objects");
    }
}

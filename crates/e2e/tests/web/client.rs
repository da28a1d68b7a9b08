//! The Python module of the wheel, used on a grid.

use std::path::Path;

use forebay_e2e::{need, run};

use crate::fixture::{LIMIT, Site};

#[test]
fn the_python_client_submits_follows_explains_and_refuses() {
    let site = Site::start("");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/python/src");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let mut python = need::program("python3");
    python.args(["-c", include_str!("client.py")]).arg(document).current_dir(site.folder());
    python.env("PYTHONPATH", source).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("FOREBAY_URL", site.url()).env("FOREBAY_TOKEN", site.token());
    python.env("FOREBAY_GRID", site.root());
    // The module finds the program on PATH.
    let folder = need::forebay().parent().expect("a folder").to_owned();
    let path = std::env::var("PATH").expect("PATH");
    python.env("PATH", format!("{}:{path}", folder.display()));
    assert_eq!(run(&mut python, LIMIT).output(), "all is well\n");
}

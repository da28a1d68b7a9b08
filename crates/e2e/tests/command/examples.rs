//! What lies in `examples/` and `packaging/container/` for people to take: it is run, or compared with what it names.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::need::forebay;
use forebay_e2e::{Ended, need, run};

const LIMIT: Duration = Duration::from_secs(60);

/// The user of a job: nobody.
const USER: u32 = 65_534;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join(folder)).expect("lists");
    entries.map(|entry| entry.expect("lists").path()).filter(|path| path.is_file()).collect()
}

#[test]
fn every_script_is_one_that_its_shell_understands() {
    let mut met = 0;
    for path in files("examples").into_iter().chain(files("examples/slurm")) {
        let text = fs::read_to_string(&path).expect("reads");
        let Some(shell) = ["#!/bin/sh", "#!/bin/bash"].iter().find(|it| text.starts_with(**it))
        else {
            continue;
        };
        met += 1;
        run(Command::new(&shell[2..]).arg("-n").arg(&path), LIMIT).succeeds();
    }
    assert!(met >= 7, "{met} scripts");
}

/// A script of Slurm for job 7 on node n1, with a mount in `mount`.
fn slurm(script: &str, mount: &Path) -> Ended {
    let mut command = Command::new(workspace().join("examples/slurm").join(script));
    command.env("FOREBAY_MOUNT", mount).env("SLURMD_NODENAME", "n1").env("SLURM_JOB_ID", "7");
    command.env("SLURM_JOB_UID", USER.to_string()).env("SLURM_JOB_GID", USER.to_string());
    run(&mut command, LIMIT)
}

#[test]
fn slurms_scripts_give_a_job_directories_of_its_own_and_remove_them() {
    need::root();
    let folder = tempfile::tempdir().expect("makes a folder");
    let mount = folder.path();
    let said = slurm("prolog", mount);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.stderr.contains("mount the cluster on n1"), "{said:?}");
    let areas = ["work", "util"].map(|area| mount.join(area).join("n1"));
    for area in &areas {
        fs::create_dir_all(area).expect("makes a folder");
    }
    // Also when the job is requeued.
    for _ in 0..2 {
        slurm("prolog", mount).succeeds();
        for area in &areas {
            let made = fs::metadata(area.join("slurm-7")).expect("was made");
            assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (USER, USER, 0o700));
        }
    }
    let told = slurm("task-prolog", mount).output();
    for (name, area) in
        [("WORK", &areas[0]), ("TMPDIR", &areas[1]), ("DUCKDB_TEMP_DIRECTORY", &areas[1])]
    {
        let line = format!("export {name}={}/slurm-7\n", area.display());
        assert!(told.contains(&line), "{line}: {told}");
    }
    fs::write(areas[0].join("slurm-7/left"), "x").expect("writes");
    slurm("epilog", mount).succeeds();
    slurm("epilog", mount).succeeds();
    assert!(areas.iter().all(|area| !area.join("slurm-7").exists()));
    // What somebody else put there before is not used, and what it leads to is not removed.
    let other = folder.path().join("other");
    fs::create_dir(&other).expect("makes a folder");
    fs::write(other.join("kept"), "x").expect("writes");
    symlink(&other, areas[0].join("slurm-7")).expect("links");
    let said = slurm("prolog", mount);
    assert!(said.code() == 1 && said.stderr.contains("not the job's"), "{said:?}");
    assert_eq!(fs::metadata(&other).expect("is there").uid(), 0);
    slurm("epilog", mount).succeeds();
    assert!(other.join("kept").exists() && !areas[0].join("slurm-7").exists());
}

#[test]
fn the_job_of_duckdb_takes_threads_memory_and_directory_from_its_job() {
    let script = workspace().join("examples/duckdb_job.py");
    let folder = tempfile::tempdir().expect("makes a folder");
    let groups = folder.path().join("cgroup");
    fs::write(&groups, "1:name=other:/x\n0::/forebay/job\n").expect("writes");
    fs::create_dir_all(folder.path().join("root/forebay/job")).expect("makes a folder");
    fs::write(folder.path().join("root/forebay/memory.max"), "1073741824\n").expect("writes");
    fs::write(folder.path().join("root/forebay/job/memory.max"), "max\n").expect("writes");
    let test = format!(
        "import importlib.util as u\n\
         s = u.spec_from_file_location('job', {script:?}); m = u.module_from_spec(s); s.loader.exec_module(m)\n\
         memory = m.memory_bytes({groups:?}, {root:?})\n\
         print(m.settings({{'FOREBAY_SLOTS': '3', 'UTIL': '/u'}}, memory))\n\
         print(m.settings({{'FOREBAY_SLOTS': '1', 'UTIL': '/u', 'DUCKDB_TEMP_DIRECTORY': '/d'}}, None))",
        root = folder.path().join("root"),
    );
    let mut python = Command::new("python3");
    let said = run(python.args(["-B", "-c", &test]), LIMIT).output();
    let expected = "{'threads': 3, 'temp_directory': '/u', 'memory_limit': '819MiB'}\n\
                    {'threads': 1, 'temp_directory': '/d'}\n";
    assert_eq!(said, expected);
}

#[test]
fn the_recipe_of_the_container_names_packages_files_and_commands_that_there_are() {
    let recipe =
        fs::read_to_string(workspace().join("packaging/container/Containerfile")).expect("reads");
    let read = |path: &str| fs::read_to_string(workspace().join(path)).expect("reads");
    // The package that scripts/dist makes, under the name that cargo-deb gives it.
    assert!(read("crates/cli/Cargo.toml").contains("[package.metadata.deb]\nname = \"forebay\"\n"));
    assert!(
        read("scripts/dist").contains("cargo deb")
            && read("scripts/dist").contains("dist=$PWD/target/dist")
    );
    assert!(recipe.contains("COPY target/dist/forebay_*.deb /tmp/"), "{recipe}");
    assert!(
        read("packaging/container/Containerfile.dockerignore")
            .contains("!target/dist/forebay_*.deb")
    );
    // The Debian in which the package is tested.
    assert!(
        read("scripts/test-dist").contains("bookworm")
            && recipe.contains("FROM docker.io/library/debian:bookworm-slim\n")
    );
    let mut met = 0;
    for line in recipe.lines() {
        let Some((_, words)) = line.split_once(" forebay ").filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let Some(command) =
            words.split(' ').next().filter(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        else {
            continue;
        };
        let help = run(Command::new(forebay()).args([command, "--help"]), LIMIT);
        if help.code() == 0 {
            met += 1;
            for option in words.split(' ').filter(|word| word.len() > 2 && word.starts_with("--")) {
                assert!(help.stdout.contains(option), "forebay {command} has no {option}");
            }
        }
    }
    assert!(met >= 3, "{met} commands in {recipe}");
}

#[test]
fn settings_of_other_programs_have_no_tabs_and_scripts_can_be_run() {
    let dask = fs::read_to_string(workspace().join("examples/dask.yaml")).expect("reads");
    assert!(!dask.contains('\t') && dask.contains("DASK_TEMPORARY_DIRECTORY"));
    for path in files("examples/slurm") {
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{}", path.display());
    }
}

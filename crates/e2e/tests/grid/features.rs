//! Features of hosts, as our commands, Slurm's and LSF's ask for them and show them.

use crate::compat::Site;

#[test]
fn jobs_choose_hosts_by_features_in_every_language() {
    let site = Site::start();
    let settings = "[[host]]\nname = \"h1\"\nfeatures = [\"ssd\", \"avx512\"]\n[[host]]\nname = \"h2\"\nfeatures = [\"hdd\"]\n";
    std::fs::write(site.grid.root.join("grid/grid.toml"), settings).unwrap();
    site.grid.forebay(&["reload"], &[]).succeeds();
    let done = site.grid.submit(&["--feature", "ssd && !hdd"], "true");
    site.grid.wait_for(&done, "done");
    let listed = site.grid.forebay(&["hosts"], &[]).output();
    assert!(listed.contains("ssd,avx512"), "{listed}");
    // A host that is not there yet may have them.
    let waits = site.grid.submit(&["--feature", "hdd"], "true");
    let why = site.grid.forebay(&["explain", &waits], &[]).output();
    assert!(why.contains("h1: does not have the features that the job needs"), "{why}");
    let shown = site.grid.forebay(&["jobs", "-l", &waits], &[]).output();
    assert!(shown.contains("features      hdd"), "{shown}");
    site.grid.forebay(&["modify", &waits, "--feature", "none"], &[]).succeeds();
    site.grid.wait_for(&waits, "done");
    let _ = site.sh("sbatch --wait -C 'ssd&(avx512|avx2)' --wrap true").expect_code(1);
    site.sh("sbatch --wait -C 'ssd&(avx512|hdd)' --wrap true").succeeds();
    site.sh("sbatch -H -C 'ssd|hdd' --wrap true").succeeds();
    assert_eq!(site.says("squeue -h -o %f"), "ssd|hdd\n");
    assert_eq!(site.says("sinfo -h -o '%n %f'"), "h1 ssd,avx512\n");
    assert!(site.says("scontrol show node h1").contains("AvailableFeatures=ssd,avx512\n"));
    site.sh("bsub -K -R 'select[ssd && mem>1 && type==any] rusage[mem=10]' true").succeeds();
    assert!(site.says("lshosts h1").contains("(ssd avx512)"));
    for line in ["sbatch -C fast --wrap true", "bsub -R 'select[fast]' true"] {
        let refused = site.sh(line);
        assert!(!refused.status.success());
        assert!(
            refused.stderr.contains("no host has the feature fast: choose from avx512, hdd, ssd")
        );
    }
}

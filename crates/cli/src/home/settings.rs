//! `forebay.toml` in a home folder: the settings of the file system, of its kernel front end and of the daemon.

use forebay_base::ByteSize;
use forebay_base::settings::{self, Section, Setting, value};

/// All settings, validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Of the file system itself.
    pub fs: forebay_fs::Settings,
    /// Of the kernel front end.
    pub fuse: forebay_fuse::Settings,
    /// Of the process behind a mount.
    pub daemon: DaemonSettings,
}

/// Settings of the process behind a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSettings {
    /// Priority of the daemon, as nice(1) counts it; needs root.
    pub daemon_nice: i32,
    /// Read-ahead of the devices under directory disks while mounted (direct path); needs root. 0
    /// leaves them as they are.
    pub disk_read_ahead: ByteSize,
    /// Schedules of snapshots that there can be, of all filesets together.
    pub snapshot_schedules_max: usize,
}

impl Settings {
    /// Reads the text of a settings file; `file` is its name for messages.
    ///
    /// # Errors
    /// A text that names the file and line, the key, the value and what is allowed.
    pub fn parse(file: &str, text: &str) -> Result<Settings, String> {
        let mut all = Settings::default();
        settings::read(file, text, &mut [&mut all.fs, &mut all.fuse, &mut all.daemon])?;
        Ok(all)
    }

    /// The settings file that mkfs writes: every setting, commented out, with its meaning.
    #[must_use]
    pub fn template() -> String {
        let all = Settings::default();
        settings::template(
            "Settings of this Forebay file system. They take effect at the next mount.",
            &[&all.fs, &all.fuse, &all.daemon],
        )
    }
}

impl Section for DaemonSettings {
    const TABLE: &'static [Setting<DaemonSettings>] = &[
        Setting {
            name: "daemon_nice",
            default: "-10",
            allowed: "a number from -20 to 0",
            meaning: "Priority of the daemon, as for nice(1); needs root. Programs wait for the daemon, so \
                      on a machine with all cores busy it must not queue behind them.",
            set: |s, v| {
                let nice = i32::try_from(v.as_integer()?).ok()?;
                (-20..=0).contains(&nice).then(|| s.daemon_nice = nice)
            },
        },
        Setting {
            name: "disk_read_ahead",
            default: "\"0 B\"",
            allowed: "a size from \"0 B\" (leave as it is) to \"64 MiB\"",
            meaning: "Least read-ahead of the devices under the disks while mounted (direct path); \
                      needs root. Measure first: some devices gain from 1 MiB, others lose half. The \
                      daemon that raised it restores it on exit, unless it is killed; with several \
                      file systems on one device, set it yourself and use \"0 B\" here.",
            set: |s, v| {
                value::size(v, ByteSize(0), ByteSize::mib(64)).map(|x| s.disk_read_ahead = x)
            },
        },
        Setting {
            name: "snapshot_schedules_max",
            default: "64",
            allowed: "a number from 0 to 1024",
            meaning: "Schedules of snapshots that there can be, of all filesets together: `forebay snapshot \
                      schedule set` refuses more.",
            set: |s, v| {
                let most = usize::try_from(v.as_integer()?).ok()?;
                (most <= 1024).then(|| s.snapshot_schedules_max = most)
            },
        },
    ];
}

impl Default for DaemonSettings {
    fn default() -> DaemonSettings {
        DaemonSettings { daemon_nice: 0, disk_read_ahead: ByteSize(0), snapshot_schedules_max: 0 }
            .with_defaults()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_the_defaults() {
        let template = Settings::template();
        assert_eq!(Settings::parse("f", &template), Ok(Settings::default()));
        let uncommented: String = template
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert_eq!(Settings::parse("f", &uncommented), Ok(Settings::default()));
        for name in ["commit_interval", "ring_depth", "daemon_nice"] {
            assert!(uncommented.contains(&format!("\n{name} = ")), "{name}");
        }
    }

    #[test]
    fn no_two_sections_share_a_name() {
        let template = Settings::template();
        let mut names: Vec<&str> =
            template.lines().filter_map(|line| line.split_once(" = ")).map(|x| x.0).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn bad_settings_name_line_key_value_and_what_is_allowed() {
        let cases = [
            ("# a\nspeed = 3\n", ["line 2", "\"speed\"", "3", "commit_interval"]),
            ("commit_interval = \"9 days\"", ["line 1", "commit_interval", "9 days", "\"60 s\""]),
            ("\n\nfuse_threads = 0", ["line 3", "fuse_threads", "0", "from 2 to 256"]),
            ("direct = \"yes\"", ["line 1", "direct", "yes", "true or false"]),
            ("inode_cache_max = -1", ["line 1", "inode_cache_max", "-1", "1 MiB"]),
            ("ring_slice = \"99 us\"", ["line 1", "ring_slice", "99 us", "from \"100 us\""]),
            ("ring_slice = \"1 s\"", ["line 1", "ring_slice", "1 s", "to \"100 ms\""]),
        ];
        for (text, wanted) in cases {
            let message = Settings::parse("forebay.toml", text).unwrap_err();
            for part in wanted {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        }
        let message = Settings::parse("forebay.toml", "a = 1\nb = = 2\n").unwrap_err();
        assert!(message.contains("line 2"), "{message}");
    }
}

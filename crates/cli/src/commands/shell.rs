//! `forebay completions` and `forebay man`: what shells and man(1) know of the commands, generated from them.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;

use crate::help;
use crate::output::Unprinted;

/// Print the completion script for a shell.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay completions bash >/usr/share/bash-completion/completions/forebay
  forebay completions zsh >/usr/share/zsh/vendor-completions/_forebay
  forebay completions fish >~/.config/fish/completions/forebay.fish")]
pub struct Completions {
    /// Name of the shell.
    shell: Shell,
}

/// Write the manual pages of all commands into a directory.
///
/// One page for the program and one for each command: forebay.1, forebay-mount.1, forebay-cluster-join.1, ...
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay man /usr/local/share/man/man1; man forebay-mount")]
pub struct Man {
    /// Directory for the pages; it is created if it does not exist.
    directory: PathBuf,
}

impl Completions {
    pub fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut help::command(), "forebay", &mut script);
        std::io::stdout().write_all(&script).map_err(Unprinted)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Man {
    pub fn run(self) -> Result<ExitCode> {
        let shown = self.directory.display();
        fs::create_dir_all(&self.directory).with_context(|| format!("cannot create {shown}"))?;
        let mut command = help::plain();
        command.build();
        let pages = write_pages(&command, &self.directory)?;
        note!("forebay: {pages} pages in {shown}");
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the page of a command and those of its subcommands; returns how many.
fn write_pages(command: &Command, directory: &Path) -> Result<usize> {
    // clap calls a subcommand by its whole line, such as "forebay cluster join", once it is built.
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = clap_mangen::Man::new(command.clone()).title(name.to_uppercase());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let visible = |inner: &&Command| !inner.is_hide_set() && inner.get_name() != "help";
    command
        .get_subcommands()
        .filter(visible)
        .try_fold(1, |pages, inner| Ok(pages + write_pages(inner, directory)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page_with_its_options_and_examples() {
        let folder = tempfile::tempdir().unwrap();
        Man { directory: folder.path().join("man1") }.run().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
        assert!(read("forebay.1").contains("forebay\\-mount(1)"));
        let mount = read("forebay-mount.1");
        for part in ["\\-\\-foreground", "Examples", "Home folder of the file system"] {
            assert!(mount.contains(part), "{part}");
        }
        assert!(read("forebay-cluster-join.1").contains("\\-\\-disk"));
        let visible = help::plain().get_subcommands().filter(|one| !one.is_hide_set()).count();
        let pages = fs::read_dir(folder.path().join("man1")).unwrap().count();
        assert!(pages > visible, "{pages} pages for {visible} commands");
        assert!(!folder.path().join("man1/forebay-job-shim.1").exists());
    }

    #[test]
    fn completions_of_every_shell_name_the_commands() {
        use clap::ValueEnum as _;
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut help::command(), "forebay", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("umount") && script.contains("fileset"), "{shell}");
        }
    }
}

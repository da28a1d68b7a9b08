//! Job files: scripts with lines of options in them, and TOML with the names of the options as keys.
//!
//! docs/formats/job-file.md describes both. Each line or key is read by itself, by the rules of the
//! command line, so that an error can be told with its line.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use forebay_grid::spec::SCRIPT_BYTES_LIMIT;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::submit::Options;

/// What begins a line of options in a script.
const MARK: &str = "#FOREBAY";

/// What a job file says.
#[derive(Debug, Default)]
pub struct JobFile {
    /// Options, for what the command line leaves open.
    pub options: Options,
    /// What is to run.
    pub program: Program,
}

/// What a job file has to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// Nothing: the command line has to say it.
    #[default]
    None,
    /// A program and its arguments.
    Command(Vec<String>),
    /// A script, by its name and its text.
    Script(String, String),
}

/// Options as they stand in a file.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Words {
    #[command(flatten)]
    options: Options,
}

impl JobFile {
    /// Reads a job file; `-` is standard input.
    ///
    /// # Errors
    /// With the line, where one is to blame.
    pub fn read(path: &Path) -> Result<JobFile> {
        let shown = || path.display().to_string();
        let mut bytes = Vec::new();
        let most = u64::from(SCRIPT_BYTES_LIMIT);
        if path.as_os_str() == "-" {
            std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes)
        } else {
            std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        }
        .with_context(|| {
            format!("job file {} (to run a program: forebay submit -- PROGRAM)", shown())
        })?;
        ensure!(
            bytes.len() as u64 <= most,
            "{} is too long: a job file has at most {most} bytes",
            shown()
        );
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let Some(text) = text else {
            bail!("{0} is not UTF-8; to run a program: forebay submit -- {0}", shown());
        };
        let name = path.file_name().filter(|name| *name != "-");
        let name = name.map_or("script".into(), |name| name.to_string_lossy().into_owned());
        if path.extension().is_some_and(|extension| extension == "toml") {
            toml(&name, &text).with_context(shown)
        } else {
            script(name, text).with_context(shown)
        }
    }
}

/// Reads words as on a command line.
fn options(words: &[String]) -> Result<Options> {
    let parsed = Words::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        anyhow::anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first))
    });
    Ok(parsed?.options)
}

fn script(name: String, text: String) -> Result<JobFile> {
    let options = directives(&text)?;
    Ok(JobFile { options, program: Program::Script(name, text) })
}

/// The options of a script: of later lines if several say the same. They stand before its first command.
fn directives(text: &str) -> Result<Options> {
    let mut found = Options::default();
    let mut commands = false;
    for (number, line) in (1..).zip(text.lines()) {
        let rest = line
            .strip_prefix(MARK)
            .filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        let Some(rest) = rest else {
            commands |= !line.trim_start().is_empty() && !line.trim_start().starts_with('#');
            continue;
        };
        ensure!(
            !commands,
            "line {number}: {MARK} after the first command has no effect; move it up"
        );
        let read = words(rest).and_then(|words| options(&words));
        found = read.with_context(|| format!("line {number}"))?.over(found);
    }
    Ok(found)
}

/// Splits a line into words as a POSIX shell does; from a word on that begins with # it is a comment.
fn words(line: &str) -> Result<Vec<String>> {
    shlex::split(line).context("a quote is not closed, or the line ends with a backslash")
}

fn toml(name: &str, text: &str) -> Result<JobFile> {
    let line = |span: std::ops::Range<usize>| text[..span.start].matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, line);
        anyhow::anyhow!("line {line}: {}", error.message())
    })?;
    let mut file = JobFile::default();
    for (key, value) in table.get_ref() {
        let read = set(&mut file, name, key.get_ref(), value);
        read.with_context(|| format!("line {}", line(key.span())))?;
    }
    if let Program::Script(_, text) = &file.program {
        let below = directives(text).context("script")?;
        file.options = file.options.over(below);
    }
    Ok(file)
}

/// Takes over what one key says.
fn set(file: &mut JobFile, name: &str, key: &str, value: &Spanned<DeValue<'_>>) -> Result<()> {
    let option = key.replace('_', "-");
    let program = match (option.as_str(), value.get_ref()) {
        ("command", DeValue::Array(parts)) => {
            let parts = parts.iter().map(|part| part.get_ref().as_str().map(str::to_owned));
            let parts: Option<Vec<String>> = parts.collect();
            Some(Program::Command(parts.context("command: must be a list of strings")?))
        }
        ("script", DeValue::String(text)) => {
            Some(Program::Script(name.to_owned(), text.to_string()))
        }
        ("command" | "script", _) => {
            bail!("{key}: command must be a list of strings, script must be a string")
        }
        _ => None,
    };
    if let Some(program) = program {
        ensure!(
            file.program == Program::None,
            "command and script exclude each other: give only one of them"
        );
        file.program = program;
        return Ok(());
    }
    let mut words = Vec::new();
    match value.get_ref() {
        DeValue::Boolean(true) => words.push(format!("--{option}")),
        DeValue::Boolean(false) => {
            ensure!(SWITCHES.contains(&option.as_str()), "{key}: only switches can be false");
        }
        DeValue::Array(parts) => {
            for part in parts {
                words.push(format!("--{option}={}", scalar(key, part.get_ref())?));
            }
        }
        DeValue::Table(entries) if option == "env" => {
            for (name, value) in entries {
                let value = scalar(key, value.get_ref())?;
                words.push(format!("--env={}={value}", name.get_ref()));
            }
        }
        value => words.push(format!("--{option}={}", scalar(key, value)?)),
    }
    file.options = options(&words)?.over(std::mem::take(&mut file.options));
    Ok(())
}

/// Options that are there or not.
const SWITCHES: [&str; 3] = ["rerunnable", "checkpoint", "hold"];

fn scalar(key: &str, value: &DeValue<'_>) -> Result<String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => bail!("{key}: must be a string or a whole number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(result: Result<impl std::fmt::Debug>) -> String {
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let line = r#" -q night  -w 'done(1) && ended(x)' -J "a \"b\"" c\ d '' "a\nb" x#y # note "#;
        let expected = [
            "-q",
            "night",
            "-w",
            "done(1) && ended(x)",
            "-J",
            "a \"b\"",
            "c d",
            "",
            "a\\nb",
            "x#y",
        ];
        assert_eq!(words(line).unwrap(), expected);
        assert!(words("").unwrap().is_empty());
        assert!(said(words("-J 'a")).contains("not closed"));
        assert!(said(words("a \\")).contains("backslash"));
    }

    #[test]
    fn options_of_later_lines_win_and_errors_have_their_line() {
        let text =
            "#!/bin/sh\n#FOREBAY -q night -n 4\n# other\n\n#FOREBAY -n 2 --hold\n#FOREBAYS\ntrue\n";
        let spec = directives(text).unwrap().into_spec(vec!["x".into()]).unwrap();
        assert_eq!((spec.queue.unwrap().as_str(), spec.slots, spec.held), ("night", 2, true));
        for (text, line, reason) in [
            ("#!/bin/sh\n#FOREBAY -n 0\n", "line 2", "--slots"),
            ("\n\n#FOREBAY --no-such\n", "line 3", "--no-such"),
            ("true\n#FOREBAY -n 1\n", "line 2", "after the first command"),
            ("#FOREBAY -J 'x\n", "line 1", "not closed"),
            ("#FOREBAY true\n", "line 1", "true"),
            ("#FOREBAY --wait\n", "line 1", "--wait"),
        ] {
            let said = said(directives(text));
            assert!(said.contains(line) && said.contains(reason), "{text}: {said}");
        }
    }

    #[test]
    fn toml_has_the_names_of_the_options() {
        let text = "queue = \"night\"\nslots = 4\ntime_limit = \"2 h\"\nrequeue-exit = \"99\"\n\
                    checkpoint = true\nhold = false\ncommand = [\"sas\", \"a b\"]\n[env]\nA = 1\n";
        let file = toml("x", text).unwrap();
        assert_eq!(file.program, Program::Command(vec!["sas".into(), "a b".into()]));
        let spec = file.options.into_spec(vec!["x".into()]).unwrap();
        assert_eq!((spec.slots, spec.held), (4, false));
        assert!(spec.environment.contains(&("A".into(), "1".into())));
        assert!(spec.requeue_exits.find(99).is_some());
    }

    #[test]
    fn bad_toml_is_refused_with_its_line() {
        for (text, line, reason) in [
            ("slots = 1\nslots = 2\n", "line 2", "duplicate"),
            ("\nslots = 0\n", "line 2", "--slots"),
            ("no_such = 1\n", "line 1", "--no-such"),
            ("slots = true\n", "line 1", "--slots"),
            ("slots = false\n", "line 1", "slots"),
            ("a = 1\nqueue = [\"x\"\n", "line ", ""),
            ("mem = 1.5\n", "line 1", "whole number"),
            ("command = \"x\"\n", "line 1", "list"),
            ("command = [\"x\"]\nscript = \"y\"\n", "line ", "one of them"),
            ("script = '''\n#FOREBAY -n 0\n'''\n", "line 1", "--slots"),
        ] {
            let said = said(toml("x", text));
            assert!(said.contains(line) && said.contains(reason), "{text}: {said}");
        }
    }
}

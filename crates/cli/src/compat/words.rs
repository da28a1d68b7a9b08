//! Options of command lines in the style of Slurm (`--name=value`, `-n4`) and of LSF (`-noheader`, `-o file`).
//!
//! What an option is to us stands in a table for each command: it is read, accepted without effect, or refused with the
//! reason. An option that is in no table is skipped with a warning, so that a newer tool still works. Whether it has a value is
//! not known then: in front of a program it is refused if a word follows that may be either.

use std::slice::Iter;

use anyhow::{Context as _, Result, bail, ensure};

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It has none.
    Nothing,
    /// It has one, behind `=` or in the next word.
    Value,
    /// It may have one, behind `=` or joined to its letter.
    Maybe,
}

/// What an option is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is carried out.
    Read,
    /// It changes nothing that the user would miss.
    Harmless,
    /// It would change something that is not done here: a warning says so.
    Ignored,
    /// It is refused, for this reason.
    Refused(&'static str),
}

/// One option of a command.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Its long name, by which it is looked up; that of LSF without the dash.
    pub name: &'static str,
    /// Its letter, or a space.
    pub letter: char,
    /// Whether it has a value.
    pub takes: Takes,
    /// What it is to us.
    pub used: Use,
}

/// An option that is carried out.
pub const fn read(name: &'static str, letter: char, takes: Takes) -> Opt {
    Opt { name, letter, takes, used: Use::Read }
}

/// An option that changes nothing here.
pub const fn harmless(name: &'static str, letter: char, takes: Takes) -> Opt {
    Opt { name, letter, takes, used: Use::Harmless }
}

/// An option that is skipped with a warning.
pub const fn ignored(name: &'static str, letter: char, takes: Takes) -> Opt {
    Opt { name, letter, takes, used: Use::Ignored }
}

/// An option that is refused.
pub const fn refused(name: &'static str, letter: char, takes: Takes, reason: &'static str) -> Opt {
    Opt { name, letter, takes, used: Use::Refused(reason) }
}

/// How a command's options are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `--name=value`, `--name value`, `-n4`, `-hn 4`.
    Gnu,
    /// `-name value`, and letters that may be joined.
    Lsf,
}

/// Where options end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Before the first word that is not one: what follows belongs to a program.
    FirstWord,
    /// Nowhere: options and words may be mixed.
    End,
}

/// A command was asked for its version: it prints that in place of anything else.
#[derive(Debug, thiserror::Error)]
#[error("-V prints the version of a command: it is not an option of a job")]
pub struct VersionAsked(pub Style);

/// How a command line is read.
#[derive(Clone, Copy, Debug)]
pub struct Grammar {
    /// Name of the command, for warnings.
    pub command: &'static str,
    /// How options are written.
    pub style: Style,
    /// Where they end.
    pub until: Until,
    /// Its options, in tables.
    pub tables: &'static [&'static [Opt]],
}

/// What was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    options: Vec<(&'static str, String)>,
    /// What is not an option, in order.
    pub words: Vec<String>,
}

impl Given {
    /// The value of an option, the last one if it was given more than once; empty if it has none.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| &value[..])
    }

    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Every value of an option, split at commas.
    pub fn list(&self, name: &str) -> Vec<&str> {
        let values = self.options.iter().filter(|(known, _)| *known == name);
        let parts = values.flat_map(|(_, value)| value.split(',')).map(str::trim);
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// Every value of an option, the weakest first.
    pub fn every<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options.iter().filter(move |(known, _)| *known == name).map(|(_, value)| &value[..])
    }

    /// These options, and those of `weaker` where they say nothing. The words are those of `self`.
    pub fn over(mut self, weaker: Given) -> Given {
        self.options.splice(0..0, weaker.options);
        self
    }

    /// Takes variables of the environment for options that were not given.
    pub fn fill_from(&mut self, prefix: &str, variables: &[(&str, &'static str)]) {
        for &(variable, option) in variables {
            let value = std::env::var(format!("{prefix}{variable}")).ok();
            if let Some(value) = value.filter(|_| !self.has(option)) {
                self.set(option, value);
            }
        }
    }

    /// Adds a value that came from somewhere else, such as the environment.
    pub fn set(&mut self, name: &'static str, value: String) {
        self.options.push((name, value));
    }
}

impl Grammar {
    fn options(&self) -> impl Iterator<Item = &'static Opt> {
        self.tables.iter().flat_map(|table| table.iter())
    }

    fn of_letter(&self, letter: char) -> Option<&'static Opt> {
        self.options().find(|option| option.letter == letter && letter != ' ')
    }

    /// The option of a long name, which may be shortened as far as it stays the only one.
    fn of_name(&self, name: &str) -> Option<&'static Opt> {
        let exact = self.options().find(|option| option.name == name);
        let mut longer = self.options().filter(|option| option.name.starts_with(name));
        if exact.is_some() || self.style == Style::Lsf || name.is_empty() {
            return exact;
        }
        longer.next().filter(|_| longer.next().is_none())
    }

    /// Reads the command line of a command; what stands in a script is read by [`Grammar::read_lines`].
    ///
    /// # Errors
    /// As [`Grammar::read`]; [`VersionAsked`].
    pub fn read_command(&self, words: &[String]) -> Result<Given> {
        let given = self.read(words)?;
        if self.style == Style::Gnu && given.has("version") {
            bail!(VersionAsked(self.style));
        }
        Ok(given)
    }

    /// Reads options and words.
    ///
    /// # Errors
    /// If an option lacks its value, has one that it does not take, or is refused; [`VersionAsked`] for `-V` of LSF.
    pub fn read(&self, words: &[String]) -> Result<Given> {
        let mut given = Given::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let is_option = word.len() > 1 && word.starts_with('-');
            if word == "--" || (!is_option && self.until == Until::FirstWord) {
                given.words.extend((word != "--").then(|| word.clone()));
                given.words.extend(rest.cloned());
                return Ok(given);
            }
            if !is_option {
                given.words.push(word.clone());
                continue;
            }
            match word.strip_prefix("--") {
                Some(long) => self.read_long(long, &mut rest, &mut given)?,
                None if self.style == Style::Lsf && self.of_name(&word[1..]).is_some() => {
                    self.read_long(&word[1..], &mut rest, &mut given)?;
                }
                None if self.style == Style::Lsf && word == "-V" => {
                    bail!(VersionAsked(self.style));
                }
                None => self.read_letters(&word[1..], &mut rest, &mut given)?,
            }
        }
        Ok(given)
    }

    /// Reads the lines of options in a script, each by itself: nothing in one of them hides those of another.
    ///
    /// # Errors
    /// As [`Grammar::read`] and [`directives`].
    pub fn read_lines(&self, mark: &str, text: &str) -> Result<Given> {
        let of_a_line = Grammar { until: Until::End, ..*self };
        let mut given = Given::default();
        for (number, words) in directives(mark, text)? {
            let Given { options, words } = of_a_line.read(&words)?;
            given.options.extend(options);
            if !words.is_empty() {
                let words = words.join(" ");
                note!(
                    "{}: warning: line {number}: \"{words}\" is ignored: it belongs to no option",
                    self.command
                );
            }
        }
        Ok(given)
    }

    fn read_long(&self, long: &str, rest: &mut Iter<'_, String>, given: &mut Given) -> Result<()> {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) if self.style == Style::Gnu => (name, Some(value.to_owned())),
            _ => (long, None),
        };
        let Some(option) = self.of_name(name) else {
            let next = if value.is_some() { None } else { rest.as_slice().first() };
            return self.skip(&format!("--{name}"), next);
        };
        let shown = self.shown(option);
        let value = match (option.takes, value) {
            (Takes::Value, None) => rest.next().cloned().with_context(|| lacks_value(&shown))?,
            (Takes::Nothing, Some(_)) => bail!("option '{shown}' does not take a value"),
            (_, value) => value.unwrap_or_default(),
        };
        self.take(option, value, given)
    }

    /// Whether letters of LSF may be joined so: one with a value is the first, or the last and has it in the next word. Else they
    /// are the name of an option that is not known.
    fn may_be_joined(&self, letters: &str) -> bool {
        let count = letters.chars().count();
        let takes_value = |option: &Opt| option.takes != Takes::Nothing;
        let fits = |(at, letter): (usize, char)| match self.of_letter(letter) {
            Some(option) if takes_value(option) => at == 0 || at + 1 == count,
            Some(_) => true,
            None => false,
        };
        let has_own_value = letters.chars().next().and_then(|first| self.of_letter(first));
        has_own_value.is_some_and(takes_value) || letters.chars().enumerate().all(fits)
    }

    fn read_letters(
        &self,
        letters: &str,
        rest: &mut Iter<'_, String>,
        given: &mut Given,
    ) -> Result<()> {
        if self.style == Style::Lsf && !self.may_be_joined(letters) {
            self.refuse_joined_number(letters)?;
            return self.skip(&format!("-{letters}"), rest.as_slice().first());
        }
        let mut after = letters;
        while let Some(letter) = after.chars().next() {
            after = &after[letter.len_utf8()..];
            let Some(option) = self.of_letter(letter) else {
                return self.skip(&format!("-{letter}{after}"), rest.as_slice().first());
            };
            let value = match option.takes {
                Takes::Nothing => String::new(),
                Takes::Maybe => std::mem::take(&mut after).to_owned(),
                Takes::Value if after.is_empty() => {
                    rest.next().cloned().with_context(|| lacks_value(&format!("-{letter}")))?
                }
                Takes::Value => {
                    let joined = std::mem::take(&mut after);
                    joined.strip_prefix('=').unwrap_or(joined).to_owned()
                }
            };
            self.take(option, value, given)?;
        }
        Ok(())
    }

    /// An option as its user writes it.
    fn shown(&self, option: &Opt) -> String {
        match self.style {
            Style::Gnu => format!("--{}", option.name),
            Style::Lsf => format!("-{}", option.name),
        }
    }

    fn take(&self, option: &'static Opt, value: String, given: &mut Given) -> Result<()> {
        match option.used {
            Use::Read => given.options.push((option.name, value)),
            Use::Harmless => {}
            Use::Ignored => {
                let shown = self.shown(option);
                note!("{}: warning: {shown} has no effect on a Forebay grid", self.command);
            }
            Use::Refused(reason) => bail!("{} is not supported: {reason}", self.shown(option)),
        }
        Ok(())
    }

    /// Skips an option that is in no table. `next` is the word that may be its value.
    fn skip(&self, option: &str, next: Option<&String>) -> Result<()> {
        if self.until == Until::FirstWord
            && let Some(word) = next.filter(|word| !word.starts_with('-'))
        {
            bail!(
                "unknown option {option}: \"{word}\" may be its value or begin the command; leave the option out, or write -- before the \
                 command"
            );
        }
        note!("{}: warning: unknown option {option} is ignored", self.command);
        Ok(())
    }

    /// Refuses `-n4` of LSF, which would be an unknown option: its number would be lost.
    fn refuse_joined_number(&self, word: &str) -> Result<()> {
        let at = word.find(|letter: char| letter.is_ascii_digit()).unwrap_or(word.len());
        let (name, number) = word.split_at(at);
        let is_value = self.of_name(name).is_some_and(|option| option.takes == Takes::Value);
        ensure!(number.is_empty() || !is_value, "unknown option -{word}: write -{name} {number}");
        Ok(())
    }
}

fn lacks_value(option: &str) -> String {
    format!("option '{option}' requires a value")
}

/// The words of each line of options in a script, such as `#SBATCH -n 4`, up to its first command, with the number of the line.
///
/// # Errors
/// With the line, if its quotes are not closed.
pub fn directives(mark: &str, text: &str) -> Result<Vec<(usize, Vec<String>)>> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            break;
        }
        let begins = |rest: &&str| rest.starts_with([' ', '\t', '-']);
        if let Some(rest) = line.strip_prefix(mark).filter(begins) {
            let words = shlex::split(rest);
            let words = words.with_context(|| format!("line {number}: a quote is not closed"))?;
            lines.extend((!words.is_empty()).then_some((number, words)));
        }
    }
    Ok(lines)
}

/// Addresses of mail in a list.
pub fn addresses(list: &str) -> Vec<String> {
    list.split([',', ' ']).filter(|address| !address.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Opt] = &[
        read("ntasks", 'n', Takes::Value),
        read("noheader", 'h', Takes::Nothing),
        read("wait", 'W', Takes::Nothing),
        read("requeue", ' ', Takes::Nothing),
        read("requests", ' ', Takes::Value),
        read("nice", ' ', Takes::Maybe),
        harmless("verbose", 'v', Takes::Nothing),
        refused("gpus", 'G', Takes::Value, "there are none"),
    ];
    const GNU: Grammar =
        Grammar { command: "x", style: Style::Gnu, until: Until::FirstWord, tables: &[TABLE] };
    const LSF: Grammar = Grammar { style: Style::Lsf, until: Until::End, ..GNU };

    fn read_words(grammar: &Grammar, line: &str) -> Result<Given> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        grammar.read(&words)
    }

    #[test]
    fn options_are_read_as_getopt_reads_them() {
        let given = read_words(&GNU, "-n4 -vhW --requests=a,b --nice a.sh -n 9").unwrap();
        assert_eq!(given.value("ntasks"), Some("4"));
        assert!(given.has("noheader") && given.has("wait") && !given.has("requeue"));
        assert_eq!((given.list("requests"), given.value("nice")), (vec!["a", "b"], Some("")));
        assert_eq!(given.words, ["a.sh", "-n", "9"]);
        assert_eq!(read_words(&GNU, "--nt 3").unwrap().value("ntasks"), Some("3"));
        assert_eq!(read_words(&GNU, "-n=3 -- -x").unwrap().words, ["-x"]);
        assert!(!read_words(&GNU, "--req").unwrap().has("requeue"));
    }

    #[test]
    fn every_command_of_lsf_has_a_version_and_none_of_slurm_has_it_by_this_letter() {
        const VERSION: &[Opt] = &[read("version", 'V', Takes::Nothing)];
        assert!(read_words(&LSF, "a -noheader -V").unwrap_err().is::<VersionAsked>());
        let until = Grammar { until: Until::FirstWord, ..LSF };
        assert_eq!(read_words(&until, "-n 4 a.sh -V").unwrap().words, ["a.sh", "-V"]);
        assert!(read_words(&GNU, "-V").is_ok());
        let slurm = Grammar { tables: &[VERSION], ..GNU };
        assert!(read_words(&slurm, "-V").is_ok(), "a line of a script");
        let asked = slurm.read_command(&["--version".to_owned()]).unwrap_err();
        assert!(asked.is::<VersionAsked>());
        assert!(slurm.read_command(&["word".to_owned()]).is_ok());
    }

    #[test]
    fn a_bad_option_says_what_is_wrong() {
        for (line, reason) in [
            ("--ntasks", "'--ntasks' requires a value"),
            ("-n", "'-n' requires a value"),
            ("--wait=3", "does not take a value"),
            ("-G 1", "--gpus is not supported: there are none"),
        ] {
            let said = format!("{:#}", read_words(&GNU, line).unwrap_err());
            assert!(said.contains(reason), "{line}: {said}");
        }
    }

    #[test]
    fn options_of_lsf_have_one_dash_and_letters_may_be_joined() {
        let given = read_words(&LSF, "12 -noheader -hn 3 13 -requests x").unwrap();
        assert!(given.has("noheader"));
        assert_eq!((given.value("ntasks"), given.value("requests")), (Some("3"), Some("x")));
        assert_eq!(given.words, ["12", "13"]);
    }

    #[test]
    fn weaker_options_fill_what_is_left_open() {
        let strong = read_words(&GNU, "-n 1 a").unwrap();
        let both = strong.over(read_words(&GNU, "-n 2 -h b").unwrap());
        assert_eq!((both.value("ntasks"), both.has("noheader")), (Some("1"), true));
        assert_eq!(both.words, ["a"]);
    }

    #[test]
    fn lines_of_options_stand_before_the_first_command() {
        let text = "#!/bin/sh\n#SBATCH -n 4 # four\n#SBATCHX -n 5\n\n# note\n#SBATCH-h\n\
                    #SBATCH --requests='a b'\ntrue\n#SBATCH -W\n";
        let lines: Vec<(usize, String)> = directives("#SBATCH", text)
            .unwrap()
            .into_iter()
            .map(|(number, words)| (number, words.join(" ")))
            .collect();
        let expected = [(2, "-n 4"), (6, "-h"), (7, "--requests=a b")];
        assert_eq!(lines, expected.map(|(number, line)| (number, line.to_owned())));
        assert!(directives("#SBATCH", "#SBATCH -J 'x\n").is_err());
    }

    #[test]
    fn an_unknown_option_does_not_end_the_options_of_a_script() {
        let text =
            "#!/bin/sh\n#BSUB -colour red -ntasks 4\n#BSUB -noheader green\n#BSUB -n 5\ntrue\n";
        let given = LSF.read_lines("#BSUB", text).unwrap();
        assert!(given.has("noheader") && given.words.is_empty());
        assert_eq!(given.list("ntasks"), ["4", "5"]);
        let lacking = "#BSUB -ntasks\n#BSUB -noheader\n";
        assert!(LSF.read_lines("#BSUB", lacking).is_err(), "a value is in the same line");
    }

    #[test]
    fn a_word_behind_an_unknown_option_is_not_taken_for_the_program() {
        for grammar in [GNU, Grammar { until: Until::FirstWord, ..LSF }] {
            for line in ["-colour red a.sh", "-n 2 --colour red", "-n 2 -C red a.sh"] {
                let said = format!("{:#}", read_words(&grammar, line).unwrap_err());
                assert!(said.contains("\"red\" may be its value"), "{line}: {said}");
            }
            let given = read_words(&grammar, "--colour -n 2 a.sh").unwrap();
            assert_eq!(
                (given.value("ntasks"), &given.words[..]),
                (Some("2"), &["a.sh".into()][..])
            );
            assert_eq!(read_words(&grammar, "-C -- a.sh").unwrap().words, ["a.sh"]);
        }
        assert_eq!(read_words(&GNU, "--colour=red a.sh").unwrap().words, ["a.sh"]);
        assert_eq!(read_words(&LSF, "-colour 12").unwrap().words, ["12"]);
    }

    #[test]
    fn an_unknown_name_of_lsf_is_not_read_as_letters() {
        const NAMES: &[Opt] = &[read("n", ' ', Takes::Value)];
        let given = read_words(&LSF, "-hun -vn 3").unwrap();
        assert!(!given.has("noheader") && given.value("ntasks") == Some("3"));
        assert_eq!(read_words(&LSF, "-n3").unwrap().value("ntasks"), Some("3"));
        // Of commands whose options have no letters.
        let names = Grammar { tables: &[NAMES], ..LSF };
        let said = format!("{:#}", read_words(&names, "-n4").unwrap_err());
        assert!(said.contains("write -n 4"), "{said}");
    }
}

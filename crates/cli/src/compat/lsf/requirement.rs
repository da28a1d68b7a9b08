//! Requirements of resources: `-R "select[...] rusage[mem=512,lic=1] span[hosts=1]"` and `-gpu "num=2"`.

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::ByteSize;
use forebay_grid::parse::features::Features;
use forebay_grid::parse::resources::{GPU, Resources};
use forebay_grid::vocabulary::ResourceName;

use super::super::words::Given;
use super::units::{memory, unit_for_limits};

/// Names in `rusage[...]` that say something else than how much of a resource is held, or what is not counted here.
const NOT_COUNTED: [&str; 9] =
    ["swp", "tmp", "duration", "decay", "r15s", "r1m", "r15m", "ut", "io"];

/// Names of LSF for devices.
const GPUS: [&str; 2] = ["ngpus_physical", "ngpus"];

/// What a job's requirements ask for.
#[derive(Debug, Default)]
pub struct Needs {
    /// Memory that is set aside.
    pub memory: Option<ByteSize>,
    /// Counted resources.
    pub resources: Resources,
    /// Features that its host must have.
    pub features: Option<Features>,
    /// Comparisons of a selection, such as `mem>100`.
    comparisons: Vec<String>,
    /// Other parts that have no effect.
    without_effect: Vec<String>,
}

impl Needs {
    /// What the options of a job say.
    ///
    /// # Errors
    /// If a requirement is wrong, or wants several hosts.
    pub fn of(given: &Given) -> Result<Needs> {
        let mut needs = Needs::default();
        let mut counted = Vec::new();
        for text in given.every("R") {
            needs.add(text, &mut counted)?;
        }
        if let Some(text) = given.value("gpu") {
            counted.push((GPU.parse().map_err(anyhow::Error::msg)?, gpus(text)?));
        }
        needs.resources = counted.into_iter().collect();
        Ok(needs)
    }

    fn add(&mut self, text: &str, counted: &mut Vec<(ResourceName, u32)>) -> Result<()> {
        let (features, comparisons) = selected(text)?;
        if let Some(features) = features {
            self.features = Some(features.and(self.features.take()));
        }
        self.comparisons.extend(comparisons);
        for name in ["order", "affinity"] {
            let said = section(text, name).filter(|said| !said.is_empty());
            self.without_effect.extend(said.map(|said| format!("{name}[{said}]")));
        }
        if let Some(span) = section(text, "span") {
            ensure!(
                !span.starts_with("ptile") || span == "ptile=1",
                "span[{span}]: a job of a Forebay grid runs on one host: span[hosts=1]"
            );
        }
        let Some(usage) = section(text, "rusage") else { return Ok(()) };
        ensure!(
            !usage.contains("||"),
            "rusage[{usage}]: alternatives (||) are not supported; give one requirement"
        );
        for part in usage.split([',', ':']).map(str::trim).filter(|part| !part.is_empty()) {
            let refused = || format!("rusage[{usage}]: {part}: expected NAME=NUMBER");
            let (name, value) = part.split_once('=').with_context(refused)?;
            let (name, value) = (name.trim(), value.trim());
            if name == "mem" {
                let amount = memory(value, unit_for_limits().unwrap_or('M'))?;
                self.memory = amount.or(self.memory);
                continue;
            }
            if NOT_COUNTED.contains(&name) {
                self.without_effect.push(format!("rusage[{part}]"));
                continue;
            }
            let count: u32 = value.parse().with_context(refused)?;
            let name = if GPUS.contains(&name) { GPU } else { name };
            let name = name.parse::<ResourceName>().map_err(anyhow::Error::msg);
            counted.push((name.with_context(refused)?, count));
        }
        Ok(())
    }

    /// What has no effect for a job for which so much memory is set aside: a host that has it free is one on which `mem` is as high.
    fn without_effect(&self, memory: Option<ByteSize>) -> Vec<String> {
        let is_met = |comparison: &&String| is_met(comparison, memory);
        let comparisons = self.comparisons.iter().filter(|comparison| !is_met(comparison));
        let comparisons = comparisons.map(|comparison| format!("select[{comparison}]"));
        comparisons.chain(self.without_effect.iter().cloned()).collect()
    }

    /// Warns of what has no effect for a job for which so much memory is set aside.
    pub fn warn(&self, command: &str, memory: Option<ByteSize>) {
        for said in self.without_effect(memory) {
            note!("{command}: warning: -R \"{said}\" has no effect on a Forebay grid");
        }
    }
}

/// Whether a comparison holds on every host that takes a job with so much memory.
fn is_met(comparison: &str, set_aside: Option<ByteSize>) -> bool {
    let text: String = comparison.chars().filter(|c| !" '\"".contains(*c)).collect();
    if let Some(kind) = text.strip_prefix("type==") {
        return ["any", "local"].contains(&kind);
    }
    let least = text.strip_prefix("mem>").map(|rest| rest.strip_prefix('=').unwrap_or(rest));
    let Some(least) = least else { return false };
    let least = memory(least, unit_for_limits().unwrap_or('M'));
    least.is_ok_and(|least| least <= set_aside)
}

/// Names in a selection that are not features: indices of load, other names for them, and what every host has.
const OF_EVERY_HOST: [&str; 25] = [
    "any", "cpu", "cpuf", "idle", "io", "it", "local", "login", "ls", "maxmem", "maxswp", "maxtmp",
    "mem", "ncpus", "ndisks", "pg", "r15m", "r15s", "r1m", "server", "swap", "swp", "tmp", "type",
    "ut",
];

/// What begins a section; a text before the first one is a selection.
const SECTIONS: [&str; 7] = ["select[", "order[", "rusage[", "span[", "same[", "cu[", "affinity["];

/// Signs between operands of comparisons, the longer ones first.
const OPERATORS: [&str; 11] = ["==", "!=", ">=", "<=", ">", "<", "=", "+", "-", "*", "/"];

/// The most parts of a selection.
const PARTS_MAX: u32 = 200;

/// A selection that is being read. What says nothing of features is none.
struct Selection<'a> {
    whole: &'a str,
    rest: &'a str,
    parts: u32,
    comparisons: Vec<&'a str>,
}

impl<'a> Selection<'a> {
    /// The features that a selection names, in the grid's notation, and its comparisons. Those of load and capacity say nothing here:
    /// the grid places jobs by what they set aside.
    fn read(whole: &'a str) -> Result<(Option<String>, Vec<&'a str>)> {
        let mut selection = Selection { whole, rest: whole, parts: 0, comparisons: Vec::new() };
        let read = selection.any()?;
        ensure!(selection.rest.trim().is_empty(), selection.refused());
        Ok((read, selection.comparisons))
    }

    fn refused(&self) -> String {
        match self.rest.trim() {
            "" => format!("select[{}]: it ends too early", self.whole),
            rest => format!("select[{}]: unexpected \"{rest}\"", self.whole),
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn any(&mut self) -> Result<Option<String>> {
        let mut parts = vec![self.all()?];
        while self.take("||") {
            parts.push(self.all()?);
        }
        let count = parts.len();
        let named: Vec<String> = parts.into_iter().flatten().collect();
        ensure!(
            named.is_empty() || named.len() == count,
            "select[{}]: features and comparisons are not alternatives on a Forebay grid",
            self.whole
        );
        Ok(joined(&named, " || "))
    }

    fn all(&mut self) -> Result<Option<String>> {
        let mut parts = vec![self.one()?];
        while self.take("&&") {
            parts.push(self.one()?);
        }
        let named: Vec<String> = parts.into_iter().flatten().collect();
        Ok(joined(&named, " && "))
    }

    fn one(&mut self) -> Result<Option<String>> {
        self.parts += 1;
        ensure!(self.parts <= PARTS_MAX, "select[...]: it has more than {PARTS_MAX} parts");
        if self.take("!") {
            let inner = self.one()?.with_context(|| {
                let whole = self.whole;
                format!("select[{whole}]: the opposite of a comparison is not supported on a Forebay grid")
            })?;
            return Ok(Some(format!("!{inner}")));
        }
        let (text, before) = (self.rest, self.comparisons.len());
        let first = self.operand()?;
        let mut is_comparison = false;
        while OPERATORS.iter().any(|sign| self.take(sign)) {
            is_comparison = true;
            self.operand()?;
        }
        if !is_comparison {
            return Ok(first);
        }
        let text = text[..text.len() - self.rest.len()].trim();
        ensure!(
            !text.starts_with("hname"),
            "select[{text}] is not supported: choose hosts by -m, such as -m h1 or -m \"all ~h1\""
        );
        // Those in its own parentheses are parts of it.
        self.comparisons.truncate(before);
        self.comparisons.push(text);
        Ok(None)
    }

    /// A name, a number, a text or what stands in parentheses.
    fn operand(&mut self) -> Result<Option<String>> {
        if self.take("(") {
            return self.inner();
        }
        for quote in ["'", "\""] {
            if self.take(quote) {
                let (_, rest) = self.rest.split_once(quote).with_context(|| self.refused())?;
                self.rest = rest;
                return Ok(None);
            }
        }
        let rest = self.rest.trim_start();
        let belongs = |c: char| c.is_alphanumeric() || "_.-@$".contains(c);
        let (word, rest) = rest.split_at(rest.find(|c| !belongs(c)).unwrap_or(rest.len()));
        ensure!(!word.is_empty(), self.refused());
        self.rest = rest;
        if word == "defined" && self.take("(") {
            return self.inner();
        }
        Ok((!OF_EVERY_HOST.contains(&word)).then(|| word.to_owned()))
    }

    /// What stands in parentheses, behind the first one.
    fn inner(&mut self) -> Result<Option<String>> {
        let inner = self.any()?;
        ensure!(self.take(")"), self.refused());
        Ok(inner)
    }
}

fn joined(parts: &[String], sign: &str) -> Option<String> {
    match parts {
        [] => None,
        [only] => Some(only.clone()),
        parts => Some(format!("({})", parts.join(sign))),
    }
}

/// The features and comparisons of `select[...]`, or of the text before the first section.
fn selected(text: &str) -> Result<(Option<Features>, Vec<String>)> {
    let first = SECTIONS.iter().filter_map(|name| text.find(*name)).min().unwrap_or(text.len());
    let said = section(text, "select").unwrap_or(&text[..first]).trim();
    // Braces are around alternatives and around parts of jobs on several hosts.
    if said.is_empty() || said.contains('{') {
        return Ok((None, Vec::new()));
    }
    let (needed, comparisons) = Selection::read(said)?;
    let needed = needed.map(|needed| needed.parse::<Features>()).transpose();
    let needed = needed.with_context(|| format!("select[{said}]"))?;
    Ok((needed, comparisons.into_iter().map(str::to_owned).collect()))
}

/// The text of a section, such as `rusage[...]`.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("{name}["))?;
    Some(rest.split(']').next().unwrap_or_default().trim())
}

/// How many devices `-gpu` asks for: `num=2:mode=shared`, or `-` for one.
fn gpus(text: &str) -> Result<u32> {
    let parts = text.split(':').filter_map(|part| part.split_once('='));
    let mut count = 1;
    for (name, value) in parts {
        match name.trim() {
            "num" => {
                let number = value.split('/').next().unwrap_or_default().trim();
                let number = number.parse().ok().filter(|number| *number > 0);
                count = number.with_context(|| format!("-gpu {text}: num= is not a number"))?;
            }
            "gmodel" | "gmem" | "gtile" => bail!(
                "-gpu {text}: hosts of a Forebay grid have devices of one kind; give num=N only"
            ),
            _ => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &[(&'static str, &str)]) -> Result<Needs> {
        let mut given = Given::default();
        options.iter().for_each(|(name, value)| given.set(name, (*value).to_owned()));
        Needs::of(&given)
    }

    #[test]
    fn the_memory_of_a_requirement_is_found() {
        let mib = |text| of(&[("R", text)]).unwrap().memory.map(|bytes| bytes.0 >> 20);
        assert_eq!(mib("select[mem>=100] rusage[mem=512]"), Some(512));
        assert_eq!(mib("rusage[ngpus=0,mem=2GB]"), Some(2048));
        assert_eq!(mib("span[hosts=1]"), None);
        assert!(of(&[("R", "span[ptile=4]")]).is_err());
    }

    #[test]
    fn features_of_a_selection_are_required() {
        let text = |text| of(&[("R", text)]).unwrap().features.map(|features| features.to_string());
        assert_eq!(
            text("select[ssd && mem>=100 && !slow] rusage[mem=1]").as_deref(),
            Some("ssd && !slow")
        );
        assert_eq!(text("select[defined(ssd)]").as_deref(), Some("ssd"));
        assert_eq!(text("select[a100 || h100]").as_deref(), Some("a100 || h100"));
        assert_eq!(text("ssd").as_deref(), Some("ssd"));
        assert_eq!(text("ssd span[hosts=1]").as_deref(), Some("ssd"));
        for (said, needed) in [
            ("select[(ssd && mem>100)]", "ssd"),
            ("select[type==any && (ssd || nvme)]", "ssd || nvme"),
            ("select[ssd && (mem > 100 || swp>5) && !(a || defined(b))]", "ssd && !(a || b)"),
            ("select[(mem+swp) >= 2*100 && ssd && model!='h 1']", "ssd"),
            ("ssd && r15s<2 order[ut] rusage[mem=5]", "ssd"),
        ] {
            assert_eq!(text(said).as_deref(), Some(needed), "{said}");
        }
        for none in [
            "select[type==any]",
            "select[mem>1 || r1m<2]",
            "select[server && r15m < 1.5]",
            "span[hosts=1]",
            "rusage[mem=5]",
            "2*{rusage[mem=5]}",
        ] {
            assert_eq!(text(none), None, "{none}");
        }
        let two = of(&[("R", "select[a]"), ("R", "select[b]")]).unwrap().features.unwrap();
        assert_eq!(two.to_string(), "b && a");
        let deep = format!("select[{}a{}]", "(".repeat(300), ")".repeat(300));
        for bad in [
            "select[a || mem>1]",
            "select[a b]",
            "select[!(mem>1)]",
            "select[(a]",
            "select[a &&]",
            "select[mem>]",
            "select[model=='h]",
            "select[hname==h1]",
            &deep,
        ] {
            assert!(of(&[("R", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_has_no_effect_is_named_unless_every_host_that_takes_the_job_meets_it() {
        let of = |text: &str| {
            let needs = of(&[("R", text)]).unwrap();
            needs.without_effect(needs.memory).join(" ")
        };
        for silent in [
            "select[mem>=512 && type==any] rusage[mem=512] span[hosts=1]",
            "select[mem > 500M && type == local] rusage[mem=512]",
            "select[ssd] same[type] cu[type=rack]",
        ] {
            assert_eq!(of(silent), "", "{silent}");
        }
        assert_eq!(of("select[mem>600] rusage[mem=512]"), "select[mem>600]");
        assert_eq!(of("select[mem>600]"), "select[mem>600]");
        assert_eq!(
            of("select[ssd && (mem+swp) > 5 && type==X86] order[ut:mem] affinity[core(1)]"),
            "select[(mem+swp) > 5] select[type==X86] order[ut:mem] affinity[core(1)]"
        );
        assert_eq!(
            of("rusage[mem=5, tmp=100:duration=10, swp=3]"),
            "rusage[tmp=100] rusage[duration=10] rusage[swp=3]"
        );
    }

    #[test]
    fn licences_and_devices_of_a_requirement_are_counted() {
        let text = |options: &[_]| of(options).unwrap().resources.to_string();
        assert_eq!(text(&[("R", "rusage[sas=2:duration=5, tmp=100] span[hosts=1]")]), "sas:2");
        assert_eq!(text(&[("R", "rusage[ngpus_physical=2]"), ("R", "rusage[r=1]")]), "gpu:2,r:1");
        assert_eq!(text(&[("gpu", "num=2:mode=exclusive_process")]), "gpu:2");
        assert_eq!(
            (text(&[("gpu", "-")]), text(&[("R", "rusage[ngpus=0]")])),
            ("gpu:1".into(), String::new())
        );
        for bad in ["rusage[sas]", "rusage[sas=x]", "rusage[a=1||b=1]", "rusage[a b=1]"] {
            assert!(of(&[("R", bad)]).is_err(), "{bad}");
        }
        assert!(of(&[("gpu", "num=0")]).is_err() && of(&[("gpu", "gmodel=V100")]).is_err());
    }
}

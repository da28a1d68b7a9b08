//! sacctmgr and sshare, as far as tools ask them whether an account is there: a grid takes every project.

use std::process::ExitCode;

use anyhow::Result;

use super::super::row::me;

/// Runs sacctmgr: what it would list is nothing but this user, whose account is `default`; it changes nothing.
pub fn sacctmgr(arguments: &[String]) -> Result<ExitCode> {
    let lists = arguments.iter().any(|word| ["list", "show"].contains(&&word[..]));
    anyhow::ensure!(lists, "a Forebay grid keeps no accounts: sacctmgr only lists");
    let word =
        |name: &str| arguments.iter().any(|word| word.to_ascii_lowercase().starts_with(name));
    if word("user") || word("assoc") {
        outln!("{}", if word("format=account") { "default".to_owned() } else { me() });
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs sshare: the one account.
pub fn sshare(_arguments: &[String]) -> Result<ExitCode> {
    outln!("default");
    Ok(ExitCode::SUCCESS)
}

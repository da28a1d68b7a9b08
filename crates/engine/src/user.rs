//! Users of the system, by the names that the grid knows them by.

use anyhow::{Context as _, Result, bail};
use forebay_grid::vocabulary::UserName;
pub use forebay_process::user::Account;
use forebay_process::user::{group_name_of, number_of};

/// What is said of a user database that cannot be asked.
const SILENT: &str = "the user database does not answer";

/// The name of a user; the number, if the system knows no name.
///
/// # Errors
/// If the name cannot be a user's on the grid or the number is another user's name, or the user database does not answer.
pub fn name_of(uid: u32) -> Result<UserName> {
    let name = match forebay_process::user::name_of(uid).context(SILENT)? {
        Some(name) => name,
        None => {
            let number = uid.to_string();
            unnamed(uid, number_of(&number).context(SILENT)?)?;
            number
        }
    };
    name.parse().map_err(anyhow::Error::msg)
}

/// Refuses a user without a name whose number is the name of another one: they would be one user.
fn unnamed(uid: u32, holder: Option<u32>) -> Result<()> {
    match holder.filter(|holder| *holder != uid) {
        Some(holder) => bail!("it has no name, and its number is the name of user {holder}"),
        None => Ok(()),
    }
}

/// Who this process is.
///
/// # Errors
/// As [`name_of`].
pub fn own_name() -> Result<UserName> {
    name_of(rustix::process::geteuid().as_raw())
}

/// Whether a user exists, as far as that can be known. One without a name goes by the number.
#[must_use]
pub fn may_exist(user: &UserName) -> bool {
    let is_number = user.as_str().parse::<u32>().is_ok();
    // A user database that cannot be asked says nothing against anybody.
    is_number || !matches!(number_of(user.as_str()), Ok(None))
}

/// The account of a user by name, or by number where there is no name.
///
/// # Errors
/// If there is no such user, if the user database does not answer, or if there is no account and the group of the
/// same number is somebody's: what it may do is not the user's to have.
pub fn account_of(user: &UserName) -> Result<Account> {
    if let Some(account) = Account::named(user.as_str()).context(SILENT)? {
        return Ok(account);
    }
    let number = user.as_str().parse();
    let uid: u32 = number.with_context(|| format!("there is no user {user} on this host"))?;
    if let Some(group) = group_name_of(uid).context(SILENT)? {
        bail!("user {uid} has no account on this host, and group {uid} is {group} there");
    }
    Ok(Account { uid, gid: uid, groups: vec![uid], home: "/".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_not_the_one_whose_name_is_its_number() {
        assert!(unnamed(4711, None).is_ok() && unnamed(4711, Some(4711)).is_ok());
        let refused = unnamed(4711, Some(12)).unwrap_err().to_string();
        assert_eq!(refused, "it has no name, and its number is the name of user 12");
        assert_eq!(name_of(4_000_000_001).unwrap().as_str(), "4000000001");
    }
}

//! Whom a job notifies, and of what.

use serde::{Deserialize, Serialize};

/// The most addresses of one job.
pub const ADDRESSES_MAX: usize = 16;
/// The most bytes of an address or a URL.
pub const ADDRESS_BYTES_MAX: usize = 2048;

/// What a job notifies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moments {
    /// It has started; of an array, its first element.
    Begin,
    /// All of it has ended, however that was.
    End,
    /// All of it has ended, and it did not succeed.
    Fail,
}

impl std::str::FromStr for Moments {
    type Err = String;

    fn from_str(text: &str) -> Result<Moments, String> {
        match text {
            "begin" => Ok(Moments::Begin),
            "end" => Ok(Moments::End),
            "fail" => Ok(Moments::Fail),
            _ => Err(format!("\"{text}\": choose from begin, end and fail")),
        }
    }
}

/// Whom a job notifies, and of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// Of what.
    pub on: Vec<Moments>,
    /// Addresses of mail.
    pub mail: Vec<String>,
    /// Where it is sent by POST.
    pub webhook: Option<String>,
}

impl Notify {
    /// The notifications that options ask for, if any: of the end if they do not say of what, and to `user` if not to whom.
    #[must_use]
    pub fn asked(
        mut on: Vec<Moments>,
        mut mail: Vec<String>,
        webhook: Option<String>,
        user: impl FnOnce() -> String,
    ) -> Option<Box<Notify>> {
        if on.is_empty() && mail.is_empty() && webhook.is_none() {
            return None;
        }
        if on.is_empty() {
            on.push(Moments::End);
        }
        if mail.is_empty() && webhook.is_none() {
            mail.push(user());
        }
        Some(Box::new(Notify { on, mail, webhook }))
    }

    /// Whether it notifies of this.
    #[must_use]
    pub fn of(&self, moment: Moments) -> bool {
        self.on.contains(&moment)
    }

    /// Why it cannot be.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.mail.is_empty() && self.webhook.is_none() {
            return Some("a notification needs an address: give --mail or --webhook".to_owned());
        }
        if self.mail.len() > ADDRESSES_MAX {
            return Some(format!("a job notifies at most {ADDRESSES_MAX} addresses"));
        }
        if let Some(url) = &self.webhook
            && let Some(fault) = webhook_fault(url)
        {
            return Some(fault);
        }
        self.mail.iter().find_map(|address| mail_fault(address))
    }
}

/// Why a text is not the URL of a webhook.
#[must_use]
pub fn webhook_fault(url: &str) -> Option<String> {
    let fine = (url.starts_with("https://") || url.starts_with("http://"))
        && url.len() <= ADDRESS_BYTES_MAX
        && !url.contains(|c: char| c.is_control() || c.is_whitespace());
    (!fine)
        .then(|| format!("webhook \"{url}\": expected a URL that begins with https:// or http://"))
}

/// Why a text is not an address of mail. A user of the machine is one.
#[must_use]
pub fn mail_fault(address: &str) -> Option<String> {
    let fine = !address.is_empty()
        && address.len() <= ADDRESS_BYTES_MAX
        && !address.starts_with('-')
        && !address.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',');
    (!fine).then(|| format!("mail address \"{address}\": expected one such as ann@example.com"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_notified() {
        let notify = |mail: &str, webhook: Option<&str>| Notify {
            on: vec![Moments::End],
            mail: vec![mail.to_owned()],
            webhook: webhook.map(str::to_owned),
        };
        assert_eq!(notify("ann@example.com", Some("https://h/x")).fault(), None);
        for (mail, webhook) in [
            ("a\nBcc: b@c", None),
            ("-oQ/tmp", None),
            ("", None),
            ("a,b", None),
            ("ann", Some("file:///etc/passwd")),
            ("ann", Some("http://h/\r\nX: y")),
        ] {
            assert!(notify(mail, webhook).fault().is_some(), "{mail:?} {webhook:?}");
        }
        assert!(Notify { on: vec![Moments::End], ..Notify::default() }.fault().is_some());
    }
}

//! Requests and answers, as everything behind the connection sees them.

use bytes::Bytes;

use crate::problem::Problem;

/// A request that was read as a whole.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Method, such as `GET`.
    pub method: String,
    /// Path, as it was sent.
    pub path: String,
    /// Parameters behind the path, decoded.
    pub query: Vec<(String, String)>,
    /// Headers with their names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Where events come from.
pub type Events = tokio::sync::mpsc::Receiver<Bytes>;

/// What is sent.
pub enum Body {
    /// Bytes.
    Whole(Vec<u8>),
    /// Events as they come.
    Events(Events),
}

/// An answer.
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Body,
}

impl Request {
    /// A header by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// A parameter behind the path.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// A cookie.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let cookies = self.header("cookie")?.split(';');
        cookies
            .filter_map(|one| one.trim().split_once('='))
            .find(|(key, _)| *key == name)
            .map(|f| f.1)
    }

    /// What a form sends.
    #[must_use]
    pub fn form(&self) -> Vec<(String, String)> {
        parameters(&String::from_utf8_lossy(&self.body))
    }
}

impl Reply {
    /// Bytes of a type.
    #[must_use]
    pub fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Reply {
        let headers = vec![("content-type", kind.to_owned())];
        Reply { status, headers, body: Body::Whole(body.into()) }
    }

    /// JSON.
    #[must_use]
    pub fn json(status: u16, value: &serde_json::Value) -> Reply {
        Reply::new(status, "application/json", value.to_string())
    }

    /// A problem.
    #[must_use]
    pub fn problem(problem: &Problem) -> Reply {
        let body = problem.json().to_string();
        let reply = Reply::new(problem.status, "application/problem+json", body);
        if problem.status == 401 { reply.with("www-authenticate", "Bearer") } else { reply }
    }

    /// Another page.
    #[must_use]
    pub fn see(to: &str) -> Reply {
        Reply::new(303, "text/plain; charset=utf-8", "").with("location", to)
    }

    /// A stream of events.
    #[must_use]
    pub fn events(events: Events) -> Reply {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        Reply { status: 200, headers, body: Body::Events(events) }
    }

    /// With one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }
}

/// Reads `a=b&c=d`.
pub(super) fn parameters(text: &str) -> Vec<(String, String)> {
    let one = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(&key.replace('+', " ")), decoded(&value.replace('+', " ")))
    };
    text.split('&').filter(|part| !part.is_empty()).map(one).collect()
}

/// Undoes percent-encoding; what is not one stays as it is.
#[must_use]
pub fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match byte {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_nothing_makes_them_fail() {
        let found = parameters("job=12%5B3%5D&a+b=c%2&x&%zz=%");
        let pairs: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(pairs, [("job", "12[3]"), ("a b", "c%2"), ("x", ""), ("%zz", "%")]);
        assert_eq!(decoded("%ff%C3%A4"), "\u{fffd}ä");
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let headers = vec![("cookie".to_owned(), "xa=1; a=2;b=3".to_owned())];
        let request = Request { headers, ..Request::default() };
        assert_eq!((request.cookie("a"), request.cookie("b")), (Some("2"), Some("3")));
        assert_eq!(request.cookie("c"), None);
    }
}

//! Where a daemon answers monitors, and who may ask.

use std::fmt;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use subtle::ConstantTimeEq as _;

/// Length of a token in characters.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

/// An address or a token that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// It is not an address.
    #[error(
        "\"{0}\" is not an address for metrics: give a port (9464), or an IP address and a port (10.0.0.5:9464)"
    )]
    Address(String),
    /// Other machines could ask without a token.
    #[error(
        "metrics on {0}: other machines reach this address, so a token is needed: create one \
         (umask 077; openssl rand -hex 32 > FILE) and name its file with --metrics-token; or add --metrics-tls on a node \
         of a cluster, or use a loopback address"
    )]
    NoToken(SocketAddr),
    /// The token cannot be used.
    #[error("the token file {file} cannot be used: {reason}")]
    Token {
        /// Which file.
        file: String,
        /// Why not.
        reason: String,
    },
}

/// An address to answer at: on this machine alone if only a port is given.
///
/// # Errors
/// [`ListenError::Address`].
pub fn address(text: &str) -> Result<SocketAddr, ListenError> {
    let wrong = || ListenError::Address(text.to_owned());
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        Err(_) => text.parse().map_err(|_| wrong())?,
    };
    if address.port() == 0 { Err(wrong()) } else { Ok(address) }
}

/// What a monitor has to know to be answered.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads a token from a file that only its owner can read.
    ///
    /// # Errors
    /// [`ListenError::Token`].
    pub fn read(file: &Path) -> Result<Token, ListenError> {
        Token::of(file)
            .map_err(|reason| ListenError::Token { file: file.display().to_string(), reason })
    }

    fn of(path: &Path) -> Result<Token, String> {
        let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
        let about = file.metadata().map_err(|error| error.to_string())?;
        if about.mode() & 0o077 != 0 {
            return Err(format!("other users can read or write it: chmod 600 {}", path.display()));
        }
        let owner = about.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err("it belongs to another user".to_owned());
        }
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text).map_err(|error| error.to_string())?;
        let text = text.trim();
        if !TOKEN_LENGTH.contains(&text.len()) || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err("a token has 16 to 256 characters without spaces".to_owned());
        }
        Ok(Token(text.to_owned()))
    }

    /// Whether this is what follows `Authorization:`.
    #[must_use]
    pub fn is_in(&self, authorization: &[u8]) -> bool {
        let given = authorization.strip_prefix(b"Bearer ").map(<[u8]>::trim_ascii);
        given.is_some_and(|given| bool::from(given.ct_eq(self.0.as_bytes())))
    }
}

/// TLS as it is now, read for each connection: certificates are renewed while a daemon runs. Whoever shows a certificate that
/// it accepts needs no token; it lets those without a certificate connect too.
pub type Tls = Arc<dyn Fn() -> Result<Arc<ServerConfig>, String> + Send + Sync>;

/// Where a daemon answers monitors, and what they have to know.
#[derive(Clone)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// The token; without one and without TLS, anybody who reaches the address may ask.
    pub token: Option<Token>,
    /// TLS, if the connection is encrypted.
    pub tls: Option<Tls>,
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_tls = self.tls.is_some();
        f.debug_struct("Listen")
            .field("address", &self.address)
            .field("token", &self.token)
            .field("tls", &is_tls)
            .finish()
    }
}

impl Listen {
    /// At an address, with the token of a file, or with TLS, or with both.
    ///
    /// # Errors
    /// [`ListenError::NoToken`] if other machines reach the address and there is neither; [`ListenError::Token`].
    pub fn at(
        address: SocketAddr,
        token_file: Option<&Path>,
        tls: Option<Tls>,
    ) -> Result<Listen, ListenError> {
        let token = token_file.map(Token::read).transpose()?;
        if token.is_none() && tls.is_none() && !address.ip().is_loopback() {
            return Err(ListenError::NoToken(address));
        }
        Ok(Listen { address, token, tls })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_machine() {
        assert_eq!(address("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(address("10.0.0.5:9464").unwrap().to_string(), "10.0.0.5:9464");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        for wrong in ["", "host:80", "0", "127.0.0.1:0", "70000", "10.0.0.5"] {
            assert_eq!(address(wrong), Err(ListenError::Address(wrong.to_owned())));
        }
    }

    #[test]
    fn an_address_that_other_machines_reach_needs_a_token() {
        let near = address("9464").unwrap();
        assert!(Listen::at(near, None, None).is_ok());
        let far = address("0.0.0.0:9464").unwrap();
        assert_eq!(Listen::at(far, None, None).unwrap_err(), ListenError::NoToken(far));
        let tls: Tls = Arc::new(|| Err("no certificate".to_owned()));
        assert!(Listen::at(far, None, Some(tls)).is_ok());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let token = Listen::at(far, Some(&file), None).unwrap().token.unwrap();
        assert!(token.is_in(b"Bearer 0123456789abcdef"));
        for wrong in [&b"Bearer 0123456789abcdeX"[..], b"0123456789abcdef", b"Bearer", b""] {
            assert!(!token.is_in(wrong));
        }
    }

    #[test]
    fn a_token_that_others_can_read_or_that_is_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let refused = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&file).unwrap_err().to_string()
        };
        assert!(refused("0123456789abcdef", 0o644).contains("chmod 600"));
        assert!(refused("short", 0o600).contains("16 to 256"));
        assert!(refused("0123456789 abcdef", 0o600).contains("without spaces"));
        assert!(Token::read(&folder.path().join("none")).is_err());
    }
}

//! Join tokens: what a node needs to know to become a member, on one line.
//!
//! Anyone who holds a token can use it until it expires. The cluster keeps only the hash of its secret. The fingerprint tells
//! the node that joins that it talks to the right authority, so the token must come to it by a way that can be trusted.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_base::NodeId;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::{Fingerprint, sha256};
use crate::error::{Error, Result};

/// Every token begins with this; the number is the version of what follows.
const PREFIX: &str = "forebay-join-1.";

/// Longest text that is looked at.
const TEXT_BYTES_MAX: usize = 2048;

/// What a node needs to join a cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Where the node that admits it listens, HOST:PORT.
    pub address: String,
    /// The cluster.
    pub cluster: Uuid,
    /// The number of the node that admits it.
    pub node: NodeId,
    /// The certificate of the authority.
    pub authority: Fingerprint,
    /// Names the token in the cluster's records; not secret.
    pub id: [u8; 8],
    /// Proves that its user was given it.
    pub secret: [u8; 16],
}

/// What the cluster keeps of a token, below the token's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256 of the secret, in hexadecimal digits.
    pub hash: String,
    /// When it is over, in seconds since the Unix epoch.
    pub expires: i64,
    /// How many more nodes may use it; any number without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Whether a node that uses it receives the key of the authority.
    #[serde(default)]
    pub with_authority: bool,
}

/// The digits of bytes.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl TokenRecord {
    /// Whether `secret` is the token's. Takes as long for a wrong one as for the right one.
    #[must_use]
    pub fn is_proven_by(&self, secret: &[u8]) -> bool {
        let hash = hexadecimal(&sha256(secret));
        hash.as_bytes().ct_eq(self.hash.as_bytes()).into()
    }
}

impl Token {
    /// The hash that the cluster keeps.
    #[must_use]
    pub fn hash(&self) -> String {
        hexadecimal(&sha256(&self.secret))
    }

    /// Reads a token.
    ///
    /// # Errors
    /// If the text is not a token, or only a part of one.
    pub fn parse(text: &str) -> Result<Token> {
        let text = text.trim();
        let body = text.strip_prefix(PREFIX).ok_or_else(|| {
            Error::Token(
                "this is not a join token: run `forebay cluster token` on a node of the cluster and copy its output"
                    .to_owned(),
            )
        })?;
        let incomplete =
            || Error::Token("the join token is damaged or incomplete: copy all of it".to_owned());
        if body.len() > TEXT_BYTES_MAX {
            return Err(incomplete());
        }
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| incomplete())?;
        let (sum, encoded) = bytes.split_first_chunk::<4>().ok_or_else(incomplete)?;
        if crc32fast::hash(encoded) != u32::from_le_bytes(*sum) {
            return Err(incomplete());
        }
        postcard::from_bytes(encoded).map_err(|_| incomplete())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = postcard::to_stdvec(self).map_err(|_| fmt::Error)?;
        let mut bytes = crc32fast::hash(&encoded).to_le_bytes().to_vec();
        bytes.extend(encoded);
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for Token {
    /// Without the secret: debug output reaches logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token {} of {}", hexadecimal(&self.id), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            address: "host1:7440".to_owned(),
            cluster: Uuid::from_u128(5),
            node: NodeId(1),
            authority: [9; 32],
            id: [1; 8],
            secret: [2; 16],
        }
    }

    #[test]
    fn a_token_is_one_word_that_holds_everything() {
        let text = token().to_string();
        assert!(text.len() < 200 && !text.contains(char::is_whitespace), "{text}");
        assert_eq!(Token::parse(&format!(" {text}\n")).unwrap(), token());
        assert!(!format!("{:?}", token()).contains("secret"));
    }

    #[test]
    fn a_part_of_a_token_is_refused() {
        let text = token().to_string();
        for end in 0..text.len() {
            assert!(Token::parse(&text[..end]).is_err(), "{end}");
        }
        let mut changed = text.into_bytes();
        let last = changed.len() - 5;
        changed[last] = if changed[last] == b'A' { b'B' } else { b'A' };
        assert!(Token::parse(&String::from_utf8(changed).unwrap()).is_err());
        assert!(Token::parse("forebay-join-2.AAAA").is_err());
    }

    #[test]
    fn only_the_secret_proves_a_token() {
        let record =
            TokenRecord { hash: token().hash(), expires: 0, uses: None, with_authority: false };
        assert!(record.is_proven_by(&[2; 16]));
        assert!(!record.is_proven_by(&[3; 16]) && !record.is_proven_by(b""));
    }
}

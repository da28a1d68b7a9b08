//! The record of an object: one byte for the version (1), then [`Record`] in postcard.

use chrono::{DateTime, Utc};
use forebay_base::{Clock as _, time::SystemClock};
use object_store::path::Path;
use object_store::{Attribute, AttributeValue, Attributes, ObjectMeta, Result};
use serde::{Deserialize, Serialize};

use super::{VALUE_BYTES_MAX, generic};

const VERSION: u8 = 1;

/// What no two uploads have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct UploadId(pub u128);

impl UploadId {
    pub fn draw() -> UploadId {
        UploadId(uuid::Uuid::new_v4().as_u128())
    }
}

impl std::fmt::Display for UploadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub id: UploadId,
    pub size: u64,
    pub modified_milliseconds: i64,
    /// Sizes of its parts, each cut into chunks; empty if the bytes are in one value.
    pub parts: Vec<u64>,
    pub attributes: Vec<(String, String)>,
}

impl Record {
    /// The record of an object that is made now.
    pub fn new(
        id: UploadId,
        size: u64,
        parts: Vec<u64>,
        attributes: &Attributes,
    ) -> Result<Record> {
        let now = SystemClock.now();
        let milliseconds = i64::from(now.nanoseconds / 1_000_000);
        Ok(Record {
            id,
            size,
            modified_milliseconds: now.seconds.saturating_mul(1000).saturating_add(milliseconds),
            parts,
            attributes: attributes.iter().map(encode_attribute).collect::<Result<_>>()?,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        // A vector takes whatever comes.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_else(|error| unreachable!("{error}"))
    }

    /// The record in `bytes`.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Record> {
        match bytes.split_first() {
            Some((&VERSION, record)) => postcard::from_bytes(record).map_err(|error| {
                generic(format!("the record of object {path} is damaged: {error}"))
            }),
            Some((version, _)) => Err(generic(format!(
                "the record of object {path} has version {version}, but this program supports {VERSION}: use a newer program"
            ))),
            None => Err(generic(format!("the record of object {path} is empty"))),
        }
    }

    /// What the caller of an object operation hears of it; `revision` is its entity tag.
    pub fn meta(&self, path: &Path, revision: i64) -> ObjectMeta {
        ObjectMeta {
            location: path.clone(),
            last_modified: DateTime::<Utc>::from_timestamp_millis(self.modified_milliseconds)
                .unwrap_or_default(),
            size: self.size,
            e_tag: Some(revision.to_string()),
            version: None,
        }
    }

    pub fn attributes(&self) -> Attributes {
        let known = self.attributes.iter().filter_map(|(name, value)| {
            Some((decode_attribute(name)?, AttributeValue::from(value.clone())))
        });
        known.collect()
    }

    pub fn is_chunked(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Every chunk: its key below `c/ID/`, where it begins in the object, and its length.
    pub fn chunks(&self) -> impl Iterator<Item = (String, u64, u64)> + '_ {
        let mut start = 0;
        self.parts.iter().zip(0_u32..).flat_map(move |(&size, part)| {
            let first = start;
            start += size;
            chunks_of_part(size).zip(0_u32..).map(move |((offset, length), chunk)| {
                (chunk_name(part, chunk), first + offset, length)
            })
        })
    }
}

/// Where the chunks of a part begin in it, and their lengths.
pub(super) fn chunks_of_part(size: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = VALUE_BYTES_MAX as u64;
    (0..size.div_ceil(step)).map(move |chunk| (chunk * step, step.min(size - chunk * step)))
}

pub(super) fn chunk_name(part: u32, chunk: u32) -> String {
    format!("{part:06x}.{chunk:06x}")
}

fn encode_attribute((name, value): (&Attribute, &AttributeValue)) -> Result<(String, String)> {
    let name = match name {
        Attribute::ContentDisposition => "content-disposition".to_owned(),
        Attribute::ContentEncoding => "content-encoding".to_owned(),
        Attribute::ContentLanguage => "content-language".to_owned(),
        Attribute::ContentType => "content-type".to_owned(),
        Attribute::CacheControl => "cache-control".to_owned(),
        Attribute::Metadata(name) => format!("metadata:{name}"),
        other => {
            let source = format!("objects in etcd do not keep the attribute {other:?}").into();
            return Err(object_store::Error::NotSupported { source });
        }
    };
    Ok((name, value.to_string()))
}

fn decode_attribute(name: &str) -> Option<Attribute> {
    Some(match name {
        "content-disposition" => Attribute::ContentDisposition,
        "content-encoding" => Attribute::ContentEncoding,
        "content-language" => Attribute::ContentLanguage,
        "content-type" => Attribute::ContentType,
        "cache-control" => Attribute::CacheControl,
        other => Attribute::Metadata(other.strip_prefix("metadata:")?.to_owned().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_strange_bytes_are_refused() {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata("writer".into()), "7".into());
        attributes.insert(Attribute::ContentType, "x/y".into());
        let record = Record::new(UploadId(7), 3_000_000, vec![2_000_000, 1_000_000], &attributes);
        let record = record.unwrap();
        let path = Path::from("a/b");
        let encoded = record.encode();
        assert_eq!(encoded[0], VERSION);
        assert_eq!(Record::decode(&encoded, &path).unwrap(), record);
        assert_eq!(record.attributes(), attributes);
        for bytes in [&b""[..], &[2], &[1], &encoded[..9]] {
            assert!(Record::decode(bytes, &path).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn chunks_cover_the_parts_without_gaps() {
        let limit = VALUE_BYTES_MAX as u64;
        let record = Record::new(
            UploadId(1),
            3 * limit + 12,
            vec![2 * limit + 5, 7, limit],
            &Attributes::new(),
        );
        let mut next = 0;
        let mut names = Vec::new();
        for (name, start, length) in record.unwrap().chunks() {
            assert_eq!(start, next);
            assert!(length > 0 && length <= limit);
            next += length;
            names.push(name);
        }
        assert_eq!(next, 3 * limit + 12);
        assert!(names.is_sorted() && names.len() == 5, "{names:?}");
    }
}

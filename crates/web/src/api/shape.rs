//! Shapes: what is sent and received as JSON, with its schema from the same lines of code.
//!
//! `answers!` makes types that are sent: each field is there, and those that may be unknown may be null. `requests!` makes those that are
//! received: what may be omitted may be omitted, and what they do not know is refused.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

/// Schemas that have names.
#[derive(Default)]
pub struct Known(pub BTreeMap<&'static str, Value>);

/// What has a schema.
pub trait Shape {
    /// Whether it may be omitted from a request.
    const MAY_LACK: bool = false;
    /// Its schema; those that have names are added to `known`.
    fn schema(known: &mut Known) -> Value;
}

macro_rules! simple {
    ($($type:ty => $schema:tt)*) => {
        $(impl Shape for $type {
            fn schema(_: &mut Known) -> Value {
                json!($schema)
            }
        })*
    };
}

simple! {
    String => {"type": "string"}
    bool => {"type": "boolean"}
    u8 => {"type": "integer", "minimum": 0, "maximum": 255}
    u32 => {"type": "integer", "minimum": 0}
    u64 => {"type": "integer", "minimum": 0}
    i32 => {"type": "integer"}
    f64 => {"type": "number"}
    Time => {"type": "string", "format": "date-time"}
}

impl<T: Shape> Shape for Vec<T> {
    fn schema(known: &mut Known) -> Value {
        json!({ "type": "array", "items": T::schema(known) })
    }
}

impl<T: Shape> Shape for BTreeMap<String, T> {
    fn schema(known: &mut Known) -> Value {
        json!({ "type": "object", "additionalProperties": T::schema(known) })
    }
}

impl<T: Shape> Shape for Option<T> {
    const MAY_LACK: bool = true;

    fn schema(known: &mut Known) -> Value {
        json!({ "anyOf": [T::schema(known), { "type": "null" }] })
    }
}

/// A point in time, as RFC 3339 writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Time(pub String);

impl From<forebay_grid::vocabulary::Moment> for Time {
    fn from(moment: forebay_grid::vocabulary::Moment) -> Time {
        let known = i64::try_from(moment.0).ok();
        let time = known.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        Time(time.unwrap_or(jiff::Timestamp::MAX).to_string())
    }
}

macro_rules! shapes {
    ($derive:ident, $all:literal; $($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])+ $field:ident : $type:ty,)*
    })*) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq, serde::$derive)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[doc = $field_doc])+ pub $field: $type,)*
            }

            impl $crate::api::shape::Shape for $name {
                fn schema(known: &mut $crate::api::shape::Known) -> serde_json::Value {
                    let name = stringify!($name);
                    if !known.0.contains_key(name) {
                        known.0.insert(name, serde_json::Value::Null);
                        let mut fields = serde_json::Map::new();
                        let mut required: Vec<&str> = Vec::new();
                        $(
                            let mut field = <$type as $crate::api::shape::Shape>::schema(known);
                            $crate::api::shape::describe(&mut field, concat!($($field_doc),+));
                            fields.insert(stringify!($field).to_owned(), field);
                            if $all || !<$type as $crate::api::shape::Shape>::MAY_LACK {
                                required.push(stringify!($field));
                            }
                        )*
                        let schema = serde_json::json!({
                            "type": "object",
                            "description": concat!($($doc),+).trim(),
                            "properties": fields,
                            "required": required,
                            "additionalProperties": false,
                        });
                        known.0.insert(name, schema);
                    }
                    serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
                }
            }
        )*
    };
}

/// Makes types that are sent: every field is there.
macro_rules! answers {
    ($($rest:tt)*) => { $crate::api::shape::shapes! { Serialize, true; $($rest)* } };
}

/// Makes types that are received: what is an `Option` may be omitted, and unknown fields are refused.
macro_rules! requests {
    ($($rest:tt)*) => { $crate::api::shape::shapes! { Deserialize, false; $($rest)* } };
}

pub(crate) use {answers, requests, shapes};

/// Adds what a field means to its schema.
pub fn describe(schema: &mut Value, text: &str) {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("description".to_owned(), Value::from(text.trim()));
    }
}

//! Checks values against the schemas of the API's description: the part of JSON Schema that it uses, and nothing else.

use serde_json::{Map, Value};

const KEYWORDS: [&str; 14] = [
    "type",
    "description",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "$ref",
    "format",
    "minimum",
    "maximum",
    "enum",
    "const",
    "identifier",
];

/// What is wrong with a value; none if it is as the schema says.
pub fn fault(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let fields = schema.as_object().expect("a schema is an object");
    for keyword in fields.keys() {
        assert!(KEYWORDS.contains(&&**keyword), "{at}: {keyword} is not checked here");
    }
    if let Some(Value::String(to)) = fields.get("$ref") {
        let target = document.pointer(&to[1..]).unwrap_or_else(|| panic!("{to} leads nowhere"));
        return fault(document, target, value, at);
    }
    if let Some(Value::Array(options)) = fields.get("anyOf") {
        let fits = options.iter().any(|option| fault(document, option, value, at).is_none());
        return (!fits).then(|| format!("{at}: {value} fits none of {options:?}"));
    }
    if let Some(Value::Array(words)) = fields.get("enum")
        && !words.contains(value)
    {
        return Some(format!("{at}: {value} is not one of {words:?}"));
    }
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or("any");
    let is_of_kind = match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("{at}: type {other}"),
    };
    if !is_of_kind {
        return Some(format!("{at}: {value} is not of the type {kind}"));
    }
    let bounds = [("minimum", -1.0), ("maximum", 1.0)];
    for (name, sign) in bounds {
        if let (Some(bound), Some(number)) =
            (fields.get(name).and_then(Value::as_f64), value.as_f64())
            && (number - bound) * sign > 0.0
        {
            return Some(format!("{at}: {value} is beyond the {name} {bound}"));
        }
    }
    if fields.get("format").and_then(Value::as_str) == Some("date-time") {
        let text = value.as_str().unwrap_or_default();
        let is_time = text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z');
        return (!is_time).then(|| format!("{at}: {text} is not a time"));
    }
    match value {
        Value::Object(found) => object_fault(document, fields, found, at),
        Value::Array(found) => found.iter().enumerate().find_map(|(place, one)| {
            fault(document, &fields["items"], one, &format!("{at}[{place}]"))
        }),
        _ => None,
    }
}

fn object_fault(
    document: &Value,
    fields: &Map<String, Value>,
    found: &Map<String, Value>,
    at: &str,
) -> Option<String> {
    let none = Map::new();
    let properties = fields.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for name in fields.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !found.contains_key(name.as_str().unwrap()) {
            return Some(format!("{at}: {name} is missing"));
        }
    }
    found.iter().find_map(|(name, value)| {
        let at = format!("{at}.{name}");
        match (properties.get(name), fields.get("additionalProperties")) {
            (Some(schema), _) => fault(document, schema, value, &at),
            (None, Some(schema @ Value::Object(_))) => fault(document, schema, value, &at),
            (None, _) => Some(format!("{at} is not in the schema")),
        }
    })
}

#[test]
fn a_value_that_does_not_fit_is_found() {
    let document = serde_json::json!({"a": {"type": "object", "properties": {
        "n": {"type": "integer", "minimum": 0},
        "t": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    }, "required": ["n"], "additionalProperties": false}});
    let schema = serde_json::json!({"type": "array", "items": {"$ref": "#/a"}});
    let check = |text: &str| fault(&document, &schema, &serde_json::from_str(text).unwrap(), "it");
    assert_eq!(check(r#"[{"n":1},{"n":0,"t":"2026-01-01T00:00:00Z"},{"n":3,"t":null}]"#), None);
    for wrong in [
        r#"[{}]"#,
        r#"[{"n":-1}]"#,
        r#"[{"n":"1"}]"#,
        r#"[{"n":1,"x":1}]"#,
        r#"{"n":1}"#,
        r#"[{"n":1,"t":"now"}]"#,
    ] {
        assert!(check(wrong).is_some(), "{wrong}");
    }
}

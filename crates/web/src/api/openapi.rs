//! The description of the API (OpenAPI 3.1), from the table of operations and the schemas of their types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::operation::Operation;
use super::shape::Known;
use super::table::OPERATIONS;
use crate::problem::{OWN_KINDS, kinds};

/// Problems that every operation may have.
const EVERYWHERE: [&str; 7] =
    ["unauthorized", "not_understood", "not_allowed", "too_large", "busy", "unreachable", "failed"];

/// What a parameter of a path is.
fn part(name: &str) -> (Value, &'static str) {
    match name {
        "job" => {
            (json!({"type": "string"}), "Number of a job, 12, or of an element of an array, 12[3].")
        }
        "flow" => (json!({"type": "integer", "minimum": 0}), "Number of the run."),
        "token" => (json!({"type": "integer", "minimum": 0}), "Number of the token."),
        "host" => (json!({"type": "string"}), "Name of the host."),
        "reservation" => (json!({"type": "string"}), "Name of the reservation."),
        _ => (json!({"type": "string"}), "Name of the queue."),
    }
}

fn parameters(operation: &Operation, known: &mut Known) -> Vec<Value> {
    let names =
        operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = names
        .map(|name| {
            let (schema, text) = part(name);
            json!({"name": name, "in": "path", "required": true, "schema": schema, "description": text})
        })
        .collect();
    for parameter in operation.query {
        all.push(json!({
            "name": parameter.name, "in": "query", "required": false,
            "schema": (parameter.schema)(known), "description": parameter.text,
        }));
    }
    if operation.id == "submit_job" {
        all.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "schema": {"type": "string", "format": "uuid"},
            "description": "UUID drawn for this one submission: a submission that is repeated with it makes no second job.",
        }));
    }
    all
}

fn responses(operation: &Operation, known: &mut Known) -> Map<String, Value> {
    let (status, schema) = operation.answer;
    let mut all = Map::new();
    let done = match schema {
        Some(schema) => json!({
            "description": "Done.", "content": {"application/json": {"schema": schema(known)}},
        }),
        None if status == 204 => json!({"description": "Done."}),
        None => json!({
            "description": "Events: `job` with a Job, `host` with a Host, `lost` when some were omitted; lists are to be read again \
                            after a connection was made or `lost` came.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }),
    };
    all.insert(status.to_string(), done);
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for (kind, status, _) in kinds() {
        if EVERYWHERE.contains(&kind) || operation.problems.contains(&kind) {
            by_status.entry(status).or_default().push(kind);
        }
    }
    for (status, kinds) in by_status {
        all.insert(
            status.to_string(),
            json!({
                "description": format!("Refused: {}.", kinds.join(", ")),
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }),
        );
    }
    all
}

fn problem() -> Value {
    let words: Vec<&str> = kinds().map(|(kind, _, _)| kind).collect();
    debug_assert!(OWN_KINDS.len() < words.len());
    json!({
        "type": "object",
        "description": "Why a request was refused (RFC 9457).",
        "properties": {
            "type": {"type": "string", "description": "URN of the kind."},
            "title": {"type": "string", "description": "The kind, in words."},
            "status": {"type": "integer", "description": "Status of the answer."},
            "kind": {"type": "string", "enum": words, "description": "Kind, for programs."},
            "detail": {"type": "string", "description": "Reason, for people; it may change."},
        },
        "required": ["type", "title", "status", "kind", "detail"],
        "additionalProperties": false,
    })
}

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut known = Known::default();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in &OPERATIONS {
        let mut entry = json!({
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "parameters": parameters(operation, &mut known),
            "responses": responses(operation, &mut known),
        });
        if let Some(schema) = operation.body {
            entry["requestBody"] = json!({
                "required": true, "content": {"application/json": {"schema": schema(&mut known)}},
            });
        }
        paths.entry(operation.path).or_default().insert(operation.method.to_lowercase(), entry);
    }
    let mut schemas: Map<String, Value> =
        known.0.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    schemas.insert("Problem".to_owned(), problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Jobs, hosts, queues and flows of a grid. `forebay web token` makes a token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [
            {"name": "jobs", "description": "Jobs."},
            {"name": "flows", "description": "Runs of flows."},
            {"name": "grid", "description": "Hosts, queues, work areas, usage."},
            {"name": "services", "description": "Jobs that are kept running under a name."},
            {"name": "user", "description": "The user who asks, and tokens."},
            {"name": "watch", "description": "Changes, values of the past, alerts."},
        ],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// The description as a text.
#[must_use]
pub fn text() -> String {
    serde_json::to_string_pretty(&document()).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_docs_hold_the_description_of_the_api() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        let wanted = text();
        if std::env::var_os("FOREBAY_REWRITE_DOCS").is_some() {
            std::fs::write(&file, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/openapi.json is not as the code says: set FOREBAY_REWRITE_DOCS=1 for this test"
        );
    }

    #[test]
    fn operations_have_names_of_their_own_and_kinds_that_exist() {
        let ids: BTreeSet<&str> = OPERATIONS.iter().map(|operation| operation.id).collect();
        assert_eq!(ids.len(), OPERATIONS.len());
        let known: BTreeSet<&str> = kinds().map(|(kind, _, _)| kind).collect();
        for operation in &OPERATIONS {
            for kind in operation.problems {
                assert!(known.contains(kind), "{}: {kind}", operation.id);
            }
        }
    }

    #[test]
    fn every_reference_of_the_description_leads_somewhere() {
        fn walk(value: &Value, whole: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(to)) = fields.get("$ref") {
                        let path = to.strip_prefix('#').unwrap();
                        assert!(whole.pointer(path).is_some_and(Value::is_object), "{to}");
                    }
                    fields.values().for_each(|value| walk(value, whole));
                }
                Value::Array(values) => values.iter().for_each(|value| walk(value, whole)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
    }
}

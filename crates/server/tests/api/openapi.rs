//! The OpenAPI document says what the server does: its paths are the router's, its fields the parsers'.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::{Harness, saying};

const APP: &str = include_str!("../../src/app.rs");

async fn document() -> (Harness, Value) {
    let harness = Harness::new(saying("ok"));
    let answer = harness.get("/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let document = answer.json();
    (harness, document)
}

/// Follows a `$ref` within the document.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).expect("a definition"),
        None => schema,
    }
}

/// Calls `f` with every object in `value`.
fn visit(value: &Value, f: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            f(members);
            members.values().for_each(|member| visit(member, f));
        }
        Value::Array(items) => items.iter().for_each(|item| visit(item, f)),
        _ => {}
    }
}

/// The text in the first pair of quotes after every `before` in `source`.
fn quoted_after<'a>(source: &'a str, before: &str) -> BTreeSet<&'a str> {
    source
        .split(before)
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .collect()
}

/// All Rust sources below `folder`, without their unit tests.
fn sources(folder: PathBuf) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(path);
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let source = std::fs::read_to_string(path).expect("a source");
            text += source.split("#[cfg(test)]").next().expect("a part");
        }
    }
    text
}

#[tokio::test]
async fn document_is_of_this_version_and_its_references_lead_somewhere() {
    let (_harness, document) = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    visit(&document, &mut |object| {
        if let Some(path) = object.get("$ref").and_then(Value::as_str) {
            assert!(document.pointer(&path[1..]).is_some(), "{path}");
        }
    });
}

#[tokio::test]
async fn documented_paths_are_the_routers() {
    let (harness, document) = document().await;
    let documented: BTreeSet<String> = document["paths"]
        .as_object()
        .expect("paths")
        .keys()
        .map(|path| path.replace("{id}", "{*id}").replace("{path}", "{*path}"))
        .collect();
    let routed = quoted_after(APP, ".route(");
    let routed: BTreeSet<String> = routed.into_iter().map(str::to_owned).collect();
    assert_eq!(documented, routed);
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for method in ["get", "post", "put", "delete", "patch"] {
            let request = Request::builder()
                .method(method.to_uppercase().parse::<Method>().expect("a method"))
                .uri(path.replace("{id}", "mock").replace("{path}", "nothing"))
                .body(Body::from("{}"))
                .expect("a request");
            // Not read to its end: a stream may have none.
            let router = harness.router.clone();
            let answer = router.oneshot(request).await.expect("infallible");
            let (status, headers) = (answer.status(), answer.headers());
            let is_documented = !operations[method].is_null();
            assert_eq!(
                status != StatusCode::METHOD_NOT_ALLOWED,
                is_documented,
                "{method} {path}"
            );
            if is_documented {
                let status = status.as_str();
                let responses = &operations[method]["responses"];
                assert!(!responses[status].is_null(), "{method} {path}: {status}");
            } else {
                assert!(headers.contains_key("allow"), "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn every_documented_field_is_understood_and_refused_by_name_where_its_type_is_wrong() {
    let (harness, document) = document().await;
    for (path, valid) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "Hi"}]}),
        ),
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/v1/responses", json!({"input": "Hi"})),
        (
            "/tokenize",
            json!({"messages": [{"role": "user", "content": "Hi"}]}),
        ),
        ("/detokenize", json!({"tokens": [1]})),
    ] {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        let schema = resolved(&document, &body["schema"]);
        let answer = harness.post(path, valid.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        for (field, schema) in schema["properties"].as_object().expect("fields") {
            let schema = resolved(&document, schema);
            // A field without a type is ignored, or takes more forms than a wrong type could show.
            if schema["type"].is_null() && schema["anyOf"].is_null() {
                continue;
            }
            let mut request = valid.clone();
            let takes_objects = schema["type"]
                .as_array()
                .is_some_and(|types| types.contains(&"object".into()));
            request[field] = if takes_objects {
                json!("x")
            } else {
                json!({"x": 1})
            };
            if field == "stream_options" {
                request["stream"] = true.into();
            }
            let refused = harness.post(path, request.to_string()).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {field}");
            let param = refused.error("param");
            let param = param.as_str().expect("a name");
            assert_eq!(
                param.split(['.', '[']).next(),
                Some(field.as_str()),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn every_field_that_the_parsers_take_is_documented() {
    let (_harness, document) = document().await;
    let mut documented = BTreeSet::new();
    visit(&document, &mut |object| {
        if let Some(properties) = object.get("properties").and_then(Value::as_object) {
            documented.extend(properties.keys().cloned());
        }
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let parsers = sources(root.join("api")) + &sources(root.join("routes"));
    let mut taken = BTreeSet::new();
    for take in [
        ".take(",
        ".take_bool(",
        ".take_string(",
        ".take_strings(",
        ".take_f32(",
        ".take_int(",
        ".take_seed(",
        ".take_token_ids(",
    ] {
        taken.extend(quoted_after(&parsers, take));
    }
    assert!(taken.len() > 30, "{taken:?}");
    let missing: Vec<&str> = taken
        .into_iter()
        .filter(|&field| !documented.contains(field))
        .collect();
    assert!(missing.is_empty(), "openapi.json lacks {missing:?}");
}

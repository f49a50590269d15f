//! Chat templates against what Hugging Face's `apply_chat_template` gives.
//!
//! `tests/data/templates/cases.json` holds conversations and options; every other file there holds a template and
//! what transformers 5.24 renders, raises or fails with for each pair.

mod support;

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use izar_tokenizer::{ChatOptions, ChatTemplate, RenderError, SpecialTokens};
use serde_json::{Map, Value};

/// 2025-07-26 12:34:56, the time at which the expected outputs were made.
const NOW: u64 = 1_753_533_296;

fn goldens() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(support::data("templates"))
        .expect("the fixtures are part of the repository");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| !path.ends_with("cases.json"));
    files.sort();
    files
}

fn read(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Renders one conversation under one set of options.
fn render(
    template: &ChatTemplate,
    messages: &Value,
    options: &Value,
) -> Result<String, RenderError> {
    let own = [
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
    ];
    let fields = options
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_str()));
    let kwargs: Map<String, Value> = fields.map(|(k, v)| (k.clone(), v.clone())).collect();
    let list = |name: &str| options[name].as_array().map(Vec::as_slice);
    template.render(
        messages.as_array().unwrap(),
        &ChatOptions {
            tools: list("tools"),
            documents: list("documents"),
            add_generation_prompt: options["add_generation_prompt"] == true,
            continue_final_message: options["continue_final_message"] == true,
            kwargs: Some(&kwargs),
            now: Some(UNIX_EPOCH + Duration::from_secs(NOW)),
            ..ChatOptions::default()
        },
    )
}

#[test]
fn templates_render_as_hugging_face_renders_them() {
    let files = goldens();
    assert!(files.len() >= 5);
    let cases = read(&files[0].with_file_name("cases.json"));
    let special = SpecialTokens {
        bos_token: Some("<BOS>".into()),
        eos_token: Some("<EOS>".into()),
        unk_token: Some("<UNK>".into()),
        pad_token: Some("<PAD>".into()),
        ..SpecialTokens::default()
    };
    let mut differences = Vec::new();
    for file in files {
        let golden = read(&file);
        let name = golden["template"].as_str().unwrap();
        let source = golden["source"].as_str().unwrap();
        let template = ChatTemplate::new(source, special.clone()).unwrap();
        for expected in golden["results"].as_array().unwrap() {
            let (conv, option) = (
                expected["conv"].as_str().unwrap(),
                expected["opt"].as_str().unwrap(),
            );
            let got = render(&template, &cases["convs"][conv], &cases["opts"][option]);
            let is_same = match (&got, &expected["text"], &expected["raised"]) {
                (Ok(text), Value::String(expected), _) => text == expected,
                (Err(RenderError::Raised(message)), _, Value::String(expected)) => {
                    message == expected
                }
                (Err(_), Value::Null, Value::Null) => true,
                _ => false,
            };
            if !is_same {
                differences.push(format!(
                    "{name} {conv} {option}:\n  got      {got:?}\n  expected {expected}"
                ));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

fn one(source: &str) -> Result<String, RenderError> {
    let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    template.render(
        &[serde_json::json!({"role": "user", "content": "x"})],
        &ChatOptions::default(),
    )
}

#[test]
fn a_refusal_carries_the_message_of_the_template_even_from_a_macro() {
    let source = "{% macro check(m) %}{{ raise_exception('no ' ~ m.role) }}{% endmacro %}{{ check(messages[0]) }}";
    assert!(matches!(one(source), Err(RenderError::Raised(message)) if message == "no user"));
}

#[test]
fn a_failure_says_what_and_where() {
    let error = one("line 1\n{{ messages[0].nothing.more }}").unwrap_err();
    assert!(
        matches!(&error, RenderError::Failed(what) if what.contains("line 2")),
        "{error}"
    );
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let source =
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}";
    assert!(matches!(one(source), Err(RenderError::Failed(_))));
    assert!(matches!(
        one("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        Err(RenderError::Failed(_))
    ));
}

#[test]
fn a_chat_of_a_million_tokens_renders() {
    let golden = read(&support::data("templates/Qwen-Qwen3-0.6B.json"));
    let template =
        ChatTemplate::new(golden["source"].as_str().unwrap(), SpecialTokens::default()).unwrap();
    let message = |role: &str| serde_json::json!({"role": role, "content": "four ".repeat(2000)});
    let messages: Vec<Value> = (0..400)
        .map(|i| message(["user", "assistant"][i % 2]))
        .collect();
    let text = template.render(&messages, &ChatOptions::default()).unwrap();
    assert!(text.len() > 4_000_000);
}

#[test]
fn the_clock_is_used_when_no_time_is_given() {
    let year: u32 = one("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
    assert!(year >= 2025);
    assert!(matches!(
        one("{{ strftime_now('%=') }}"),
        Err(RenderError::Failed(_))
    ));
}

#[test]
fn no_messages_and_messages_that_are_not_objects_are_refused() {
    let template = ChatTemplate::new("x", SpecialTokens::default()).unwrap();
    let render = |messages: &[Value]| template.render(messages, &ChatOptions::default());
    assert!(matches!(render(&[]), Err(RenderError::NoMessages)));
    assert!(matches!(
        render(&["x".into()]),
        Err(RenderError::NotAnObject(0))
    ));
}

#[test]
fn expressions_and_white_space_are_jinjas() {
    let golden = support::json("jinja.json");
    let data = golden["data"].as_object().unwrap();
    let mut differences = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let source = case["source"].as_str().unwrap();
        let options = ChatOptions {
            kwargs: Some(data),
            add_generation_prompt: false,
            ..ChatOptions::default()
        };
        let got = ChatTemplate::new(source, SpecialTokens::default())
            .map_err(|e| e.to_string())
            .and_then(|t| {
                t.render(data["messages"].as_array().unwrap(), &options)
                    .map_err(|e| e.to_string())
            });
        let is_same = match &case["text"] {
            Value::String(expected) => got.as_ref() == Ok(expected),
            _ => got.is_err(),
        };
        if !is_same {
            differences.push(format!("{source:?}\n  got      {got:?}\n  expected {case}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

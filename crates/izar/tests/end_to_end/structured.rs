//! Structured output with a real model: whatever the model would rather say, greedy or at temperature 1, in both placements.

use serde_json::{Value, json};

use crate::server::Server;

/// Whether a value is what its schema asks for.
type Check = fn(&Value) -> bool;

/// Schemas, and what a value of each must fulfil beyond being JSON.
fn schemas() -> Vec<(Value, Check)> {
    let person = json!({
        "type": "object", "required": ["name", "age", "tags"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
    });
    let nested = json!({
        "type": "object", "required": ["points"], "additionalProperties": false,
        "properties": {"points": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/point"}}},
        "$defs": {"point": {"type": "object", "required": ["x", "y"], "additionalProperties": false,
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "y": {"type": ["boolean", "null"]}}}},
    });
    let date = json!({"type": "object", "required": ["day"], "additionalProperties": false,
        "properties": {"day": {"type": "string", "format": "date"}}});
    let union =
        json!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"const": "none"}]});
    vec![
        (person, |v| {
            v["name"].is_string()
                && v["age"].as_u64().is_some_and(|age| age <= 120)
                && v["tags"].as_array().is_some_and(|tags| tags.len() <= 3)
        }),
        (nested, |v| {
            let points = v["points"].as_array().map_or(&[][..], Vec::as_slice);
            let fits = |p: &Value| p["x"].is_i64() && (p["y"].is_boolean() || p["y"].is_null());
            (1..=2).contains(&points.len()) && points.iter().all(fits)
        }),
        (date, |v| {
            v["day"].as_str().is_some_and(|day| day.len() == 10)
        }),
        (union, |v| {
            v == "none" || v.as_u64().is_some_and(|n| n < 100)
        }),
    ]
}

fn ask(server: &Server, extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Describe Ada, who is 36 and likes red."}], "max_tokens": 250});
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let answer = server.post("/v1/chat/completions", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn check(server: &Server) {
    for (schema, fits) in schemas() {
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
        for (temperature, n) in [(0, 1), (1, 4)] {
            let asked =
                json!({"response_format": format, "temperature": temperature, "n": n, "seed": 5});
            let answer = ask(server, &asked);
            for choice in answer["choices"].as_array().expect("choices") {
                assert_eq!(choice["finish_reason"], "stop", "{choice}");
                let text = choice["message"]["content"].as_str().expect("text");
                let value: Value =
                    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert!(fits(&value), "{schema}: {text}");
            }
        }
    }
    let answer = ask(
        server,
        &json!({"structured_outputs": {"choice": ["tea", "coffee"]}, "temperature": 1}),
    );
    let text = answer["choices"][0]["message"]["content"].as_str();
    assert!(text == Some("tea") || text == Some("coffee"), "{answer}");
    let answer = ask(
        server,
        &json!({"guided_regex": "[0-9]{4}-[0-9]{2}", "temperature": 1}),
    );
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(text.len() == 7 && text.as_bytes()[4] == b'-', "{text}");
}

#[test]
fn answers_fit_their_schemas_greedy_and_at_temperature_1_in_both_placements() {
    for scheduler in ["host-sync", "host-async"] {
        check(&Server::start(&["--scheduler", scheduler]));
    }
}

#[test]
fn a_constrained_neighbour_changes_no_token() {
    let server = Server::start(&["--scheduler", "host-async"]);
    let plain = json!({"prompt": "The capital of France is", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let alone = server.complete(&plain).ids;
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| ask(&server, &json!({"guided_regex": "[ab]{60}"})));
        assert_eq!(server.complete(&plain).ids, alone);
        let text = busy.join().expect("no panic");
        let text = text["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned();
        assert!(
            text.len() == 60 && text.bytes().all(|b| b == b'a' || b == b'b'),
            "{text}"
        );
    });
}

#[test]
fn prompt_logprobs_are_those_of_the_same_tokens_when_they_are_generated() {
    let server = Server::start(&["--max-num-batched-tokens", "32"]);
    let prompt =
        "One two three four five six seven eight nine ten eleven twelve thirteen. ".repeat(4);
    let echoed = |prompt: &Value| {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 0});
        let answer = server.post("/v1/completions", body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text);
        let choice = answer.json()["choices"][0].clone();
        let logprobs = choice["logprobs"]["token_logprobs"].clone();
        (
            choice["text"].clone(),
            logprobs.as_array().expect("a list").clone(),
        )
    };
    let (text, first) = echoed(&prompt.clone().into());
    assert_eq!(text, prompt);
    assert!(
        first[0].is_null()
            && first[1..]
                .iter()
                .all(|l| l.as_f64().is_some_and(|l| l <= 0.0))
    );
    assert_eq!(
        echoed(&prompt.clone().into()).1,
        first,
        "a warm cache changes nothing"
    );
    let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 0, "return_token_ids": true});
    let generated = server.post("/v1/completions", body.to_string()).json()["choices"][0].clone();
    let ids = |name: &str| generated[name].as_array().expect("ids").clone();
    let all = [ids("prompt_token_ids"), ids("token_ids")].concat();
    let (_, scored) = echoed(&all.into());
    let own = generated["logprobs"]["token_logprobs"]
        .as_array()
        .expect("a list");
    assert_eq!(&scored[scored.len() - own.len()..], own.as_slice());
}

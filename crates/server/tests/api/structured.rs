//! Structured output over a mock that says what it likes unless its masks forbid it: then it says the lowest token allowed.

use std::time::Duration;

use axum::http::StatusCode;
use izar_transport::mock_engine::Reply;
use serde_json::{Value, json};

use crate::common::{Harness, answering, saying, tokens_of};

/// A mock that would write one letter for ever.
fn babbling() -> Harness {
    Harness::new(answering(|_| Reply::tokens(vec![u32::from(b'z'); 400])))
}

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["a", "b"],
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
    })
}

fn response_format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema()}})
}

fn fits(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| {
        value["a"].as_u64().is_some_and(|a| a < 10)
            && [json!("x"), json!("y")].contains(&value["b"])
    })
}

fn content(answer: &Value, choice: usize) -> &str {
    let message = &answer["choices"][choice];
    let text = message["message"]["content"].as_str();
    text.or(message["text"].as_str()).expect("text")
}

#[tokio::test]
async fn whatever_the_model_prefers_the_answer_fits_the_schema() {
    let harness = babbling();
    let answer = harness
        .chat(json!({"response_format": response_format()}))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let answer = answer.json();
    assert!(fits(content(&answer, 0)), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    for extra in [
        json!({"guided_json": schema()}),
        json!({"structured_outputs": {"json": schema()}, "min_tokens": 200}),
        json!({"response_format": response_format(), "ignore_eos": true}),
    ] {
        let mut body = extra.clone();
        body["max_tokens"] = 300.into();
        let answer = harness.complete(body).await.json();
        assert!(fits(content(&answer, 0)), "{extra}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    harness.until_idle().await;
}

#[tokio::test]
async fn what_fits_anyway_is_left_as_it_is() {
    let harness = Harness::new(saying("{\"a\": 7, \"b\": \"y\"}"));
    let answer = harness
        .chat(json!({"response_format": response_format()}))
        .await
        .json();
    assert_eq!(content(&answer, 0), "{\"a\": 7, \"b\": \"y\"}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn choices_expressions_and_grammars_are_kept_to() {
    let harness = babbling();
    for (extra, want) in [
        (json!({"guided_choice": ["yes", "no"]}), "no"),
        (json!({"structured_outputs": {"regex": "[0-9]{3}"}}), "000"),
        (
            json!({"guided_grammar": "start: \"<\" WORD \">\"\nWORD: /z{2}/\n"}),
            "<zz>",
        ),
    ] {
        let answer = harness.chat(extra.clone()).await.json();
        assert_eq!(content(&answer, 0), want, "{extra}");
    }
}

#[tokio::test]
async fn a_stream_says_the_same_and_every_choice_is_constrained() {
    let harness = babbling();
    let request =
        json!({"response_format": response_format(), "n": 3, "logprobs": true, "top_logprobs": 1});
    let whole = harness.chat(request.clone()).await.json();
    let mut streaming = request;
    streaming["stream"] = true.into();
    let chunks = harness.chat(streaming).await.chunks();
    for choice in 0..3 {
        let mut of_choice = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|delta| delta["index"] == choice);
        let text: String = of_choice
            .clone()
            .filter_map(|delta| delta["delta"]["content"].as_str())
            .collect();
        assert!(fits(&text), "{text}");
        assert_eq!(text, content(&whole, choice));
        let reason = of_choice.next_back().map(|delta| &delta["finish_reason"]);
        assert_eq!(reason, Some(&json!("stop")));
        let entries = whole["choices"][choice]["logprobs"]["content"].as_array();
        assert_eq!(entries.map(Vec::len), Some(text.len()));
    }
    harness.until_idle().await;
}

#[tokio::test]
async fn stop_strings_and_limits_end_a_constrained_answer_early() {
    let harness = babbling();
    let stopped = harness
        .chat(json!({"guided_regex": "abcdef", "stop": "d"}))
        .await
        .json();
    assert_eq!(content(&stopped, 0), "abc");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let cut = harness
        .chat(json!({"guided_regex": "abcdef", "max_tokens": 2}))
        .await
        .json();
    assert_eq!(content(&cut, 0), "ab");
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    harness.until_idle().await;
}

#[tokio::test]
async fn a_format_that_cannot_be_compiled_is_a_400_before_anything_is_generated() {
    let harness = babbling();
    let bad = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}});
    for (extra, param) in [
        (
            json!({"response_format": bad}),
            "response_format.json_schema.schema",
        ),
        (json!({"guided_regex": "("}), "guided_regex"),
        (
            json!({"structured_outputs": {"grammar": "start: missing"}}),
            "structured_outputs.grammar",
        ),
        (
            json!({"guided_regex": "a", "guided_choice": ["b"]}),
            "guided_choice",
        ),
    ] {
        for stream in [false, true] {
            let mut extra = extra.clone();
            extra["stream"] = stream.into();
            let answer = harness.chat(extra).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST);
            assert_eq!(answer.error("param"), param);
        }
    }
    assert_eq!(harness.client.stats().num_submitted, 0);
    let next = harness.chat(json!({"max_tokens": 2})).await;
    assert_eq!(next.status, StatusCode::OK);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_constrained_sequences_along() {
    let mut mock = answering(|_| Reply::tokens(vec![u32::from(b'z'); 400]));
    mock.step_time = Duration::from_millis(20);
    let harness = Harness::new(mock);
    let request = harness.chat(json!({"guided_regex": "a{400}", "max_tokens": 400, "n": 4}));
    let left = tokio::time::timeout(Duration::from_millis(300), request).await;
    assert!(left.is_err(), "it would take eight seconds");
    harness.until_idle().await;
}

#[tokio::test]
async fn prompt_logprobs_are_listed_as_vllm_lists_them() {
    let harness = Harness::new(saying("ok"));
    let answer = harness.complete(json!({"prompt_logprobs": 2})).await.json();
    let listed = answer["choices"][0]["prompt_logprobs"]
        .as_array()
        .expect("a list");
    assert_eq!(listed.len(), "Once".len());
    assert_eq!(listed[0], Value::Null);
    let entry = &listed[1][u32::from(b'n').to_string()];
    assert_eq!(entry["decoded_token"], "n");
    assert!(entry["logprob"].as_f64().is_some_and(f64::is_finite) && entry["rank"] == 1);
    let chat = harness.chat(json!({"prompt_logprobs": 0})).await.json();
    let tokens = chat["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(
        chat["prompt_logprobs"].as_array().map(|l| l.len() as u64),
        Some(tokens)
    );
    let streamed = harness
        .chat(json!({"prompt_logprobs": 0, "stream": true}))
        .await;
    assert_eq!(streamed.error("param"), "prompt_logprobs");
}

#[tokio::test]
async fn echo_brings_the_prompts_logprobs_with_its_text() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of(" upon"))));
    let request = json!({"echo": true, "logprobs": 1});
    let whole = harness.complete(request.clone()).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "Once upon");
    let list = |name: &str| choice["logprobs"][name].as_array().expect("a list").clone();
    assert_eq!(
        list("tokens")[..5],
        [json!("O"), json!("n"), json!("c"), json!("e"), json!(" ")]
    );
    assert_eq!(
        list("text_offset")[..6],
        [0, 1, 2, 3, 4, 5].map(Value::from)
    );
    assert_eq!(
        (&list("token_logprobs")[0], &list("top_logprobs")[0]),
        (&Value::Null, &Value::Null)
    );
    assert!(list("token_logprobs")[1..].iter().all(Value::is_number));
    let mut streaming = request;
    streaming["stream"] = true.into();
    let chunks = harness.complete(streaming).await.chunks();
    let tokens: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["tokens"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(tokens, list("tokens"));
}

#[tokio::test]
async fn echo_without_output_is_the_prompt_alone_also_with_logprobs() {
    let harness = Harness::new(saying("never seen"));
    let request = json!({"echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = harness.complete(request).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("Once"), &json!("length"))
    );
    assert_eq!(
        choice["logprobs"]["tokens"].as_array().map(Vec::len),
        Some(4)
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    harness.until_idle().await;
}

//! `/v1/responses`, as clients see it.

use izar_transport::client::EngineError;
use izar_transport::mock_engine::{Reply, ReplyEnd};
use serde_json::{Value, json};

use crate::common::{Answer, Harness, answering, saying, tokens_of};
use crate::tools::{HERMES, THINKING, harness, repeating};

async fn respond(harness: &Harness, extra: Value) -> Answer {
    let mut body = json!({"model": "mock", "input": "Hi"});
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    harness.post("/v1/responses", body.to_string()).await
}

/// The events of a stream, after checking that each is named after its type and numbered in order.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let events: Vec<Value> = answer
        .text
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let data: Value =
                serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        })
        .collect();
    for (idx, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], idx);
    }
    events
}

/// The response as the events of its items make it, after checking that they open, fill and close in order.
fn rebuilt(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let (mut text, mut is_open) = (String::new(), false);
    for event in events {
        let kind = event["type"].as_str().expect("a type");
        if kind.starts_with("response.") && event["output_index"].is_u64() {
            let added = kind == "response.output_item.added";
            assert_eq!(event["output_index"], items.len(), "{kind}");
            assert_eq!(is_open, !added, "{kind}");
        }
        match kind {
            "response.output_item.added" => (text, is_open) = (String::new(), true),
            kind if kind.ends_with(".delta") => text += event["delta"].as_str().expect("a delta"),
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], text)
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], text),
            "response.output_item.done" => {
                items.push(event["item"].clone());
                is_open = false;
            }
            _ => {}
        }
    }
    items
}

/// Asks for the same twice, whole and streamed, checks that both agree but for ids, and returns the whole response.
async fn ask(harness: &Harness, request: Value) -> Value {
    let whole = respond(harness, request.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json();
    let mut streaming = request;
    streaming["stream"] = true.into();
    let events = events(&respond(harness, streaming).await);
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let last = &events.last().expect("events")["response"];
    assert_eq!(
        kinds.last().copied(),
        Some(format!("response.{}", whole["status"].as_str().expect("a status")).as_str())
    );
    let mut without_ids = [whole.clone(), last.clone()];
    for response in &mut without_ids {
        response["id"] = Value::Null;
        response["created_at"] = Value::Null;
        for item in response["output"].as_array_mut().expect("items") {
            item["id"] = Value::Null;
            if item.get("call_id").is_some() {
                item["call_id"] = Value::Null;
            }
        }
    }
    assert_eq!(without_ids[0], without_ids[1]);
    assert_eq!(rebuilt(&events), *last["output"].as_array().expect("items"));
    whole
}

#[tokio::test]
async fn response_has_openais_shape_and_repeats_the_request() {
    let harness = Harness::new(saying("Hello!"));
    let request = json!({"instructions": "be brief", "metadata": {"a": "b"}, "temperature": 0.7, "max_output_tokens": 30});
    let response = ask(&harness, request).await;
    assert!(
        response["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("resp_"))
    );
    for (name, want) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("mock")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("be brief")),
        ("metadata", json!({"a": "b"})),
        ("temperature", json!(0.7)),
        ("max_output_tokens", json!(30)),
        ("store", json!(false)),
        ("tools", json!([])),
        ("text", json!({"format": {"type": "text"}})),
    ] {
        assert_eq!(response[name], want, "{name}");
    }
    let item = &response["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(
        item["content"],
        json!([{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}])
    );
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], 7);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        usage["input_tokens"].as_u64().map(|tokens| tokens + 7)
    );
}

#[tokio::test]
async fn stream_names_every_stage_of_a_message_in_order() {
    let harness = Harness::new(saying("Hi"));
    let events = events(&respond(&harness, json!({"stream": true})).await);
    let mut kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
}

#[tokio::test]
async fn response_cut_off_by_the_limit_is_incomplete() {
    let harness = Harness::new(saying("Hello!"));
    let response = ask(&harness, json!({"max_output_tokens": 3})).await;
    assert_eq!(
        (&response["status"], &response["incomplete_details"]),
        (
            &json!("incomplete"),
            &json!({"reason": "max_output_tokens"})
        )
    );
    assert_eq!(
        (
            &response["output"][0]["status"],
            &response["output"][0]["content"][0]["text"]
        ),
        (&json!("incomplete"), &json!("Hel"))
    );
}

#[tokio::test]
async fn reasoning_text_and_calls_are_items_in_their_order() {
    let said = "<think>\nlook\n</think>\n\nI look.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}</tool_call>\n\
        <tool_call>{\"name\": \"g\"}</tool_call>\nDone.";
    let template = format!("{HERMES}{{# </think> #}}");
    let harness = harness(&template, saying(said));
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "function", "name": "g"}]);
    let response = ask(&harness, json!({"tools": tools})).await;
    let output = response["output"].as_array().expect("items");
    let kinds: Vec<&str> = output
        .iter()
        .filter_map(|item| item["type"].as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "reasoning",
            "message",
            "function_call",
            "function_call",
            "message"
        ]
    );
    assert_eq!(
        output[0]["content"],
        json!([{"type": "reasoning_text", "text": "look"}])
    );
    assert_eq!(
        (
            &output[2]["name"],
            &output[2]["arguments"],
            &output[3]["arguments"]
        ),
        (&json!("f"), &json!("{\"a\": \"é\"}"), &json!("{}"))
    );
    assert!(output[2]["call_id"] != output[3]["call_id"] && output[2]["call_id"].is_string());
    assert_eq!(output[4]["content"][0]["text"], "\nDone.");
    // `look`: the mark that ends it is read with the text after it.
    assert_eq!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"],
        "<think>\nlook".len()
    );
    assert_eq!(response["tools"], tools);
}

#[tokio::test]
async fn turns_given_inline_reach_the_template() {
    let harness = harness(HERMES, repeating());
    let input = json!([
        {"role": "developer", "content": "obey"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]);
    let response = ask(&harness, json!({"input": input, "ignore_eos": true})).await;
    let prompt = response["output"][0]["content"][0]["text"]
        .as_str()
        .expect("text");
    for part in [
        "system\nobey",
        "user\nweather?",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
        "tool\nsun",
    ] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
}

#[tokio::test]
async fn log_probabilities_come_where_they_are_included() {
    let harness = Harness::new(saying("ab"));
    let request = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let response = ask(&harness, request).await;
    let logprobs = response["output"][0]["content"][0]["logprobs"]
        .as_array()
        .expect("logprobs");
    assert_eq!((logprobs.len(), &logprobs[1]["token"]), (2, &json!("b")));
    assert_eq!(
        logprobs[0]["top_logprobs"].as_array().map(Vec::len),
        Some(1)
    );
}

#[tokio::test]
async fn failure_before_the_first_token_is_plain_and_after_it_an_event() {
    let harness = Harness::new(answering(|_| Reply::failure(EngineError::NonFiniteLogits)));
    for stream in [false, true] {
        let answer = respond(&harness, json!({"stream": stream})).await;
        assert_eq!(answer.status, 500);
        assert!(answer.error("message").is_string());
    }
    let mut mock = answering(|_| Reply {
        end: ReplyEnd::Fail(EngineError::NonFiniteLogits),
        ..Reply::tokens([b'a'.into(), b'b'.into()])
    });
    mock.step_time = std::time::Duration::from_millis(20);
    let events = events(&respond(&Harness::new(mock), json!({"stream": true})).await);
    let [.., error, failed] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("error"), &json!("engine_error"))
    );
    assert!(error["message"].is_string());
    assert_eq!(
        (&failed["type"], &failed["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert!(failed["response"]["error"]["message"].is_string());
}

#[tokio::test]
async fn what_is_not_kept_is_refused_by_name() {
    let harness = Harness::new(saying("ok"));
    for (extra, param) in [
        (json!({"store": true}), "store"),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"background": true}), "background"),
        (json!({"input": []}), "input"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": "x".repeat(600)}), "input"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
    ] {
        let answer = respond(&harness, extra.clone()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error("param")),
            (400, param.into()),
            "{extra}"
        );
    }
    assert_eq!(respond(&harness, json!({"store": false})).await.status, 200);
}

#[tokio::test]
async fn response_without_text_has_no_items() {
    let harness = harness(THINKING, answering(|_| Reply::tokens(tokens_of(""))));
    let response = ask(&harness, json!({})).await;
    assert_eq!(
        (&response["output"], &response["status"]),
        (&json!([]), &json!("completed"))
    );
}

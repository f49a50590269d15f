//! Tool calls and reasoning, as clients see them.

use izar_ring::RingOptions;
use izar_server::ServerOptions;
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens};
use izar_transport::mock_engine::{MockOptions, Reply, ReplyEnd};
use serde_json::{Value, json};

use crate::common::{Answer, Harness, answering, chat_body, saying, tokens_of};
use crate::support::{IM_END, server_with, tokenizer};

/// Chats in ChatML, with tools and calls as Hermes has them.
pub const HERMES: &str = "{% if tools %}<|im_start|>system\nCall with <tool_call>:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Chats of a model that thinks; `thinking` opens its reasoning in the prompt, `enable_thinking=false` closes it there.
pub const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

/// A server whose chats are rendered by `template`.
pub fn harness(template: &str, mock: MockOptions) -> Harness {
    let template = ChatTemplate::new(template, SpecialTokens::default()).expect("a template");
    let encoder = ChatEncoder::new(tokenizer(), template);
    let (server, client, engine) = server_with(
        encoder,
        vec![IM_END],
        &RingOptions::default(),
        mock,
        ServerOptions::default(),
    );
    Harness::around(&server, client, engine)
}

/// A mock that answers with the prompt, however many messages it has.
pub fn repeating() -> MockOptions {
    answering(|prompt| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(prompt.to_vec())
    })
}

fn tools() -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    json!([tool("weather"), tool("time")])
}

/// What a streamed choice comes to, put together as OpenAI's clients do.
#[derive(Debug, Default, PartialEq)]
struct Streamed {
    content: String,
    reasoning: String,
    /// Id, name, arguments.
    calls: Vec<(String, String, String)>,
    finish_reason: String,
}

fn put_together(answer: &Answer) -> Streamed {
    let mut streamed = Streamed::default();
    for chunk in answer.chunks() {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        streamed.content += delta["content"].as_str().unwrap_or("");
        streamed.reasoning += delta["reasoning_content"].as_str().unwrap_or("");
        assert_eq!(delta["reasoning_content"], delta["reasoning"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            let function = &call["function"];
            let arguments = function["arguments"].as_str().expect("arguments");
            if index == streamed.calls.len() {
                assert_eq!((&call["type"], arguments), (&json!("function"), ""));
                let text = |value: &Value| value.as_str().expect("a string").to_owned();
                streamed
                    .calls
                    .push((text(&call["id"]), text(&function["name"]), String::new()));
            } else {
                assert_eq!(index + 1, streamed.calls.len());
                assert!(
                    call.get("id").is_none() && function.get("name").is_none(),
                    "said once: {call}"
                );
                streamed.calls[index].2 += arguments;
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert_eq!((streamed.finish_reason.as_str(), delta), ("", &json!({})));
            streamed.finish_reason = reason.to_owned();
        }
    }
    streamed
}

/// Asks for the same twice, whole and streamed, checks that both agree, and returns the whole answer's choice.
async fn ask(harness: &Harness, request: Value) -> Value {
    let whole = harness.chat(request.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let choice = whole.json()["choices"][0].clone();
    let mut streaming = request;
    streaming["stream"] = true.into();
    let streamed = put_together(&harness.chat(streaming).await);
    let message = &choice["message"];
    let text = |name: &str| message[name].as_str().unwrap_or("");
    assert_eq!(streamed.content, text("content"));
    assert_eq!(streamed.reasoning, text("reasoning_content"));
    assert_eq!(streamed.finish_reason, choice["finish_reason"]);
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<(&Value, &Value)> = calls
        .map(|call| (&call["function"]["name"], &call["function"]["arguments"]))
        .collect();
    let streamed_calls: Vec<(Value, Value)> = streamed
        .calls
        .iter()
        .map(|(_, name, arguments)| (json!(name), json!(arguments)))
        .collect();
    assert_eq!(
        calls,
        streamed_calls
            .iter()
            .map(|(n, a)| (n, a))
            .collect::<Vec<_>>()
    );
    choice
}

const TWO_CALLS: &str = "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

#[tokio::test]
async fn calls_come_apart_from_the_text_with_ids_of_their_own() {
    let harness = harness(HERMES, saying(TWO_CALLS));
    let choice = ask(&harness, json!({"tools": tools()})).await;
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "Let me look.");
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(
        (&calls[0]["function"], &calls[1]["function"]),
        (
            &json!({"name": "weather", "arguments": "{\"city\": \"Zürich\"}"}),
            &json!({"name": "time", "arguments": "{}"})
        )
    );
    let ids: Vec<&str> = calls
        .iter()
        .filter_map(|call| call["id"].as_str())
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids[0].starts_with("call_"));
    let usage = harness.chat(json!({"tools": tools()})).await.json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], TWO_CALLS.len() + 1);
}

#[tokio::test]
async fn arguments_are_streamed_in_pieces_as_they_are_written() {
    let harness = harness(HERMES, saying(TWO_CALLS));
    let answer = harness
        .chat(json!({"tools": tools(), "stream": true}))
        .await;
    let pieces: Vec<String> = answer
        .chunks()
        .iter()
        .filter_map(|chunk| {
            let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
            (call["index"] == 0)
                .then(|| call["function"]["arguments"].as_str().map(str::to_owned))?
        })
        .collect();
    assert!(
        pieces.len() > 10,
        "a token a byte, a piece a character: {pieces:?}"
    );
    let streamed = put_together(&answer);
    assert_eq!(streamed.calls[0].2, "{\"city\": \"Zürich\"}");
}

#[tokio::test]
async fn content_is_null_where_there_are_only_calls() {
    let harness = harness(
        HERMES,
        saying("<tool_call>{\"name\": \"time\"}</tool_call>"),
    );
    let choice = ask(&harness, json!({"tools": tools()})).await;
    assert_eq!(choice["message"]["content"], Value::Null);
}

#[tokio::test]
async fn calls_are_text_where_none_are_wanted() {
    let harness = harness(HERMES, saying(TWO_CALLS));
    for request in [json!({"tools": tools(), "tool_choice": "none"}), json!({})] {
        let choice = ask(&harness, request).await;
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(TWO_CALLS), &json!("stop"))
        );
        assert!(choice["message"].get("tool_calls").is_none());
    }
}

#[tokio::test]
async fn malformed_calls_are_content() {
    let said = "<tool_call>weather(Bern)</tool_call>";
    let harness = harness(HERMES, saying(said));
    let choice = ask(&harness, json!({"tools": tools()})).await;
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(said), &json!("stop"))
    );
}

#[tokio::test]
async fn call_cut_off_by_the_limit_ends_with_length() {
    let harness = harness(HERMES, saying(TWO_CALLS));
    let choice = ask(&harness, json!({"tools": tools(), "max_tokens": 75})).await;
    assert_eq!(choice["finish_reason"], "length");
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert!(
        arguments
            .as_str()
            .is_some_and(|text| "{\"city\": \"Zürich\"}".starts_with(text)),
        "{arguments}"
    );
}

#[tokio::test]
async fn without_parallel_calls_the_first_ends_the_answer() {
    let harness = harness(
        HERMES,
        answering(|_| Reply {
            end: ReplyEnd::Hang,
            ..Reply::tokens(tokens_of(TWO_CALLS))
        }),
    );
    let request = json!({"tools": tools(), "parallel_tool_calls": false});
    let choice = ask(&harness, request).await;
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        choice["message"]["tool_calls"].as_array().map(Vec::len),
        Some(1)
    );
    harness.until_idle().await;
}

#[tokio::test]
async fn earlier_calls_and_their_answers_reach_the_template() {
    let harness = harness(HERMES, repeating());
    let messages = json!([
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]},
    ]);
    let answer = harness
        .chat(json!({"messages": messages, "skip_special_tokens": false, "ignore_eos": true}))
        .await
        .json();
    let prompt = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    for part in [
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}</tool_call>",
        "<|im_start|>tool\nsun<|im_end|>",
    ] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
}

#[tokio::test]
async fn tools_of_a_model_without_a_known_format_are_refused_by_name() {
    let harness = Harness::new(saying("ok"));
    let answer = harness.chat(json!({"tools": tools()})).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error("param")),
        (400, "tools".into())
    );
    let choice = ask(&harness, json!({"tools": tools(), "tool_choice": "none"})).await;
    assert_eq!(choice["message"]["content"], "ok");
}

#[tokio::test]
async fn reasoning_is_split_off_whether_the_model_or_the_prompt_opened_it() {
    for (kwargs, said) in [
        (json!({}), "<think>\nIt is <b>.\n</think>\n\nBern."),
        (json!({"thinking": true}), "\nIt is <b>.\n</think>\n\nBern."),
    ] {
        let harness = harness(THINKING, saying(said));
        let choice = ask(&harness, json!({"chat_template_kwargs": kwargs})).await;
        let message = &choice["message"];
        assert_eq!(
            (
                &message["reasoning_content"],
                &message["reasoning"],
                &message["content"]
            ),
            (&json!("It is <b>."), &json!("It is <b>."), &json!("Bern."))
        );
        let hidden = ask(
            &harness,
            json!({"chat_template_kwargs": kwargs, "include_reasoning": false}),
        )
        .await;
        assert_eq!(
            hidden["message"],
            json!({"role": "assistant", "content": "Bern.", "refusal": null})
        );
    }
}

#[tokio::test]
async fn answer_without_thinking_is_all_content() {
    let harness = harness(THINKING, saying("Bern, </think> or so."));
    for request in [
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "none"}),
        json!({}),
    ] {
        let choice = ask(&harness, request).await;
        assert_eq!(choice["message"]["content"], "Bern, </think> or so.");
        assert!(choice["message"].get("reasoning_content").is_none());
    }
}

#[tokio::test]
async fn reasoning_that_never_ends_leaves_the_content_null() {
    let harness = harness(THINKING, saying("<think>\nso and so"));
    let choice = ask(&harness, json!({"max_tokens": 12})).await;
    assert_eq!(
        (
            &choice["message"]["reasoning_content"],
            &choice["message"]["content"],
            &choice["finish_reason"]
        ),
        (&json!("so a"), &Value::Null, &json!("length"))
    );
}

#[tokio::test]
async fn tokens_of_every_part_are_counted_and_have_logprobs_once() {
    let said = "<think>a</think>b<tool_call>{\"name\": \"time\"}</tool_call>";
    let template = format!("{HERMES}{{# </think> #}}");
    let harness = harness(&template, saying(said));
    let request = json!({"tools": tools(), "logprobs": true, "return_token_ids": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let chunks = harness.chat(request).await.chunks();
    let num = |name: &str| -> usize {
        let lists = chunks.iter().filter_map(|chunk| match name {
            "logprobs" => chunk["choices"][0]["logprobs"]["content"].as_array(),
            _ => chunk["choices"][0][name].as_array(),
        });
        lists.map(Vec::len).sum()
    };
    let usage = &chunks.last().expect("chunks")["usage"];
    assert_eq!(usage["completion_tokens"], said.len() + 1);
    assert_eq!(
        (num("token_ids"), num("logprobs")),
        (said.len() + 1, said.len() + 1)
    );
}

#[tokio::test]
async fn echo_begins_with_the_message_that_is_continued() {
    let harness = harness(HERMES, saying(" is Bern."));
    let messages =
        json!([{"role": "user", "content": "?"}, {"role": "assistant", "content": "It"}]);
    let request = json!({"messages": messages, "continue_final_message": true, "echo": true});
    assert_eq!(
        ask(&harness, request).await["message"]["content"],
        "It is Bern."
    );
    let fresh = ask(&harness, json!({"echo": true})).await;
    assert_eq!(fresh["message"]["content"], " is Bern.");
}

#[tokio::test]
async fn templates_of_requests_are_served_only_where_they_are_trusted() {
    let template = "{% for m in messages %}{{ m.content }}!{% endfor %}";
    let untrusting = Harness::new(saying("ok"));
    let answer = untrusting.chat(json!({"chat_template": template})).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error("param")),
        (400, "chat_template".into())
    );
    assert_eq!(
        untrusting
            .chat(json!({"chat_template": "default"}))
            .await
            .status,
        200
    );
    let options = ServerOptions {
        trust_request_chat_template: true,
        ..ServerOptions::default()
    };
    let trusting = Harness::with(saying("ok"), options);
    let tokens = trusting
        .post("/tokenize", chat_body(json!({"chat_template": template})))
        .await
        .json();
    assert_eq!(tokens["tokens"], json!([72, 105, 33]));
    let broken = trusting.chat(json!({"chat_template": "{% for"})).await;
    assert_eq!(
        (broken.status.as_u16(), broken.error("param")),
        (400, "chat_template".into())
    );
}

#[tokio::test]
async fn tokenize_counts_tools_and_template_variables_as_chat_does() {
    let harness = harness(HERMES, saying("ok"));
    let request = json!({"tools": tools(), "tool_choice": "none"});
    let counted = harness
        .post("/tokenize", chat_body(request.clone()))
        .await
        .json();
    let answered = harness.chat(request).await.json();
    assert_eq!(counted["count"], answered["usage"]["prompt_tokens"]);
    assert!(
        counted["count"].as_u64()
            > harness.post("/tokenize", chat_body(json!({}))).await.json()["count"].as_u64()
    );
}

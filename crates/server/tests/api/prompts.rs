//! From a conversation to a prompt: parts in order, roles as the template allows, and one beginning of text.
//!
//! The mock repeats its prompt, so the answer's ids are the prompt's.

use std::sync::Arc;

use axum::http::StatusCode;
use izar_ring::RingOptions;
use izar_server::ServerOptions;
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens, Tokenizer};
use izar_transport::mock_engine::{Reply, ReplyEnd};
use serde_json::{Value, json};

use crate::common::{Harness, IM_END, answering, saying};
use crate::support::server_with;

/// A SentencePiece vocabulary whose texts begin with `<s>`.
const WITH_BOS: &str =
    include_str!("../../../tokenizer/tests/data/sentencepiece-small.tokenizer.json");

/// A server whose model has `template` and the vocabulary with a BOS.
fn with_bos(template: &str) -> (Harness, u32) {
    let json = serde_json::from_str(WITH_BOS).expect("JSON");
    let tokenizer = Arc::new(Tokenizer::from_json(json).expect("a tokenizer"));
    let bos = tokenizer.prefix()[0];
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        ..SpecialTokens::default()
    };
    let template = ChatTemplate::new(template, special).expect("a template");
    let mut mock = answering(|prompt| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(prompt)
    });
    mock.vocab_size = tokenizer.vocab_size() as u32;
    let encoder = ChatEncoder::new(tokenizer, template);
    let (server, client, engine) = server_with(
        encoder,
        Vec::new(),
        &RingOptions::default(),
        mock,
        ServerOptions::default(),
    );
    (Harness::around(&server, client, engine), bos)
}

fn ids(answer: &Value) -> Vec<u32> {
    serde_json::from_value(answer["choices"][0]["token_ids"].clone()).expect("token ids")
}

#[tokio::test]
async fn a_chat_begins_with_exactly_one_bos_whatever_the_template_writes() {
    for template in [
        "{{ messages[0].content }}",
        "{{ bos_token }}{{ messages[0].content }}",
        "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}",
        "<s>{{ messages[0].content }}",
    ] {
        let (harness, bos) = with_bos(template);
        for content in ["hello", "<s>hello", " hello <s>"] {
            let messages = json!([{"role": "user", "content": content}]);
            let body = json!({"messages": messages, "return_token_ids": true, "max_tokens": 64});
            let ids = ids(&harness.chat(body).await.json());
            let num_bos = ids.iter().filter(|&&id| id == bos).count();
            assert_eq!((ids[0], num_bos), (bos, 1), "{template} with {content}");
        }
    }
}

#[tokio::test]
async fn a_completion_begins_with_exactly_one_bos_unless_it_asks_for_none() {
    let (harness, bos) = with_bos("{{ messages[0].content }}");
    for (body, num_bos) in [
        (json!({"prompt": "hello"}), 1),
        (json!({"prompt": ["hello"], "add_special_tokens": true}), 1),
        (json!({"prompt": "hello", "add_special_tokens": false}), 0),
        (json!({"prompt": [17, 18]}), 0),
        (json!({"prompt": [bos, 18]}), 1),
    ] {
        let mut body = body;
        body["return_token_ids"] = true.into();
        let ids = ids(&harness.complete(body.clone()).await.json());
        assert_eq!(
            ids.iter().filter(|&&id| id == bos).count(),
            num_bos,
            "{body}"
        );
    }
}

#[tokio::test]
async fn parts_come_in_their_order_and_say_what_one_string_says() {
    let harness = Harness::new(answering(|prompt| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(prompt)
    }));
    let text = |text: &str| json!({"type": "text", "text": text});
    for (content, same_as) in [
        (json!([text("a")]), "a"),
        (json!([text("a"), text("b"), text("c")]), "a\nb\nc"),
        (json!(["a", "b"]), "a\nb"),
        (json!([text("c"), "a", text("b")]), "c\na\nb"),
        (json!([]), ""),
        (json!([text("")]), ""),
    ] {
        let ask = async |content: Value| {
            let messages = json!([{"role": "user", "content": content}]);
            let body = json!({"messages": messages, "return_token_ids": true, "max_tokens": 64});
            ids(&harness.chat(body).await.json())
        };
        assert_eq!(
            ask(content.clone()).await,
            ask(same_as.into()).await,
            "{content}"
        );
    }
}

#[tokio::test]
async fn every_role_reaches_the_template_as_the_template_knows_it() {
    let harness = Harness::new(answering(|prompt| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(prompt)
    }));
    for (role, seen) in [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
    ] {
        let messages = json!([{"role": role, "content": "x", "tool_call_id": "c"}]);
        let body = json!({"messages": messages, "max_tokens": 64, "skip_special_tokens": false, "ignore_eos": true});
        let answer = harness.chat(body).await.json();
        assert_eq!(
            answer["choices"][0]["message"]["content"],
            format!("<|im_start|>{seen}\nx<|im_end|>\n<|im_start|>assistant\n")
        );
    }
}

#[tokio::test]
async fn whatever_a_template_raises_is_a_400_with_its_message() {
    for reason in [
        "roles must alternate",
        "é \"quoted\" <reason>",
        &"long ".repeat(2000),
    ] {
        let source = format!("{{{{ raise_exception({}) }}}}", json!(reason));
        let (harness, _) = with_bos(&source);
        for stream in [false, true] {
            let answer = harness.chat(json!({"stream": stream})).await;
            assert_eq!(
                (answer.status, answer.error("param"), answer.error("code")),
                (
                    StatusCode::BAD_REQUEST,
                    "messages".into(),
                    "chat_template_error".into()
                )
            );
            let message = answer.error("message").as_str().expect("text").to_owned();
            let start: String = reason.chars().take(100).collect();
            assert!(message.contains(&start), "{message}");
        }
    }
}

#[tokio::test]
async fn a_template_that_fails_is_a_400_and_no_panic() {
    for source in [
        "{{ messages[7].content.nothing }}",
        "{{ 1 / 0 }}",
        "{{ messages | no_such_filter }}",
        "{% for m in messages %}{{ m.content + 1 }}{% endfor %}",
    ] {
        let Ok(template) = ChatTemplate::new(source, SpecialTokens::default()) else {
            continue;
        };
        let encoder = ChatEncoder::new(crate::support::tokenizer(), template);
        let (server, client, engine) = server_with(
            encoder,
            vec![IM_END],
            &RingOptions::default(),
            saying("ok"),
            ServerOptions::default(),
        );
        let harness = Harness::around(&server, client, engine);
        let answer = harness.chat(json!({})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{source}");
        assert_eq!(answer.error("param"), "messages");
    }
}

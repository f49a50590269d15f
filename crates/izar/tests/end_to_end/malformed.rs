//! Bodies that no client should send. Each is answered with 4xx, or with 200 where it means something after all, and the server goes on.

use serde_json::{Value, json};

use crate::prompts::Rng;
use crate::server::Server;

const NUM_BODIES: usize = 300;

/// Values that are wrong for most fields, as JSON text: some are not even JSON.
const VALUES: [&str; 36] = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1.5",
    "-0.0",
    "1e308",
    "-1e308",
    "1e400",
    "1e-400",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "99999999999999999999999999999999",
    "\"\"",
    "\"a\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\\u0000\"",
    "\"\u{202e}\u{fffd}\"",
    "[]",
    "[[]]",
    "[null]",
    "[1,\"a\"]",
    "[-1]",
    "[4294967296]",
    "[[1],[]]",
    "{}",
    "{\"a\":{}}",
    "{\"-1\":1}",
    "{\"0\":1e9}",
    "[{\"role\":\"user\"}]",
    "[{\"role\":1,\"content\":[]}]",
    "NaN",
];

const FIELDS: [&str; 34] = [
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "best_of",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stream",
    "stream_options",
    "echo",
    "suffix",
    "priority",
    "response_format",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "return_token_ids",
];

fn good(path: &str) -> Value {
    match path {
        "/v1/chat/completions" => {
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0})
        }
        _ => json!({"prompt": "Hi", "max_tokens": 1, "temperature": 0}),
    }
}

/// The body with `field` set to `value`, which need not be JSON.
fn with(body: &Value, field: &str, value: &str) -> Vec<u8> {
    let mut body = body.clone();
    body[field] = "@@".into();
    body.to_string().replace("\"@@\"", value).into_bytes()
}

fn malformed(rng: &mut Rng, body: &Value) -> Vec<u8> {
    match rng.below(8) {
        0 => {
            let mut bytes = body.to_string().into_bytes();
            bytes.truncate(rng.below(bytes.len()));
            bytes
        }
        1 => {
            let mut bytes = body.to_string().into_bytes();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len());
                bytes[at] = rng.draw() as u8;
            }
            bytes
        }
        2 => {
            let (depth, open) = (1 + rng.below(20_000), rng.pick(&["[", "{\"a\":"]));
            with(body, rng.pick(&FIELDS), &open.repeat(depth))
        }
        3 => {
            let field = rng.pick(&FIELDS);
            let twice = format!("1,\"{field}\":{}", rng.pick(&VALUES));
            with(body, field, &twice)
        }
        4 => {
            let long = format!("\"{}\"", "x".repeat(rng.below(200_000)));
            with(body, rng.pick(&FIELDS), &long)
        }
        _ => with(body, rng.pick(&FIELDS), rng.pick(&VALUES)),
    }
}

#[test]
fn malformed_bodies_never_give_5xx_and_the_next_request_works() {
    // A short context bounds what a body that means something can ask for.
    let server = Server::start(&["--max-model-len", "64"]);
    let probe = json!({"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0});
    let (mut rng, mut num_refused) = (Rng(300), 0);
    for i in 0..NUM_BODIES {
        let path = rng.pick(&["/v1/chat/completions", "/v1/completions"]);
        let body = malformed(&mut rng, &good(path));
        let answer = server.post(path, &body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        match answer.status {
            200 => {}
            400..=499 => {
                answer.error(answer.status);
                num_refused += 1;
            }
            status => panic!("{status} for {path} {shown}: {}", answer.text),
        }
        if i % 20 == 19 {
            assert_eq!(
                server.complete(&probe).text,
                " Paris.",
                "after {path} {shown}"
            );
        }
    }
    assert!(num_refused > NUM_BODIES / 2, "{num_refused} refused");
    server.until_idle();
}

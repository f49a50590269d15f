//! Any bytes as the body of any endpoint: parsed, checked, rendered and encoded as for a client, or refused as the API refuses.
//!
//! The first byte chooses the endpoint, the rest is the body. A refusal must be a 4xx with OpenAI's error object, short, and must not
//! repeat what was sent. (A panic, an abort of the stack or of memory fails by itself.)
#![no_main]

mod fixture;

use fixture::server;
use izar_server::fuzzing::{Endpoint, Refusal};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const ENDPOINTS: [Endpoint; 5] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Tokenize,
    Endpoint::Detokenize,
    Endpoint::Responses,
];

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else {
        return;
    };
    let endpoint = ENDPOINTS[usize::from(choice) % ENDPOINTS.len()];
    if let Err(refusal) = server().examine(endpoint, body) {
        check(&refusal, body);
    }
});

fn check(refusal: &Refusal, body: &[u8]) {
    assert!((400..500).contains(&refusal.status), "{refusal:?}");
    assert!(refusal.body.len() < 4096, "{refusal:?}");
    let value: Value = serde_json::from_str(&refusal.body).expect("a refusal is JSON");
    let error = value["error"].as_object().expect("an error object");
    assert_eq!(error.len(), 4, "{refusal:?}");
    let message = error["message"].as_str().expect("a message");
    assert!(error["type"].is_string(), "{refusal:?}");
    // The test template's own refusal quotes nothing, so no message has a reason to hold a marker of the client's.
    if body.windows(MARKER.len()).any(|window| window == MARKER) {
        let marker = std::str::from_utf8(MARKER).expect("ASCII");
        assert!(!message.contains(marker), "{refusal:?}");
    }
}

/// In the seeds and the dictionary, as a value and as a name.
const MARKER: &[u8] = b"zqxj";

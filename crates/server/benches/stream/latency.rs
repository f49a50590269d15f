//! Added latency: from the engine's publishing a token to the client's having read it.

use std::time::Duration;

use axum::body::Bytes;
use izar_ring::RingOptions;
use izar_server::ServerOptions;
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens};
use izar_transport::mock_engine::{MockOptions, Reply};

use crate::bare::{self, Pace};
use crate::clients::{CHUNKED_END, Load, measure};
use crate::support::server_with;
use crate::{NUM_CLIENTS, NUM_TOKENS, clock};

/// Steps of streams: with 256 clients, 20,000, 40,000 and 75,000 tokens a second.
const STEPS: [Duration; 3] = [
    Duration::from_micros(12_800),
    Duration::from_micros(6_400),
    Duration::from_micros(3_413),
];
/// Groups of streams that take turns within a step, so that tokens come spread over it and not all at once.
const NUM_GROUPS: u32 = 32;

/// Measures every step, streams spread over it, and one step in which all tokens come at once, as from an engine with one batch.
pub fn at_half_load(time: Duration) {
    println!(
        "\nadded latency: {NUM_CLIENTS} clients, {NUM_TOKENS} tokens an answer, a write a token"
    );
    for step in STEPS {
        let pace = Pace {
            step,
            num_groups: NUM_GROUPS,
        };
        both(
            &format!("spread over {:.1} ms", step.as_secs_f64() * 1e3),
            pace,
            time,
        );
    }
    both("256 at once, each 12.8 ms", Pace::lockstep(STEPS[0]), time);
}

fn both(name: &str, pace: Pace, time: Duration) {
    println!("{name}");
    let body =
        format!(r#"{{"prompt":[1],"stream":true,"ignore_eos":true,"max_tokens":{NUM_TOKENS}}}"#);
    let load = Load {
        path: "/v1/completions",
        body: &body,
        end: CHUNKED_END,
        time,
        watched: None,
    };
    let bare = bare::router(load.path, pace, || Bytes::from(clock::chunk()));
    println!("{}", measure("bare", bare, &load).latency());
    let tokenizer = clock::tokenizer();
    let template = ChatTemplate::new("{{ messages }}", SpecialTokens::default());
    let encoder = ChatEncoder::new(tokenizer, template.expect("a template"));
    let mock = MockOptions {
        step_time: pace.step,
        num_groups: pace.num_groups,
        vocab_size: clock::NUM_TIMES,
        ..MockOptions::scripted(|_, _| Reply::clock())
    };
    let (server, _client, _engine) = server_with(
        encoder,
        Vec::new(),
        &RingOptions::default(),
        mock,
        ServerOptions::default(),
    );
    println!("{}", measure("izar", server.router(), &load).latency());
}

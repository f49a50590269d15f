//! What a token costs the server, in CPU time of the thread that streams (the clock of the machine's load does not matter).

use std::time::Duration;

use http_body_util::BodyExt;
use izar_transport::mock_engine::Reply;
use serde_json::json;
use tower::ServiceExt;

use crate::common::{Harness, answering, chat_body};

const NUM_STREAMS: usize = 64;
const NUM_TOKENS: usize = 256;

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(
        stat.split(' ')
            .next()
            .and_then(|ns| ns.parse().ok())
            .expect("nanoseconds on a processor"),
    )
}

#[tokio::test]
async fn token_costs_the_streaming_thread_under_50_us() {
    let harness = Harness::new(answering(|_| Reply::counting(97)));
    let body = chat_body(
        json!({"stream": true, "max_tokens": NUM_TOKENS, "ignore_eos": true, "stop": ["\u{0}\u{0}\u{0}"]}),
    );
    let before = cpu_time();
    let streams: Vec<_> = (0..NUM_STREAMS)
        .map(|_| {
            let request = axum::http::Request::post("/v1/chat/completions")
                .body(axum::body::Body::from(body.clone()))
                .expect("a request");
            let router = harness.router.clone();
            tokio::spawn(async move {
                let mut body = router
                    .oneshot(request)
                    .await
                    .expect("infallible")
                    .into_body();
                let mut num_bytes = 0;
                while let Some(frame) = body.frame().await {
                    num_bytes += frame
                        .expect("infallible")
                        .into_data()
                        .map_or(0, |data| data.len());
                }
                num_bytes
            })
        })
        .collect();
    for stream in streams {
        assert!(
            stream.await.expect("no panic") > NUM_TOKENS * 100,
            "every token is a chunk"
        );
    }
    let per_token = (cpu_time() - before) / (NUM_STREAMS * NUM_TOKENS) as u32;
    println!("{per_token:?} of CPU per token, requests included");
    assert!(per_token < Duration::from_micros(50), "{per_token:?}");
}

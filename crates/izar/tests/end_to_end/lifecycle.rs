//! A full ring, and leaving in good order.

use std::io::Read;
use std::net::TcpStream;

use serde_json::json;

use crate::load::send_raw;
use crate::server::Server;

#[test]
fn full_ring_is_429_with_when_to_come_back_and_recovers() {
    let server = Server::start(&["--max-model-len", "128"]);
    let num_slots = server.metric("izar:ring_slots") as usize;
    let num_prompts = num_slots / 128;
    assert_eq!(num_prompts * 128, num_slots, "the ring can be filled");
    let fill = json!({
        "prompt": vec![vec![1, 2, 3]; num_prompts], "n": 128, "max_tokens": 100, "ignore_eos": true, "stream": true,
    });
    let filler = send_raw(&server, &fill);
    crate::server::wait_until("a full ring", || {
        server.metric("izar:ring_slots_in_use") as usize == num_slots
    });

    let burst = json!({"prompt": [1, 2, 3], "max_tokens": 1});
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let answer = server.try_complete(&burst);
                answer.error(429);
                assert!(answer.retry_after_s() >= 1);
            });
        }
    });
    assert_eq!(server.metric("izar:admission_rejections_total"), 20.0);
    // Full is busy, not ill.
    assert_eq!(server.get("/health").status, 200);

    drop(filler);
    server.until_idle();
    assert_eq!(server.complete(&burst).ids.len(), 1);
}

#[test]
fn sigterm_lets_streams_end_refuses_new_requests_and_exits_with_0() {
    const NUM_TOKENS: usize = 100;
    let mut server = Server::start(&["--max-model-len", "512", "--shutdown-timeout", "120"]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": true});
    let mut streams: Vec<_> = (0..4).map(|_| server.stream(&body)).collect();
    for stream in &mut streams {
        assert!(stream.next().is_some());
    }
    // An idle connection holds nothing up.
    let idle = TcpStream::connect(&server.address).expect("connected");

    server.terminate();
    crate::server::wait_until("draining", || server.get("/health").status == 503);
    let refused = server.try_complete(&body);
    assert!(refused.error(503).contains("shutting down"));
    assert!(refused.retry_after_s() >= 1);

    for stream in streams {
        let streamed = stream.finish();
        assert_eq!(streamed.ids.len(), NUM_TOKENS);
        assert_eq!(streamed.finish_reason, "length");
    }
    assert_eq!(server.wait().code(), Some(0));
    drop(idle);
}

#[test]
fn shutdown_timeout_cuts_off_what_does_not_end() {
    let mut server = Server::start(&["--shutdown-timeout", "1"]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": true, "stream": true});
    let mut endless = send_raw(&server, &body);
    let mut head = [0; 12];
    endless.read_exact(&mut head).expect("a head");
    assert_eq!(&head, b"HTTP/1.1 200");

    let begun = std::time::Instant::now();
    server.terminate();
    let status = server.wait();
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(0));
    let mut rest = Vec::new();
    // The connection may also be reset.
    let _ = endless.read_to_end(&mut rest);
    assert!(
        !String::from_utf8_lossy(&rest).contains("[DONE]"),
        "a cut answer does not look whole"
    );
}

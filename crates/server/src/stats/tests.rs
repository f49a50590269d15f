//! The sampler over a mock engine: when it runs, and what becomes of watchers who do not read.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http_body::Body;
use izar_ring::RingOptions;
use izar_transport::client::ClientOptions;
use izar_transport::mock_engine::{MockEngine, MockOptions};
use serde_json::Value;

use super::*;

fn stats() -> (Arc<Stats>, MockEngine) {
    let (transport, engine) =
        MockEngine::in_process(&RingOptions::default(), MockOptions::default()).expect("a ring");
    let client = RingClient::connect(transport, ClientOptions::default()).expect("a lease");
    let source = Source {
        client: Arc::new(client),
        metrics: Arc::new(Metrics::new(100)),
        drain: Arc::new(Drain::default()),
        about: "\"server\":{},\"engine\":{}".to_owned(),
    };
    (Arc::new(Stats::new(source)), engine)
}

fn sampler(stats: &Stats) -> Option<u64> {
    stats.lock().live.as_ref().map(|live| live.sampler)
}

/// The events that are there now: their names and data.
fn read(watcher: &mut Watcher) -> Vec<(String, Value)> {
    let mut context = Context::from_waker(Waker::noop());
    let mut events = Vec::new();
    while let Poll::Ready(Some(frame)) = Pin::new(&mut *watcher).poll_frame(&mut context) {
        let bytes = frame.expect("infallible").into_data().expect("data");
        let text = std::str::from_utf8(&bytes).expect("UTF-8");
        let (name, data) = text
            .strip_prefix("event: ")
            .and_then(|rest| rest.strip_suffix("\n\n")?.split_once("\ndata: "))
            .unwrap_or_else(|| panic!("{text:?}"));
        let data = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        events.push((name.to_owned(), data));
    }
    events
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn sampler_runs_while_somebody_watches_and_no_longer() {
    let (stats, _engine) = stats();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    assert_eq!((sampler(&stats), tasks()), (None, 0));
    let first = stats.watch().expect("room");
    let second = stats.watch().expect("room");
    assert_eq!((sampler(&stats), tasks()), (Some(1), 1));
    drop(first);
    assert_eq!(sampler(&stats), Some(1));
    drop(second);
    assert_eq!(sampler(&stats), None);
    while tasks() > 0 {
        tokio::task::yield_now().await;
    }
    // A sample that was under way when its sampler was ended tells nobody anything.
    let mut third = stats.watch().expect("room");
    assert!(!stats.tick(1) && stats.tick(2));
    assert_eq!(names(&read(&mut third)), ["snapshot", "delta"]);
}

#[tokio::test]
async fn there_is_room_for_some_watchers_and_then_for_the_next_once_one_has_left() {
    let (stats, _engine) = stats();
    let mut watchers: Vec<_> = (0..MAX_WATCHERS)
        .map(|_| stats.watch().expect("room"))
        .collect();
    let refused = stats.watch().err();
    assert!(matches!(
        refused,
        Some(ApiError::AtCapacity {
            shortage: Shortage::TooManyWatchers,
            ..
        })
    ));
    watchers.pop();
    assert!(stats.watch().is_ok());
}

#[tokio::test]
async fn watcher_that_does_not_read_gets_a_snapshot_for_what_it_has_missed_and_holds_nobody_up() {
    let (stats, _engine) = stats();
    let (mut slow, mut quick) = (stats.watch().expect("room"), stats.watch().expect("room"));
    assert_eq!(names(&read(&mut quick)), ["snapshot"]);
    for seq in 1..=100 {
        stats.source.metrics.generation_tokens.add(1);
        assert!(stats.tick(1));
        let events = read(&mut quick);
        assert_eq!(names(&events), ["delta"]);
        assert_eq!(events[0].1["seq"], seq);
    }
    // Nothing of the hundred events is kept for the slow one.
    assert!(slow.inbox_len() <= 8);
    let events = read(&mut slow);
    assert_eq!(names(&events), ["snapshot"]);
    assert_eq!(events[0].1["seq"], 100);
    assert_eq!(events[0].1["values"]["vllm:generation_tokens_total"], 100.0);
    assert!(stats.tick(1));
    assert_eq!(names(&read(&mut slow)), ["delta"]);
}

#[tokio::test]
async fn drain_ends_every_watcher_even_one_that_does_not_read() {
    let (stats, _engine) = stats();
    let (mut slow, mut quick) = (stats.watch().expect("room"), stats.watch().expect("room"));
    (0..20).for_each(|_| assert!(stats.tick(1)));
    assert_eq!(names(&read(&mut quick)), ["snapshot"]);
    (0..20).for_each(|_| assert!(stats.tick(1)));
    stats.source.drain.begin();
    stats.end();
    assert_eq!(sampler(&stats), None);
    assert_eq!(names(&read(&mut slow)), ["end"]);
    assert_eq!(
        read(&mut quick),
        [("end".to_owned(), serde_json::json!({"reason": "draining"}))]
    );
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(
        Pin::new(&mut slow).poll_frame(&mut context),
        Poll::Ready(None)
    ));
    assert_eq!(stats.watch().err(), Some(ApiError::Draining));
}

/// What an idle server sends is small: a line with the time, the heartbeat's age and the process's own figures.
#[tokio::test]
async fn delta_of_an_idle_server_is_small() {
    let (stats, _engine) = stats();
    let mut watcher = stats.watch().expect("room");
    read(&mut watcher);
    (0..3).for_each(|_| assert!(stats.tick(1)));
    for (name, data) in read(&mut watcher) {
        assert_eq!(name, "delta");
        for absent in ["slots", "histograms", "health", "steps_missed"] {
            assert!(data.get(absent).is_none(), "{data}");
        }
        assert!(data.to_string().len() < 2048, "{data}");
    }
}

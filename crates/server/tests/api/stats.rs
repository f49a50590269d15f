//! `/izar/stats`: the same numbers as `/metrics`, changes that add up, and who may watch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use izar_server::ServerOptions;
use izar_transport::mock_engine::Reply;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::common::{Harness, answering, saying, tokens_of};
use crate::operations::hanging;
use crate::support::server;

const PATH: &str = "/izar/stats";
/// What `/metrics` has that is not the same a moment later, whatever the load.
const RESTLESS: [&str; 5] = [
    "izar:engine_heartbeat_age_seconds",
    "izar:http_responses_total",
    "izar:host_cpu_seconds_total",
    "izar:ring_polls",
    "process_",
];

fn is_restless(name: &str) -> bool {
    RESTLESS.iter().any(|start| name.starts_with(start))
}

/// A watcher, and what it knows.
struct Watch {
    body: Body,
    state: Value,
    num_deltas: u64,
}

impl Watch {
    async fn start(harness: &Harness) -> Self {
        let request = Request::get(PATH).body(Body::empty()).expect("a request");
        let response = harness.router.clone().oneshot(request).await;
        let response = response.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/event-stream; charset=utf-8");
        assert_eq!(headers["cache-control"], "no-cache");
        let mut watch = Self {
            body: response.into_body(),
            state: Value::Null,
            num_deltas: 0,
        };
        assert_eq!(watch.next().await, "snapshot");
        watch
    }

    /// Takes in the next event and says which it was.
    async fn next(&mut self) -> String {
        let frame = self.body.frame().await.expect("an event").expect("whole");
        let text = String::from_utf8(frame.into_data().expect("data").to_vec());
        let text = text.expect("UTF-8");
        let (name, data) = text
            .strip_prefix("event: ")
            .and_then(|rest| rest.strip_suffix("\n\n")?.split_once("\ndata: "))
            .unwrap_or_else(|| panic!("{text:?}"));
        let data: Value = serde_json::from_str(data).expect("JSON");
        match name {
            "snapshot" => {
                self.state = data;
                let slots = std::mem::replace(&mut self.state["slots"], json!([]));
                let num_slots = self.state["num_slots"].as_u64().expect("a number");
                self.state["slots"] = json!(vec![9; num_slots as usize]);
                self.write_slots(&slots);
            }
            "delta" => self.apply(data),
            _ => {}
        }
        name.to_owned()
    }

    /// What docs/stats.md says that a client does with a delta.
    fn apply(&mut self, delta: Value) {
        self.num_deltas += 1;
        let state = &mut self.state;
        assert_eq!(delta["seq"], state["seq"].as_u64().expect("a number") + 1);
        for (name, value) in delta.as_object().expect("an object") {
            match name.as_str() {
                "values" => {
                    for (name, value) in value.as_object().expect("an object") {
                        state["values"][name] = value.clone();
                    }
                }
                "histograms" => {
                    for (name, change) in value.as_object().expect("an object") {
                        let histogram = &mut state["histograms"][name];
                        histogram["sum"] = change["sum"].clone();
                        for (idx, count) in change["counts"].as_object().expect("an object") {
                            let idx: usize = idx.parse().expect("an index");
                            histogram["counts"][idx] = count.clone();
                        }
                    }
                }
                "steps" => {
                    let steps = state["steps"].as_array_mut().expect("a list");
                    steps.extend(value.as_array().expect("a list").iter().cloned());
                    let num_old = steps.len().saturating_sub(256);
                    steps.drain(..num_old);
                }
                "slots" | "steps_missed" => {}
                _ => state[name] = value.clone(),
            }
        }
        if let Some(runs) = delta.get("slots") {
            self.write_slots(runs);
        }
    }

    fn write_slots(&mut self, runs: &Value) {
        let runs: Vec<usize> = serde_json::from_value(runs.clone()).expect("numbers");
        for run in runs.chunks(3) {
            for slot in run[0]..run[0] + run[1] {
                self.state["slots"][slot] = json!(run[2]);
            }
        }
    }

    /// Reads on until the sample with this number.
    async fn until(&mut self, seq: u64) {
        while self.state["seq"].as_u64() < Some(seq) {
            assert_eq!(self.next().await, "delta");
        }
    }

    fn value(&self, name: &str) -> f64 {
        let value = &self.state["values"][name];
        value.as_f64().unwrap_or_else(|| panic!("{name}: {value}"))
    }

    /// Slots in each state, counted one by one.
    fn slots(&self) -> BTreeMap<&str, f64> {
        let names = self.state["slot_states"].as_array().expect("a list");
        let names: Vec<_> = names.iter().map(|it| it.as_str().expect("text")).collect();
        let mut counts: BTreeMap<_, _> = names.iter().map(|name| (*name, 0.0)).collect();
        for slot in self.state["slots"].as_array().expect("a list") {
            let name = names[slot.as_u64().expect("a state") as usize];
            *counts.get_mut(name).expect("a state") += 1.0;
        }
        counts
    }

    /// All that `/metrics` would say, sample by sample: names with labels, and values.
    fn as_metrics(&self) -> BTreeMap<String, f64> {
        let mut samples = BTreeMap::new();
        for (name, value) in self.state["values"].as_object().expect("an object") {
            let value = value.as_f64().expect("a number");
            samples.insert(name.clone(), value);
        }
        for (name, histogram) in self.state["histograms"].as_object().expect("an object") {
            let counts: Vec<u64> =
                serde_json::from_value(histogram["counts"].clone()).expect("numbers");
            let bounds: Vec<f64> =
                serde_json::from_value(histogram["bounds"].clone()).expect("numbers");
            assert_eq!(counts.len(), bounds.len() + 1);
            let mut total = 0;
            for (idx, count) in counts.iter().enumerate() {
                total += count;
                let bound = bounds
                    .get(idx)
                    .map_or("+Inf".to_owned(), |it| format!("{it:?}"));
                samples.insert(format!("{name}_bucket{{le=\"{bound}\"}}"), total as f64);
            }
            let sum = histogram["sum"].as_f64().expect("a number");
            samples.insert(format!("{name}_sum"), sum);
            samples.insert(format!("{name}_count"), total as f64);
        }
        samples
    }
}

/// The samples of `/metrics`, without the labels that all of them carry.
async fn metrics(harness: &Harness) -> BTreeMap<String, f64> {
    let page = harness.get("/metrics").await.text;
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            let name = name.replace("model_name=\"mock\",engine=\"0\"", "");
            let name = name.replace("{,", "{").replace("{}", "");
            (name, value.parse().expect("a number"))
        })
        .collect()
}

#[tokio::test]
async fn watcher_and_metrics_say_the_same_under_load() {
    let mut mock = hanging("abcd");
    mock.max_num_seqs = 8;
    let harness = Harness::new(mock);
    // Some that end, then eight that run and twelve that wait.
    for _ in 0..3 {
        let body = json!({"max_tokens": 3, "ignore_eos": true});
        assert_eq!(harness.complete(body).await.status, StatusCode::OK);
    }
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(harness.begin_stream().await);
    }
    let waiting: Vec<_> = (0..6)
        .map(|_| tokio::spawn(harness.post_chat(json!({"n": 2}))))
        .collect();
    let mut watch = Watch::start(&harness).await;
    while (
        watch.value("vllm:num_requests_running"),
        watch.value("vllm:num_requests_waiting"),
    ) != (8.0, 12.0)
        || watch.value("izar:ring_slots_by_state{state=\"decode\"}") != 8.0
    {
        watch.next().await;
    }
    let now = watch.state["seq"].as_u64().expect("a number");
    watch.until(now + 2).await;

    let (watched, scraped) = (watch.as_metrics(), metrics(&harness).await);
    let names = |samples: &BTreeMap<String, f64>| samples.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&watched), names(&scraped));
    assert!(watched.len() > 400);
    for (name, value) in watched.iter().filter(|(name, _)| !is_restless(name)) {
        // A decimal fraction may be read back with another last bit.
        let apart = (value - scraped[name]).abs();
        assert!(
            apart <= 1e-12 * value.abs(),
            "{name}: {value} {}",
            scraped[name]
        );
    }
    for (state, count) in watch.slots() {
        let name = format!("izar:ring_slots_by_state{{state=\"{state}\"}}");
        assert_eq!(watch.value(&name), count, "{state}");
    }
    assert_eq!(watch.slots()["pending"], 12.0);
    assert_eq!(watch.state["health"], "ready");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn snapshot_and_all_deltas_since_make_the_snapshot_of_whoever_comes_later() {
    let mut mock = answering(|_| Reply::tokens(tokens_of("some words")));
    mock.step_time = Duration::from_millis(5);
    let harness = Harness::new(mock);
    let mut early = Watch::start(&harness).await;
    for _ in 0..6 {
        let answers = (0..20).map(|_| harness.chat(json!({"n": 2})));
        futures(answers).await;
        assert_eq!(early.next().await, "delta");
    }
    let late = Watch::start(&harness).await;
    early
        .until(late.state["seq"].as_u64().expect("a number"))
        .await;
    assert!(early.num_deltas >= 6);
    for (name, value) in late.state.as_object().expect("an object") {
        assert_eq!(value, &early.state[name], "{name}");
    }
    assert_eq!(
        early.state.as_object().map(|it| it.len()),
        late.state.as_object().map(|it| it.len())
    );
    let steps = late.state["steps"].as_array().expect("a list");
    let number = |step: &Value| step[0].as_u64().expect("a number");
    assert!(steps.len() > 10);
    assert!(
        steps
            .windows(2)
            .all(|pair| number(&pair[0]) < number(&pair[1]))
    );
    let window = &late.state["window"];
    assert!(window["tokens_per_second"].as_f64() > Some(0.0), "{window}");
    assert!(window["itl"]["p50"].as_f64() > Some(0.001), "{window}");
}

/// Awaits all of them at the same time.
async fn futures<F: Future>(all: impl Iterator<Item = F>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

#[tokio::test]
async fn watching_needs_a_key_where_there_are_keys() {
    let options = ServerOptions {
        api_keys: vec!["secret".to_owned()],
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    let refused = harness.get(PATH).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.error("code"), "invalid_api_key");
    for (key, status) in [
        ("Bearer secret", StatusCode::OK),
        ("Bearer wrong", StatusCode::UNAUTHORIZED),
    ] {
        let request = Request::get(PATH).header("authorization", key);
        let request = request.body(Body::empty()).expect("a request");
        let response = harness.router.clone().oneshot(request).await;
        assert_eq!(response.expect("infallible").status(), status, "{key}");
    }
}

#[tokio::test]
async fn snapshot_says_who_serves_what_on_what() {
    let harness = Harness::with(
        saying("ok"),
        ServerOptions {
            page: false,
            ..ServerOptions::default()
        },
    );
    let watch = Watch::start(&harness).await;
    let (server, engine) = (&watch.state["server"], &watch.state["engine"]);
    assert_eq!(server["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server["names"], json!(["mock", "other/name"]));
    assert_eq!(
        (&server["model"], &server["needs_key"]),
        (&json!("mock"), &json!(false))
    );
    assert_eq!(
        (&server["has_chat"], &server["has_reasoning"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        (&engine["placement"], &engine["block_size"]),
        (&json!("mock"), &json!(16))
    );
    assert!(engine["hardware"].as_str().is_some_and(|it| !it.is_empty()));
    assert_eq!(watch.state["num_slots"], 4096);
    assert_eq!(watch.slots()["empty"], 4096.0);
}

#[tokio::test]
async fn watcher_learns_that_the_engine_has_ended() {
    let mut harness = Harness::new(saying("ok"));
    let mut watch = Watch::start(&harness).await;
    assert_eq!(watch.value("izar:engine_up"), 1.0);
    harness.stop_engine();
    while watch.state["health"] != "stopped" {
        assert_eq!(watch.next().await, "delta");
    }
    assert_eq!(watch.value("izar:engine_up"), 0.0);
}

#[tokio::test]
async fn watchers_do_not_keep_the_server_from_leaving() {
    let (server, _client, _engine) = server(saying("ok"), ServerOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(listener, async {
        let _ = stopped.await;
    }));
    let mut watchers = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(address).await.expect("connected");
        let request = format!("GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut some = [0; 64];
        assert!(socket.read(&mut some).await.expect("a head") > 0);
        watchers.push(socket);
    }
    let told = Instant::now();
    stop.send(()).expect("serving");
    serving.await.expect("no panic");
    assert!(
        told.elapsed() < Duration::from_millis(1500),
        "{:?}",
        told.elapsed()
    );
    for mut socket in watchers {
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.expect("an end");
        let rest = String::from_utf8(rest).expect("UTF-8");
        let end = "event: end\ndata: {\"reason\":\"draining\"}\n\n\r\n0\r\n\r\n";
        assert!(
            rest.ends_with(end),
            "{}",
            &rest[rest.len().saturating_sub(200)..]
        );
    }
}

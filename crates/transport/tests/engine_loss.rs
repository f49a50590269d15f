//! What a front end sees when the engine, the lease or the client itself goes away.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use common::{LONG, collect, connect, eager, eventually, ids, is_unused, pairs, small_ring};
use izar_transport::client::{
    ClientOptions, EngineError, EngineHealth, FinishReason, RequestError, RingClient, Submission,
    SubmitError,
};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply, ReplyEnd, ReplyTokens};
use izar_transport::{Transport, TransportError};

fn hanging() -> MockOptions {
    MockOptions::scripted(|_, _| Reply {
        tokens: ReplyTokens::List(vec![1, 2]),
        end: ReplyEnd::Hang,
    })
}

/// Waits until submissions are refused, and returns why. Those taken before the client noticed end by themselves.
fn refusal(client: &RingClient) -> SubmitError {
    let mut refused = None;
    eventually("submissions are refused", || {
        refused = client.submit(&Submission::new(&[1], 10)).err();
        refused.is_some()
    });
    refused.expect("refused")
}

fn impatient() -> ClientOptions {
    ClientOptions {
        engine_timeout: Duration::from_millis(500),
        ..eager()
    }
}

#[test]
fn streams_of_a_silent_engine_end_and_service_resumes_when_it_wakes() {
    for pair in pairs(&small_ring()) {
        println!("{}", pair.kind);
        let engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near, impatient());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        let mut tokens = Vec::new();
        while tokens.len() < 2 {
            handle.wait(&mut tokens, LONG).expect("two tokens");
        }
        let frozen = Instant::now();
        engine.freeze();
        let (rest, finish) = collect(&mut handle);
        assert!(rest.is_empty() && finish.num_generated == 2);
        let FinishReason::Failed(RequestError::EngineLost(silent)) = finish.reason else {
            panic!("{finish:?}")
        };
        assert!(
            silent >= Duration::from_millis(500)
                && silent <= frozen.elapsed() + Duration::from_millis(100)
        );
        assert_eq!(
            refusal(&client),
            SubmitError::EngineNotReady(EngineHealth::Lost)
        );
        assert_eq!(
            client.stats().slots_in_use,
            1,
            "the engine may still write there"
        );
        drop(handle);
        engine.thaw();
        eventually("the slot of the lost request is back", || {
            is_unused(&client)
        });
        eventually("requests are taken again", || {
            client.submit(&Submission::new(&[1], 10)).is_ok()
        });
    }
}

#[test]
fn a_stopping_engine_ends_its_requests_and_takes_no_more() {
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near, eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("it runs", || engine.stats().num_running == 1);
        drop(engine);
        let reason = collect(&mut handle).1.reason;
        assert_eq!(
            reason,
            FinishReason::Failed(EngineError::EngineStopping.into())
        );
        assert_eq!(
            refusal(&client),
            SubmitError::EngineNotReady(EngineHealth::Stopped)
        );
    }
}

#[test]
fn a_failed_engine_says_so_to_everyone() {
    for pair in pairs(&small_ring()) {
        let mut engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near, eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        engine.fail();
        let reason = collect(&mut handle).1.reason;
        assert_eq!(
            reason,
            FinishReason::Failed(EngineError::EngineFailed.into())
        );
        let health = EngineHealth::Failed(Some(EngineError::EngineFailed));
        assert_eq!(refusal(&client), SubmitError::EngineNotReady(health));
    }
}

#[test]
fn an_engine_that_stops_without_ending_its_requests_does_not_hang_them() {
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near, eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("it has said all", || engine.stats().output_tokens == 2);
        let mut ring = engine.kill();
        ring.set_engine_state(izar_ring::EngineState::Stopped, None);
        let (tokens, finish) = collect(&mut handle);
        assert_eq!(ids(&tokens), [1, 2], "what was published is delivered");
        assert_eq!(
            finish.reason,
            FinishReason::Failed(RequestError::EngineStopped)
        );
    }
}

#[test]
fn a_draining_engine_finishes_what_it_has() {
    let slow = MockOptions {
        step_time: Duration::from_millis(5),
        ..MockOptions::default()
    };
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, slow.clone());
        let client = connect(pair.near, eager());
        let mut handle = client.submit(&Submission::new(&[1], 20)).expect("submit");
        eventually("it runs", || engine.stats().num_running == 1);
        engine.drain();
        eventually("it says that it drains", || {
            client.engine_health() == EngineHealth::Draining
        });
        assert_eq!(
            refusal(&client),
            SubmitError::EngineNotReady(EngineHealth::Draining)
        );
        assert_eq!(collect(&mut handle).1.reason, FinishReason::Length);
    }
}

#[test]
fn a_front_end_that_is_silent_for_too_long_loses_its_lease_and_learns_it() {
    let mut options = small_ring();
    options.lease_timeout_ns = 300_000_000;
    for pair in pairs(&options) {
        println!("{}", pair.kind);
        let _engine = MockEngine::serve(pair.engine, hanging());
        let asleep = ClientOptions {
            heartbeat_interval: Duration::from_secs(3600),
            ..ClientOptions::default()
        };
        let client = connect(pair.near.clone(), asleep);
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        let (tokens, finish) = collect(&mut handle);
        assert_eq!(ids(&tokens), [1, 2]);
        assert_eq!(
            finish.reason,
            FinishReason::Failed(RequestError::LeaseRevoked)
        );
        eventually("the client knows", || {
            client.disconnected() == Some(RequestError::LeaseRevoked)
        });
        assert_eq!(
            refusal(&client),
            SubmitError::Disconnected(RequestError::LeaseRevoked)
        );
        let again = connect(pair.near, eager());
        again
            .submit(&Submission::new(&[1], 10))
            .map(drop)
            .expect("a new lease works");
    }
}

#[test]
fn closing_the_client_ends_its_requests_and_gives_the_lease_back() {
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near.clone(), eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("it runs", || engine.stats().num_running == 1);
        drop(client);
        assert_eq!(
            collect(&mut handle).1.reason,
            FinishReason::Failed(RequestError::ClientClosed)
        );
        eventually("the engine cancels it", || engine.stats().num_running == 0);
        let mut next = None;
        eventually("the lease is free", || {
            next = RingClient::connect(pair.near.clone(), eager()).ok();
            next.is_some()
        });
        assert_eq!(next.expect("connected").stats().slots_in_use, 0);
    }
}

#[test]
fn an_engine_that_never_becomes_ready_takes_nothing() {
    for pair in pairs(&small_ring()) {
        let client = RingClient::connect(pair.near, eager()).expect("the ring is there");
        assert_eq!(
            client.wait_ready(Duration::from_millis(20)),
            Ok(EngineHealth::Starting)
        );
        assert_eq!(
            refusal(&client),
            SubmitError::EngineNotReady(EngineHealth::Starting)
        );
    }
}

#[test]
fn impossible_progress_words_fail_the_request_and_not_the_client() {
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, hanging());
        let client = connect(pair.near, eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("it runs", || engine.stats().num_running == 1);
        let mut tokens = Vec::new();
        while tokens.len() < 2 {
            handle.wait(&mut tokens, LONG).expect("two tokens");
        }
        let layout = *engine.kill().layout();
        // More tokens than there is room for.
        let count = izar_ring::CountWord {
            generation: 1,
            num_generated: 11,
            is_final: false,
        };
        let at = layout.progress_offset(izar_ring::SlotIdx(handle.slot())) + 8;
        pair.far.write_flag(at, count.pack()).expect("write");
        let FinishReason::Failed(error) = collect(&mut handle).1.reason else {
            panic!("it must fail")
        };
        assert!(matches!(error, RequestError::CorruptRing(_)), "{error}");
        assert_eq!(client.disconnected(), None);
    }
}

/// A transport that fails when told to.
struct Faulty {
    inner: Arc<dyn Transport>,
    fault: AtomicU8,
}

const BROKEN: u8 = 1;
const PANICKING: u8 = 2;

impl Faulty {
    fn check(&self) -> Result<(), TransportError> {
        match self.fault.load(Ordering::Relaxed) {
            BROKEN => Err(TransportError::Disconnected("cable cut".into())),
            PANICKING => panic!("a broken invariant, for the test"),
            _ => Ok(()),
        }
    }
}

impl Transport for Faulty {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), TransportError> {
        self.check().and_then(|()| self.inner.read(offset, dst))
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), TransportError> {
        self.inner.write(offset, src)
    }
    fn write_flag(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        self.inner.write_flag(offset, value)
    }
    fn read_word(&self, offset: u64) -> Result<u64, TransportError> {
        self.inner.read_word(offset)
    }
    fn compare_and_swap(&self, offset: u64, current: u64, new: u64) -> Result<u64, TransportError> {
        self.inner.compare_and_swap(offset, current, new)
    }
}

fn ends_with(fault: u8, expected: &RequestError) {
    for pair in pairs(&small_ring()) {
        let engine = MockEngine::serve(pair.engine, hanging());
        let faulty = Arc::new(Faulty {
            inner: pair.near,
            fault: AtomicU8::new(0),
        });
        let client = connect(faulty.clone(), eager());
        let mut handle = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("it runs", || engine.stats().num_running == 1);
        faulty.fault.store(fault, Ordering::Relaxed);
        assert_eq!(
            collect(&mut handle).1.reason,
            FinishReason::Failed(expected.clone())
        );
        assert_eq!(
            refusal(&client),
            SubmitError::Disconnected(expected.clone())
        );
    }
}

#[test]
fn a_transport_that_fails_ends_every_stream() {
    ends_with(
        BROKEN,
        &TransportError::Disconnected("cable cut".into()).into(),
    );
}

#[test]
fn a_reader_that_panics_leaves_nobody_waiting() {
    ends_with(PANICKING, &RequestError::ReaderFailed);
}

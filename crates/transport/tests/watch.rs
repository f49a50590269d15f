//! Watching a ring: every slot's state, and the step log, over every transport.

mod common;

use common::{eager, pairs, small_ring};
use izar_ring::{
    EngineState, FinishReason, OutputToken, STEP_LOG_LEN, SlotIdx, SlotResult, State, StepRecord,
};
use izar_transport::EngineEnd;
use izar_transport::client::{NewSteps, RingClient, Submission};

fn client_of(near: std::sync::Arc<dyn izar_transport::Transport>) -> RingClient {
    RingClient::connect(near, eager()).expect("a lease")
}

/// Describes the engine enough for front ends to submit.
fn open(engine: &mut EngineEnd) {
    engine.describe(&izar_ring::EngineInfo {
        max_model_len: 64,
        vocab_size: 70,
        block_size: 16,
        num_kv_blocks: 4,
        max_num_seqs: 2,
        max_num_batched_tokens: 32,
        model_name: "tiny",
        placement: "by hand",
        hardware: "a test",
    });
    engine.set_engine_state(EngineState::Ready, None);
}

fn states(client: &RingClient) -> Vec<State> {
    let mut states = Vec::new();
    client.slot_states(&mut states).expect("reachable");
    states
}

/// How many slots are in each state, those that are empty left out.
fn in_use(client: &RingClient) -> Vec<State> {
    let mut states = states(client);
    assert_eq!(states.len(), 64);
    states.retain(|state| *state != State::Empty);
    states
}

#[test]
fn watcher_sees_every_state_of_a_slots_life() {
    for pair in pairs(&small_ring()) {
        let mut engine = pair.engine;
        open(&mut engine);
        let client = client_of(pair.near);
        assert_eq!(in_use(&client), []);
        let handle = client.submit(&Submission::new(&[1, 2], 4)).expect("a slot");
        assert_eq!(in_use(&client), [State::PrefillPending], "{}", pair.kind);
        let mut slot = SlotIdx(0);
        engine.scan(&mut |event| {
            if let izar_ring::SlotEvent::Submitted { slot: submitted } = event {
                slot = submitted;
            }
        });
        engine.claim(slot, 1).expect("a valid request");
        assert_eq!(in_use(&client), [State::PrefillProcessing]);
        let output = OutputToken {
            token: 5,
            timestamp_ns: 2,
        };
        engine.publish_token(slot, output, None);
        assert_eq!(in_use(&client), [State::DecodeProcessing]);
        engine.set_state(slot, State::DecodePaused);
        assert_eq!(in_use(&client), [State::DecodePaused]);
        assert_eq!(states(&client)[slot.0 as usize], State::DecodePaused);
        engine.complete(slot, FinishReason::Stop, &SlotResult::default());
        // The token reader may have read it out already.
        assert!(matches!(in_use(&client)[..], [State::DecodeCompleted]));
        drop(handle);
        while !in_use(&client).is_empty() {
            engine.scan(&mut |_| ());
            std::thread::yield_now();
        }
    }
}

fn log(engine: &mut EngineEnd, steps: std::ops::Range<u64>) {
    for step in steps {
        engine.log_step(&StepRecord {
            step,
            gap_ns: step,
            ..StepRecord::default()
        });
    }
}

fn read(client: &RingClient, next: u64) -> (Vec<u64>, NewSteps) {
    let mut steps = Vec::new();
    let news = client.new_steps(next, &mut steps).expect("reachable");
    assert!(steps.iter().all(|step| step.step == step.gap_ns));
    (steps.iter().map(|step| step.step).collect(), news)
}

#[test]
fn watcher_reads_each_step_once_and_knows_how_many_it_has_missed() {
    for pair in pairs(&small_ring()) {
        let mut engine = pair.engine;
        let client = client_of(pair.near);
        let news = |next, num_missed| NewSteps { next, num_missed };
        assert_eq!(read(&client, 0), (vec![], news(0, 0)));
        log(&mut engine, 0..3);
        assert_eq!(read(&client, 0), (vec![0, 1, 2], news(3, 0)));
        assert_eq!(read(&client, 3), (vec![], news(3, 0)));
        log(&mut engine, 3..1030);
        // The oldest record but one: the next step would be written over the oldest.
        let (steps, found) = read(&client, 3);
        assert_eq!(found, news(1030, 1030 - STEP_LOG_LEN + 1 - 3));
        assert_eq!(steps, (1030 - STEP_LOG_LEN + 1..1030).collect::<Vec<_>>());
        log(&mut engine, 1030..1040);
        assert_eq!(
            read(&client, 1030),
            ((1030..1040).collect(), news(1040, 0)),
            "{}",
            pair.kind
        );
        // Another ring's number: from the start.
        assert_eq!(read(&client, 5000).1.next, 1040);
    }
}

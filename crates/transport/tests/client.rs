//! The client against a mock engine, over every transport.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{
    block_on, collect, connect, eager, eventually, hanging_after, ids, is_unused, pairs, ring,
    small_ring, with_mock,
};
use izar_transport::client::{
    EngineError, FinishReason, Progress, RingClient, SamplingParams, Submission, SubmitError,
};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply};

#[test]
fn tokens_arrive_complete_in_order_and_with_their_end() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            let mut handle = client
                .submit(&Submission::new(&[100], 5000))
                .expect("submit");
            let (tokens, finish) = collect(&mut handle);
            assert_eq!(ids(&tokens), (100..5100).collect::<Vec<u32>>());
            assert_eq!(
                (finish.reason.clone(), finish.num_generated),
                (FinishReason::Length, 5000)
            );
            assert!(finish.claimed_ns > 0 && finish.claimed_ns <= finish.first_token_ns);
            assert!(
                finish.first_token_ns == tokens[0].timestamp_ns
                    && finish.first_token_ns <= finish.completed_ns
            );
            assert_eq!(
                handle.try_next(&mut Vec::new()),
                Some(Progress::Finished(finish)),
                "it says so again"
            );
        },
    );
}

#[test]
fn a_task_is_woken_for_tokens_and_for_the_end() {
    let slow = MockOptions {
        step_time: Duration::from_millis(3),
        ..MockOptions::default()
    };
    with_mock(&small_ring(), eager(), slow, |client, _| {
        let mut handle = client.submit(&Submission::new(&[7], 6)).expect("submit");
        let (mut tokens, mut num_wakes) = (Vec::new(), 0);
        let finish = block_on(async {
            loop {
                num_wakes += 1;
                if let Progress::Finished(finish) = handle.next(&mut tokens).await {
                    return finish;
                }
            }
        });
        assert_eq!(ids(&tokens), [7, 8, 9, 10, 11, 12]);
        assert_eq!(finish.reason, FinishReason::Length);
        assert!(
            (2..=6).contains(&num_wakes),
            "streamed, and never woken for nothing: {num_wakes}"
        );
    });
}

#[test]
fn stop_tokens_and_the_end_of_a_script_stop() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::scripted(|_, _| Reply::tokens([4, 5, 6])),
        |client, _| {
            let mut to_the_end = client.submit(&Submission::new(&[1], 100)).expect("submit");
            let (tokens, finish) = collect(&mut to_the_end);
            assert_eq!(ids(&tokens), [4, 5, 6]);
            assert_eq!(finish.reason, FinishReason::Stop { token: Some(6) });
            let stop_at_five = Submission {
                stop_token_ids: &[99, 5],
                ..Submission::new(&[1], 100)
            };
            let (tokens, finish) = collect(&mut client.submit(&stop_at_five).expect("submit"));
            assert_eq!(ids(&tokens), [4, 5]);
            assert_eq!(finish.reason, FinishReason::Stop { token: Some(5) });
        },
    );
}

#[test]
fn log_probabilities_come_with_their_tokens() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            for num_top in [0, 1, 5] {
                let submission = Submission {
                    logprobs: Some(num_top),
                    ..Submission::new(&[10], 20)
                };
                let (tokens, _) = collect(&mut client.submit(&submission).expect("submit"));
                assert_eq!(tokens.len(), 20);
                for token in tokens {
                    let logprobs = token.logprobs.expect("asked for");
                    assert_eq!((logprobs.rank, logprobs.top.len()), (1, num_top as usize));
                    assert!(logprobs.sampled < 0.0);
                    assert!(
                        logprobs
                            .top
                            .first()
                            .is_none_or(|&top| top == (token.token, logprobs.sampled))
                    );
                }
            }
            let (tokens, _) =
                collect(&mut client.submit(&Submission::new(&[10], 5)).expect("submit"));
            assert!(
                tokens.iter().all(|token| token.logprobs.is_none()),
                "not asked for"
            );
        },
    );
}

#[test]
fn everything_asked_for_reaches_the_engine() {
    for pair in pairs(&small_ring()) {
        let mut engine = pair.engine;
        let info = izar_ring::EngineInfo {
            max_model_len: 64,
            vocab_size: 70,
            block_size: 16,
            num_kv_blocks: 4,
            max_num_seqs: 2,
            max_num_batched_tokens: 32,
            model_name: "tiny",
            placement: "host-sync",
            hardware: "two cores",
        };
        engine.describe(&info);
        engine.set_engine_state(izar_ring::EngineState::Ready, None);
        let client = connect(pair.near, eager());
        let status = client.engine_status().expect("reachable");
        assert_eq!(
            (
                status.model_name.as_str(),
                status.vocab_size,
                status.max_model_len
            ),
            ("tiny", 70, 64)
        );
        let sampling = SamplingParams {
            temperature: 0.5,
            top_p: 0.75,
            top_k: 12,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: 0.25,
            frequency_penalty: -0.25,
            seed: Some(99),
        };
        let submission = Submission {
            min_tokens: 2,
            sampling,
            stop_token_ids: &[3],
            ignore_eos: true,
            logprobs: Some(4),
            logit_bias: &[(8, 1.5), (9, -2.0)],
            allowed_token_ids: Some(&[1, 2, 3]),
            masked_vocab_size: 70,
            prompt_logprobs: Some(2),
            bad_words: &[&[4, 5], &[6]],
            priority: -3,
            request_id: 1234,
            ..Submission::new(&[11, 12, 13], 9)
        };
        let handle = client.submit(&submission).expect("submit");
        let mut slot = None;
        engine.scan(&mut |event| match event {
            izar_ring::SlotEvent::Submitted { slot: submitted } => slot = Some(submitted),
            other => panic!("{other:?}"),
        });
        let slot = slot.expect("announced");
        assert_eq!(slot.0, handle.slot());
        let request = engine.claim(slot, 5).expect("valid");
        assert_eq!(engine.prompt(slot), [11, 12, 13]);
        assert_eq!(engine.stop_ids(slot), [3]);
        assert_eq!(engine.allowed_ids(slot), [1, 2, 3]);
        assert!(request.is_masked && engine.mask_source(slot).is_some());
        assert_eq!(request.num_prompt_logprobs, Some(2));
        assert_eq!(
            engine.bad_words(slot).collect::<Vec<_>>(),
            [&[4, 5][..], &[6]]
        );
        let biases: Vec<_> = engine
            .logit_bias(slot)
            .iter()
            .map(|bias| (bias.token, bias.bias))
            .collect();
        assert_eq!(biases, [(8, 1.5), (9, -2.0)]);
        assert_eq!(
            (request.request_id, request.priority, request.num_logprobs),
            (1234, -3, Some(4))
        );
        assert_eq!(
            (request.max_tokens, request.min_tokens, request.ignore_eos),
            (9, 2, true)
        );
        assert_eq!(
            (request.seed, request.temperature, request.top_p),
            (Some(99), 0.5, 0.75)
        );
        assert_eq!(
            (request.top_k, request.min_p, request.repetition_penalty),
            (12, 0.125, 1.5)
        );
        assert_eq!(
            (request.presence_penalty, request.frequency_penalty),
            (0.25, -0.25)
        );
        assert!(request.arrival_ns > 0);
    }
}

#[test]
fn nonsense_is_refused_before_it_takes_anything() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            let empty: &[u32] = &[];
            for nonsense in [
                Submission::new(&[], 5),
                Submission::new(&[1], 0),
                Submission {
                    logprobs: Some(1000),
                    ..Submission::new(&[1], 5)
                },
                Submission {
                    bad_words: &[empty],
                    ..Submission::new(&[1], 5)
                },
                Submission {
                    allowed_token_ids: Some(empty),
                    ..Submission::new(&[1], 5)
                },
            ] {
                assert!(
                    matches!(client.submit(&nonsense), Err(SubmitError::Invalid(_))),
                    "{nonsense:?}"
                );
            }
            let long = vec![1; 1 << 17];
            let refused = client.submit(&Submission::new(&long, 5));
            assert!(
                matches!(refused, Err(SubmitError::InputTooLarge { .. })),
                "{refused:?}"
            );
            let refused = client.submit(&Submission::new(&[1], 1 << 20));
            assert!(
                matches!(refused, Err(SubmitError::OutputTooLarge { .. })),
                "{refused:?}"
            );
            assert!(is_unused(&client));
        },
    );
}

#[test]
fn what_the_engine_refuses_ends_with_its_reason() {
    let failing = MockOptions::scripted(|_, _| Reply::failure(EngineError::NeverFits));
    with_mock(&small_ring(), eager(), failing, |client, _| {
        let (tokens, finish) =
            collect(&mut client.submit(&Submission::new(&[1], 5)).expect("submit"));
        assert_eq!(
            (tokens.len(), finish.reason),
            (0, FinishReason::Failed(EngineError::NeverFits.into()))
        );
        let hot = SamplingParams {
            temperature: f32::NAN,
            ..SamplingParams::default()
        };
        let bad = Submission {
            sampling: hot,
            ..Submission::new(&[1], 5)
        };
        let (_, finish) = collect(&mut client.submit(&bad).expect("the engine judges it"));
        let expected = EngineError::BadRequest(izar_transport::client::BadRequest::Temperature);
        assert_eq!(finish.reason, FinishReason::Failed(expected.into()));
        eventually("all space is back", || is_unused(&client));
    });
}

#[test]
fn cancelling_ends_the_stream_and_dropping_frees_everything() {
    with_mock(
        &small_ring(),
        eager(),
        hanging_after(vec![1, 2]),
        |client, engine| {
            let mut cancelled = client.submit(&Submission::new(&[1], 10)).expect("submit");
            let dropped = client.submit(&Submission::new(&[1], 10)).expect("submit");
            eventually("both have said all", || engine.stats().output_tokens == 4);
            cancelled.cancel().expect("reachable");
            drop(dropped);
            let (tokens, finish) = collect(&mut cancelled);
            assert_eq!(
                (ids(&tokens), finish.reason),
                (vec![1, 2], FinishReason::Cancelled)
            );
            drop(cancelled);
            eventually("all space is back", || is_unused(&client));
            assert_eq!(engine.stats().num_running, 0);
            assert_eq!(client.stats().num_cancelled, 2);
        },
    );
}

#[test]
fn a_request_cancelled_before_it_is_claimed_ends() {
    let one_at_a_time = MockOptions {
        max_num_seqs: 1,
        ..hanging_after(vec![1])
    };
    with_mock(&small_ring(), eager(), one_at_a_time, |client, engine| {
        let running = client.submit(&Submission::new(&[1], 10)).expect("submit");
        let mut waiting = client.submit(&Submission::new(&[1], 10)).expect("submit");
        eventually("one runs, one waits", || {
            (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
        });
        eventually("one has no token yet", || client.stats().num_pending == 1);
        waiting.cancel().expect("reachable");
        assert_eq!(collect(&mut waiting).1.reason, FinishReason::Cancelled);
        assert_eq!(client.stats().num_pending, 0);
        drop((running, waiting));
        eventually("all space is back", || is_unused(&client));
    });
}

#[test]
fn front_ends_share_an_engine_by_leases() {
    for pair in pairs(&ring(64, 2)) {
        let _engine = MockEngine::serve(pair.engine, MockOptions::default());
        let first = connect(pair.near.clone(), eager());
        let second = connect(pair.near.clone(), eager());
        assert!(
            RingClient::connect(pair.near.clone(), eager()).is_err(),
            "no third lease"
        );
        let mut a = first.submit(&Submission::new(&[1], 200)).expect("submit");
        let mut b = second
            .submit(&Submission::new(&[70_000], 200))
            .expect("submit");
        assert!(a.slot() < 32 && b.slot() >= 32, "each in its own share");
        assert_eq!(ids(&collect(&mut a).0), (1..201).collect::<Vec<u32>>());
        drop(first);
        assert_eq!(
            ids(&collect(&mut b).0),
            (70_000..70_200).collect::<Vec<u32>>()
        );
        let mut third = None;
        eventually("the first lease is free again", || {
            third = RingClient::connect(pair.near.clone(), eager()).ok();
            third.is_some()
        });
    }
}

#[test]
fn request_ids_are_the_callers_or_counted() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let mock = MockOptions::scripted(move |request, _| {
        log.lock().expect("log").push(request.request_id);
        Reply::tokens([1])
    });
    let (transport, _engine) = MockEngine::in_process(&small_ring(), mock).expect("create");
    let client = connect(transport, eager());
    let named = Submission {
        request_id: 77,
        ..Submission::new(&[1], 5)
    };
    let mut handles = [&Submission::new(&[1], 5), &named, &Submission::new(&[1], 5)]
        .map(|submission| client.submit(submission).expect("submit"));
    handles.iter_mut().for_each(|handle| drop(collect(handle)));
    assert_eq!(handles.map(|handle| handle.request_id()), [1, 77, 2]);
    assert_eq!(*seen.lock().expect("log"), [1, 77, 2]);
}

//! The client under load: a full ring, slow readers, many streams and threads; and under none.

mod common;

use std::time::Duration;

use common::{
    LONG, collect, connect, eager, eventually, hanging_after, ids, is_unused, ring, small_ring,
    with_mock,
};
use izar_transport::client::{ClientOptions, FinishReason, Shortage, Submission, SubmitError};
use izar_transport::mock_engine::{MockEngine, MockOptions};

#[test]
fn a_full_ring_is_backpressure_and_passes() {
    with_mock(
        &ring(4, 1),
        eager(),
        hanging_after(vec![1]),
        |client, engine| {
            let mut held: Vec<_> = (0..4)
                .map(|_| {
                    client
                        .submit(&Submission::new(&[1], 10))
                        .expect("free slot")
                })
                .collect();
            let Err(SubmitError::Full { what, retry_after }) =
                client.submit(&Submission::new(&[1], 10))
            else {
                panic!("a fifth slot");
            };
            assert_eq!(what, Shortage::Slots);
            assert!(retry_after >= Duration::from_millis(100));
            assert_eq!(
                (client.stats().slots_in_use, client.stats().num_refused),
                (4, 1)
            );
            eventually("all four run", || engine.stats().num_running == 4);
            held.pop();
            eventually("the slot of the dropped one is back", || {
                client.stats().slots_in_use == 3
            });
            held.push(
                client
                    .submit(&Submission::new(&[1], 10))
                    .expect("free again"),
            );
            // 1 MiB holds 65,536 tokens.
            let mut large = client;
            held.clear();
            eventually("all is back", || is_unused(&large));
            let _most = large
                .submit(&Submission::new(&[1], 60_000))
                .expect("most of the arena");
            let refused = large.submit(&Submission::new(&[1], 10_000));
            assert!(
                matches!(
                    refused,
                    Err(SubmitError::Full {
                        what: Shortage::OutputArena,
                        ..
                    })
                ),
                "{refused:?}"
            );
            large
                .submit(&Submission::new(&[1], 1_000))
                .map(drop)
                .expect("still room for a small one");
            let _ = &mut large;
        },
    );
}

#[test]
fn output_space_stays_with_a_slow_reader_and_its_slot_does_not() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            let mut slow = client.submit(&Submission::new(&[50], 100)).expect("submit");
            eventually("the slot is back unread", || {
                client.stats().slots_in_use == 0
            });
            assert!(client.stats().output_used_bytes >= 1600);
            let others: Vec<_> = (0..64)
                .map(|i| {
                    collect(&mut client.submit(&Submission::new(&[i], 50)).expect("submit"))
                        .1
                        .num_generated
                })
                .collect();
            assert_eq!(others, [50; 64]);
            assert_eq!(ids(&collect(&mut slow).0), (50..150).collect::<Vec<u32>>());
            drop(slow);
            eventually("all space is back", || is_unused(&client));
        },
    );
}

#[test]
fn a_bound_on_the_work_of_a_poll_loses_nothing_and_starves_nobody() {
    let bounded = ClientOptions {
        max_tokens_per_poll: 3,
        ..eager()
    };
    with_mock(
        &small_ring(),
        bounded,
        MockOptions::default(),
        |client, _| {
            let mut handles: Vec<_> = (0..20)
                .map(|i| {
                    client
                        .submit(&Submission::new(&[1000 * i], 100))
                        .expect("submit")
                })
                .collect();
            for (i, handle) in handles.iter_mut().enumerate() {
                let first = 1000 * i as u32;
                assert_eq!(
                    ids(&collect(handle).0),
                    (first..first + 100).collect::<Vec<u32>>()
                );
            }
            let stats = client.stats();
            assert_eq!(stats.num_tokens, 2000);
            assert!(
                stats.num_polls_with_news >= 2000 / 3,
                "no poll took more than three: {stats:?}"
            );
        },
    );
}

#[test]
fn two_hundred_streams_a_third_of_them_cancelled_leave_nothing_behind() {
    with_mock(
        &ring(256, 1),
        eager(),
        MockOptions {
            max_num_seqs: 64,
            ..MockOptions::default()
        },
        |client, _| {
            let mut streams: Vec<_> = (0..200u32)
                .map(|i| {
                    let len = 1 + i * 7919 % 300;
                    (
                        i,
                        len,
                        client
                            .submit(&Submission::new(&[i * 600], len))
                            .expect("submit"),
                    )
                })
                .collect();
            for (i, len, handle) in &mut streams {
                let mut tokens = Vec::new();
                if *i % 3 == 0 {
                    while tokens.is_empty() {
                        let _ = handle.wait(&mut tokens, LONG).expect("first token");
                    }
                    handle.cancel().expect("reachable");
                }
                let (rest, finish) = collect(handle);
                tokens.extend(rest);
                let expected: Vec<u32> = (*i * 600..*i * 600 + finish.num_generated).collect();
                assert_eq!(ids(&tokens), expected);
                match finish.reason {
                    FinishReason::Length => assert_eq!(finish.num_generated, *len),
                    FinishReason::Cancelled => assert!(*i % 3 == 0 && finish.num_generated <= *len),
                    other => panic!("{other:?}"),
                }
            }
            drop(streams);
            eventually("all space is back", || is_unused(&client));
            let stats = client.stats();
            assert_eq!(
                (
                    stats.num_submitted,
                    stats.num_completed + stats.num_cancelled
                ),
                (200, 200)
            );
            assert_eq!((stats.num_failed, stats.num_pending), (0, 0));
        },
    );
}

#[test]
fn many_threads_share_one_client() {
    with_mock(
        &ring(64, 1),
        eager(),
        MockOptions::default(),
        |client, _| {
            std::thread::scope(|scope| {
                for thread in 0..8u32 {
                    let client = &client;
                    scope.spawn(move || {
                        for round in 0..50u32 {
                            let first = thread * 10_000 + round * 100;
                            let mut handle = loop {
                                match client.submit(&Submission::new(&[first], 30)) {
                                    Ok(handle) => break handle,
                                    Err(SubmitError::Full { .. }) => std::thread::yield_now(),
                                    Err(error) => panic!("{error}"),
                                }
                            };
                            assert_eq!(
                                ids(&collect(&mut handle).0),
                                (first..first + 30).collect::<Vec<u32>>()
                            );
                        }
                    });
                }
            });
            eventually("all space is back", || is_unused(&client));
        },
    );
}

#[test]
fn a_front_end_without_requests_does_not_poll() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            collect(&mut client.submit(&Submission::new(&[1], 5)).expect("submit"));
            eventually("all space is back", || is_unused(&client));
            let before = client.stats().num_polls;
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(client.stats().num_polls, before);
        },
    );
}

#[test]
fn a_reader_that_its_engine_wakes_sleeps_between_tokens() {
    let (transport, engine) =
        MockEngine::in_process(&small_ring(), hanging_after(vec![1])).expect("create");
    let client = connect(transport, ClientOptions::default());
    let mut waiting = client.submit(&Submission::new(&[1], 10)).expect("submit");
    let mut tokens = Vec::new();
    let _ = waiting.wait(&mut tokens, LONG).expect("a token");
    let before = client.stats().num_polls;
    std::thread::sleep(Duration::from_millis(100));
    let num_polls = client.stats().num_polls - before;
    assert!(num_polls < 10, "{num_polls} polls while nothing happened");
    assert_eq!(engine.num_claimed(), 1);
}

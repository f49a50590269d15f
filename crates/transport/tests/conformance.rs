//! One suite for every transport: what [`Transport`] promises.

mod common;

use std::time::Instant;

use common::{LONG, Pair, child_argument, pairs, small_ring, spawn_self, unique_name};
use izar_ring::RingLayout;
use izar_transport::{ReadOp, SharedMemory, Transport, TransportError};

/// Somewhere to write that no engine looks at: the output arena.
fn scratch() -> u64 {
    RingLayout::new(small_ring().geometry)
        .expect("layout")
        .output_arena()
        .start
}

fn on_every_transport(check: impl Fn(&Pair, u64)) {
    for pair in pairs(&small_ring()) {
        println!("{}", pair.kind);
        check(&pair, scratch());
    }
}

#[test]
fn bytes_come_back_at_every_alignment_and_length() {
    on_every_transport(|pair, at| {
        let bytes: Vec<u8> = (0..70u8).map(|i| i.wrapping_mul(37) + 1).collect();
        for shift in 0..9 {
            for len in 0..bytes.len() - 2 {
                pair.near.write(at, &[0xee; 100]).expect("write");
                pair.near.write(at + shift, &bytes[..len]).expect("write");
                let mut back = [0; 100];
                pair.far.read(at, &mut back).expect("read");
                let shift = shift as usize;
                assert_eq!(&back[shift..shift + len], &bytes[..len], "{shift} {len}");
                let rest = back[..shift].iter().chain(&back[shift + len..]);
                assert!(
                    rest.clone().all(|&b| b == 0xee),
                    "wrote outside: {shift} {len}"
                );
            }
        }
    });
}

#[test]
fn words_are_little_endian_and_cross_over() {
    on_every_transport(|pair, at| {
        pair.near
            .write_flag(at + 8, 0x0102_0304_0506_0708)
            .expect("write");
        assert_eq!(pair.far.read_word(at + 8), Ok(0x0102_0304_0506_0708));
        let mut bytes = [0; 8];
        pair.far.read(at + 8, &mut bytes).expect("read");
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
    });
}

#[test]
fn compare_and_swap_swaps_only_what_was_expected() {
    on_every_transport(|pair, at| {
        pair.near.write_flag(at, 5).expect("write");
        assert_eq!(pair.near.compare_and_swap(at, 4, 9), Ok(5));
        assert_eq!(pair.far.read_word(at), Ok(5));
        assert_eq!(pair.near.compare_and_swap(at, 5, 9), Ok(5));
        assert_eq!(pair.far.read_word(at), Ok(9));
    });
}

#[test]
fn a_batch_reads_what_single_reads_would() {
    on_every_transport(|pair, at| {
        let bytes: Vec<u8> = (0..=255).collect();
        pair.far.write(at, &bytes).expect("write");
        let (mut first, mut second, mut third) = ([0; 3], [0; 64], [0; 17]);
        let mut ops = [
            ReadOp {
                offset: at + 1,
                dst: &mut first,
            },
            ReadOp {
                offset: at + 64,
                dst: &mut second,
            },
            ReadOp {
                offset: at + 99,
                dst: &mut third,
            },
        ];
        pair.near.read_batch(&mut ops).expect("read");
        assert_eq!(first, bytes[1..4]);
        assert_eq!(second, bytes[64..128]);
        assert_eq!(third, bytes[99..116]);
    });
}

#[test]
fn an_access_outside_is_refused_and_changes_nothing() {
    on_every_transport(|pair, _| {
        let end = pair.near.len();
        pair.near
            .write(end - 8, &[7; 8])
            .expect("the last word is inside");
        let refused = |result: Result<(), TransportError>| {
            assert!(
                matches!(result, Err(TransportError::OutOfRange { .. })),
                "{result:?}"
            );
        };
        refused(pair.near.write(end - 8, &[1; 9]));
        refused(pair.near.write(u64::MAX - 3, &[1; 8]));
        refused(pair.near.read(end, &mut [0; 1]));
        refused(pair.near.read(u64::MAX, &mut [0; 2]));
        refused(pair.near.write_flag(end, 1));
        refused(pair.near.write_flag(end - 4, 1));
        refused(pair.near.read_word(end).map(|_| ()));
        refused(pair.near.compare_and_swap(end, 0, 1).map(|_| ()));
        let beyond = &mut [0; 16];
        refused(pair.near.read_batch(&mut [ReadOp {
            offset: end - 8,
            dst: beyond,
        }]));
        assert_eq!(pair.far.read_word(end - 8), Ok(u64::from_le_bytes([7; 8])));
    });
}

#[test]
fn a_word_access_off_its_boundary_is_refused() {
    on_every_transport(|pair, at| {
        assert!(pair.near.write_flag(at + 4, 1).is_err());
        assert!(pair.near.read_word(at + 1).is_err());
        assert!(pair.near.compare_and_swap(at + 2, 0, 1).is_err());
    });
}

const PAYLOAD_WORDS: usize = 61;
/// The flag, the answer and the payload, on lines of their own; the payload starts off any boundary.
const FLAG: u64 = 0;
const ANSWER: u64 = 128;
const PAYLOAD: u64 = 256 + 5;

/// Waits until the word at `offset` is `value`.
fn await_word(transport: &dyn Transport, offset: u64, value: u64) {
    let start = Instant::now();
    let mut looks = 0u64;
    while transport.read_word(offset).expect("read") != value {
        looks += 1;
        if looks.is_multiple_of(64) {
            std::thread::yield_now();
            assert!(start.elapsed() < LONG, "{value} never came");
        }
    }
}

/// Payload of a round: different in every byte position from one round to the next.
fn payload_of(round: u64) -> Vec<u8> {
    (0..PAYLOAD_WORDS as u64)
        .flat_map(|i| (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i).to_le_bytes())
        .collect()
}

fn write_rounds(transport: &dyn Transport, at: u64, rounds: u64) {
    for round in 1..=rounds {
        transport
            .write(at + PAYLOAD, &payload_of(round))
            .expect("write");
        transport.write_flag(at + FLAG, round).expect("write");
        await_word(transport, at + ANSWER, round);
    }
}

fn check_rounds(transport: &dyn Transport, at: u64, rounds: u64) {
    let mut seen = vec![0; PAYLOAD_WORDS * 8];
    for round in 1..=rounds {
        await_word(transport, at + FLAG, round);
        transport.read(at + PAYLOAD, &mut seen).expect("read");
        assert_eq!(
            seen,
            payload_of(round),
            "payload older than its flag in round {round}"
        );
        transport.write_flag(at + ANSWER, round).expect("write");
    }
}

#[test]
fn payload_comes_before_its_flag_between_two_threads() {
    on_every_transport(|pair, at| {
        let (near, far) = (&*pair.near, &*pair.far);
        std::thread::scope(|scope| {
            scope.spawn(move || write_rounds(near, at, 20_000));
            check_rounds(far, at, 20_000);
        });
    });
}

#[test]
fn payload_comes_before_its_flag_between_two_processes() {
    const ROUNDS: u64 = 10_000;
    let at = scratch();
    if let Some(name) = child_argument() {
        let ring = SharedMemory::attach(&name).expect("attach");
        return write_rounds(&*ring, at, ROUNDS);
    }
    let name = unique_name();
    let (ring, _engine) = SharedMemory::create(&name, &small_ring()).expect("create");
    let mut child = spawn_self("payload_comes_before_its_flag_between_two_processes", &name);
    check_rounds(&*ring, at, ROUNDS);
    assert!(child.wait().expect("wait").success());
}

#[test]
fn aligned_words_are_never_torn_inside_bulk_copies() {
    const WORDS: usize = 512;
    on_every_transport(|pair, at| {
        let (near, far) = (&*pair.near, &*pair.far);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for round in 0..4_000u32 {
                    // Both halves of every word are equal.
                    let half = round.wrapping_mul(0x0101_0101).to_le_bytes();
                    near.write(at, &half.repeat(2 * WORDS)).expect("write");
                }
            });
            let mut bytes = vec![0; WORDS * 8];
            while !writer.is_finished() {
                far.read(at, &mut bytes).expect("read");
                for word in bytes.chunks_exact(8) {
                    assert_eq!(word[..4], word[4..], "a torn word");
                }
            }
        });
    });
}

//! What the engine's side of the ring costs, per operation: `cargo bench -p izar-ring`.
//!
//! Nanoseconds, median and best of 200 rounds, one thread, default geometry (4096 slots). The scan of a
//! lease whose doorbell moved is given beside the time that merely loading the words it needs takes,
//! which is its floor.

#[path = "../tests/common/front_end.rs"]
mod front_end;
#[path = "../tests/common/heap.rs"]
mod heap;
#[path = "../tests/common/options.rs"]
mod options;

use std::hint::black_box;
use std::time::Instant;

use front_end::FrontEnd;
use heap::Heap;
use izar_ring::*;
use options::{INFO, OPTIONS};

const ROUNDS: usize = 200;
const REPEATS: u32 = 100;

/// Runs `repeats` calls of `f` per round and prints the time of one.
fn measure(what: &str, repeats: u32, mut f: impl FnMut()) {
    let mut ns: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..repeats {
                f();
            }
            start.elapsed().as_nanos() as f64 / f64::from(repeats)
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("{what:<58} {:>10.1} {:>10.1}", ns[ROUNDS / 2], ns[0]);
}

/// Processor name as Linux tells it.
fn hardware() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.to_owned(),
    )
}

fn main() {
    let geometry = RingGeometry {
        input_arena_bytes: 1 << 20,
        output_arena_bytes: 4 << 20,
        ..RingGeometry::default()
    };
    let heap = Heap::new(RingLayout::new(geometry).unwrap().total_bytes());
    let options = RingOptions {
        geometry,
        ..OPTIONS
    };
    let mut engine =
        EngineRing::create(heap.memory(), &options, slot_table(geometry.num_slots)).unwrap();
    engine.describe(&INFO);
    let mut front_end = FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).unwrap();

    println!("{}, {} slots", hardware(), geometry.num_slots);
    println!("{:<58} {:>10} {:>10}", "ns per call", "median", "best");
    measure("scan, no doorbell moved", REPEATS, || {
        engine.scan(&mut |event| panic!("{event:?}"));
    });
    measure("scan, doorbell moved, all slots empty", REPEATS, || {
        front_end.ring_doorbell();
        engine.scan(&mut |event| panic!("{event:?}"));
    });
    let (memory, layout) = (front_end.memory.clone(), front_end.layout);
    let mut progress = vec![0; 64 << 10];
    let mut submit = vec![0; 32 << 10];
    measure(
        "  its floor: loading status and submit words in bulk",
        REPEATS,
        || {
            memory
                .read(layout.progress_range().start, black_box(&mut progress))
                .unwrap();
            memory
                .read(layout.submit_offset(SlotIdx(0)), black_box(&mut submit))
                .unwrap();
        },
    );
    measure("bulk read of the progress array, 64 KiB", REPEATS, || {
        memory
            .read(layout.progress_range().start, black_box(&mut progress))
            .unwrap();
    });
    request_costs(&mut engine, &mut front_end);
}

/// Costs along a request's life.
fn request_costs(engine: &mut EngineRing, front_end: &mut FrontEnd) {
    let slot = front_end.slot(0);
    let offset = front_end.layout.lease_output(LeaseIdx(0)).start;
    let submit = |front_end: &mut FrontEnd| {
        let generation = front_end.next_generation(slot).unwrap();
        let record = RequestRecord {
            output_offset: offset,
            output_capacity: 100_000,
            max_tokens: 100_000,
            ..front_end.record(slot, generation)
        };
        front_end.write_request(slot, &record, [3, 4]);
        front_end.store_submit(slot, generation);
        front_end.ring_doorbell();
        generation
    };
    submit(front_end);
    engine.scan(&mut |_| ());
    engine.claim(slot, 0).unwrap();
    let mut token = 0;
    measure("publish_token", REPEATS, || {
        token += 1;
        engine.publish_token(
            slot,
            OutputToken {
                token,
                timestamp_ns: 1,
            },
            None,
        );
    });
    engine.complete(slot, FinishReason::Stop, &SlotResult::default());
    front_end.recycle(slot, 1);
    engine.scan(&mut |_| ());
    measure(
        "a request: submit, 2 scans, claim, complete, recycle",
        10,
        || {
            let generation = submit(front_end);
            engine.scan(&mut |_| ());
            engine.claim(slot, 0).unwrap();
            engine.complete(slot, FinishReason::Stop, &SlotResult::default());
            front_end.recycle(slot, generation);
            engine.scan(&mut |_| ());
        },
    );
}

//! One request's life, claim by claim.
use crate::common::{FrontEnd, OPTIONS, SMALL, engine, events, output};
use crate::heap::Heap;
use izar_ring::*;

const LEASE: LeaseIdx = LeaseIdx(0);

struct Setup {
    engine: EngineRing,
    front_end: FrontEnd,
    slot: SlotIdx,
    // Last: everything above points into it.
    _heap: Heap,
}

fn setup() -> Setup {
    let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
    let engine = engine(heap.memory());
    let front_end = FrontEnd::claim(engine.memory(), engine.layout(), LEASE).unwrap();
    let slot = front_end.slot(0);
    Setup {
        engine,
        front_end,
        slot,
        _heap: heap,
    }
}

fn scan(engine: &mut EngineRing) -> Vec<SlotEvent> {
    events(|f| engine.scan(f))
}

#[test]
fn request_lives_from_submission_to_recycling() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    assert_eq!(front_end.next_generation(slot), Some(1));
    assert_eq!(front_end.submit(slot), 1);
    assert_eq!(front_end.observe(slot, 1), Observation::Unclaimed);
    assert_eq!(scan(&mut engine), [SlotEvent::Submitted { slot }]);

    let request = engine.claim(slot, 50).unwrap();
    assert_eq!(
        (request.generation, request.request_id, request.prompt_len),
        (1, 1001, 2)
    );
    assert_eq!(
        (request.seed, request.num_logprobs, request.ignore_eos),
        (None, None, false)
    );
    assert_eq!(engine.prompt(slot), [3, 4]);
    let running = |state, num_generated| Observation::Running {
        state,
        num_generated,
    };
    assert_eq!(
        front_end.observe(slot, 1),
        running(State::PrefillProcessing, 0)
    );

    engine.publish_token(slot, output(7), None);
    assert_eq!(
        front_end.observe(slot, 1),
        running(State::DecodeProcessing, 1)
    );
    engine.set_state(slot, State::DecodePaused);
    assert_eq!(front_end.observe(slot, 1), running(State::DecodePaused, 1));
    engine.set_state(slot, State::DecodeProcessing);
    engine.publish_token(slot, output(8), None);
    assert_eq!(engine.generated(slot).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(engine.generated(slot).rev().collect::<Vec<_>>(), [8, 7]);
    assert_eq!(
        front_end.token(slot, 1),
        OutputRecord {
            token: 8,
            flags: 0,
            timestamp_ns: 10_008
        }
    );

    let result = SlotResult {
        completed_ns: 90,
        num_cached_tokens: 1,
        num_preemptions: 1,
        stop_token: Some(8),
    };
    engine.complete(slot, FinishReason::Stop, &result);
    let completed = Observation::Completed {
        reason: FinishReason::Stop,
        num_generated: 2,
    };
    assert_eq!(front_end.observe(slot, 1), completed);
    let result = front_end.result(slot);
    assert_eq!(
        (result.generation, result.claimed_ns, result.first_token_ns),
        (1, 50, 10_007)
    );
    assert_eq!(
        (
            result.completed_ns,
            result.num_cached_tokens,
            result.num_preemptions
        ),
        (90, 1, 1)
    );
    assert_eq!((result.num_generated, result.stop_token()), (2, Some(8)));

    assert_eq!(front_end.next_generation(slot), None);
    front_end.recycle(slot, 1);
    assert_eq!(scan(&mut engine), [SlotEvent::Recycled { slot }]);
    assert_eq!(front_end.observe(slot, 1), Observation::Emptied);
    assert_eq!(front_end.submit(slot), 2);
    assert_eq!(
        front_end.observe(slot, 1),
        Observation::Emptied,
        "a late reader is not shown generation 2"
    );
    assert_eq!(scan(&mut engine), [SlotEvent::Submitted { slot }]);
    engine.claim(slot, 60).unwrap();
    assert_eq!(front_end.observe(slot, 1), Observation::Lost);
    assert_eq!(
        front_end.observe(slot, 2),
        running(State::PrefillProcessing, 0)
    );
}

#[test]
fn scan_reports_nothing_until_a_doorbell_moves() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    assert_eq!(scan(&mut engine), []);
    front_end.write_request(slot, &front_end.record(slot, 1), [3, 4]);
    front_end.store_submit(slot, 1);
    assert_eq!(scan(&mut engine), []);
    front_end.ring_doorbell();
    assert_eq!(scan(&mut engine), [SlotEvent::Submitted { slot }]);
    assert_eq!(scan(&mut engine), []);
    front_end.ring_doorbell();
    assert_eq!(scan(&mut engine), [], "a submission is reported once");
}

#[test]
fn cancellation_reaches_submitted_and_running_requests_once() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    let other = front_end.slot(1);
    front_end.submit(slot);
    front_end.cancel(slot, 1);
    front_end.submit(other);
    let submitted = |slot| SlotEvent::Submitted { slot };
    let cancelled = |slot| SlotEvent::Cancelled { slot };
    assert_eq!(
        scan(&mut engine),
        [submitted(slot), cancelled(slot), submitted(other)]
    );
    engine.claim(other, 0).unwrap();
    front_end.cancel(other, 1);
    assert_eq!(scan(&mut engine), [cancelled(other)]);
    front_end.cancel(other, 1);
    assert_eq!(scan(&mut engine), []);
    engine.complete(other, FinishReason::Cancelled, &SlotResult::default());
    let completed = Observation::Completed {
        reason: FinishReason::Cancelled,
        num_generated: 0,
    };
    assert_eq!(front_end.observe(other, 1), completed);
    front_end.cancel(other, 1);
    assert_eq!(
        scan(&mut engine),
        [],
        "a completed request cannot be cancelled"
    );
}

#[test]
fn words_of_another_generation_or_lease_are_ignored() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    front_end.submit(slot);
    scan(&mut engine);
    engine.claim(slot, 0).unwrap();
    let tag = front_end.tag;
    for (generation, tag) in [(0, tag), (2, tag), (1, tag + 1), (1, 0)] {
        front_end.tag = tag;
        front_end.cancel(slot, generation);
        assert_eq!(scan(&mut engine), [], "cancel {generation} of lease {tag}");
    }
    engine.complete(slot, FinishReason::Length, &SlotResult::default());
    for (generation, tag) in [(0, tag), (2, tag), (1, tag + 1), (1, 0)] {
        front_end.tag = tag;
        front_end.recycle(slot, generation);
        assert_eq!(scan(&mut engine), [], "recycle {generation} of lease {tag}");
    }
    front_end.tag = tag;
    front_end.recycle(slot, 1);
    assert_eq!(scan(&mut engine), [SlotEvent::Recycled { slot }]);
    for (generation, tag) in [(1, tag), (3, tag), (2, tag + 1), (2, 0)] {
        front_end.tag = tag;
        front_end.store_submit(slot, generation);
        front_end.ring_doorbell();
        assert_eq!(scan(&mut engine), [], "submit {generation} of lease {tag}");
    }
}

#[test]
fn logprobs_are_published_only_where_asked_and_as_many_as_asked() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    let (asks, plain) = (slot, front_end.slot(1));
    let logprobs_offset = front_end.layout.lease_output(LEASE).start + 1024;
    let record = RequestRecord {
        num_logprobs: 1,
        logprobs_offset,
        ..front_end.record(asks, 1)
    };
    front_end.write_request(asks, &record, [3, 4]);
    front_end.store_submit(asks, 1);
    front_end.submit(plain);
    scan(&mut engine);
    assert_eq!(engine.claim(asks, 0).unwrap().num_logprobs, Some(1));
    engine.claim(plain, 0).unwrap();

    let entry = |token, logprob| LogprobEntry { token, logprob };
    let entries = [entry(9, -2.5), entry(5, -0.5), entry(6, -1.0)];
    let logprobs = TokenLogprobs {
        rank: 3,
        entries: &entries,
    };
    for slot in [asks, plain] {
        engine.publish_token(slot, output(1), None);
        engine.publish_token(slot, output(9), Some(logprobs));
    }
    assert_eq!(front_end.token(asks, 0).flags, 0);
    assert_eq!(front_end.token(asks, 1).flags, OUTPUT_HAS_LOGPROBS);
    assert_eq!(front_end.token(plain, 1).flags, 0);

    let mut bytes = vec![0; logprob_stride(1) as usize];
    front_end
        .memory
        .read(logprobs_offset + logprob_stride(1), &mut bytes)
        .unwrap();
    let (head, read) = decode_logprobs(&bytes).unwrap();
    assert_eq!(
        head,
        LogprobHead {
            rank: 3,
            num_entries: 2
        }
    );
    assert_eq!(read.collect::<Vec<_>>(), entries[..2]);
    assert!(
        decode_logprobs(&bytes[..16]).is_none(),
        "a record cut short is not read past its end"
    );
    let mut after = [0; 8];
    front_end
        .memory
        .read(logprobs_offset + 2 * logprob_stride(1), &mut after)
        .unwrap();
    assert_eq!(
        after, [0; 8],
        "nothing is written beyond the record's stride"
    );
}

#[test]
fn announced_request_can_be_refused_unclaimed() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    front_end.submit(slot);
    scan(&mut engine);
    engine.complete(slot, EngineError::EngineStopping, &SlotResult::default());
    let reason = FinishReason::Error(EngineError::EngineStopping);
    assert_eq!(
        front_end.observe(slot, 1),
        Observation::Completed {
            reason,
            num_generated: 0
        }
    );
    front_end.recycle(slot, 1);
    assert_eq!(scan(&mut engine), [SlotEvent::Recycled { slot }]);
}

#[test]
fn preempted_before_its_first_token_stays_in_prefill() {
    let Setup {
        mut engine,
        mut front_end,
        slot,
        _heap,
    } = setup();
    front_end.submit(slot);
    scan(&mut engine);
    engine.claim(slot, 0).unwrap();
    engine.set_state(slot, State::DecodePaused);
    let prefill = Observation::Running {
        state: State::PrefillProcessing,
        num_generated: 0,
    };
    assert_eq!(front_end.observe(slot, 1), prefill);
}

#[test]
fn header_describes_the_ring_and_the_engine() {
    let Setup {
        mut engine,
        front_end,
        _heap,
        ..
    } = setup();
    engine.heartbeat(123);
    let stats = EngineStats {
        num_running: 3,
        output_tokens: 99,
        ..EngineStats::default()
    };
    engine.publish_stats(&stats);
    let mut steps = StepStats::default();
    steps.publishing_ns.observe(&StepStats::TIME_BOUNDS_NS, 77);
    engine.publish_steps(&steps);
    engine.set_engine_state(EngineState::Failed, Some(EngineError::EngineFailed));
    let mut bytes = [0; HEADER_BYTES as usize];
    front_end.memory.read(0, &mut bytes).unwrap();
    let header = Header::decode(&bytes);
    assert_eq!(
        header.layout(front_end.memory.len()).unwrap(),
        *engine.layout()
    );
    assert_eq!((header.epoch, header.lease_timeout_ns), (7, 1_000));
    assert_eq!(
        (header.max_model_len, header.vocab_size, header.block_size),
        (64, 100, 16)
    );
    assert_eq!(
        (
            header.num_kv_blocks,
            header.max_num_seqs,
            header.max_num_batched_tokens
        ),
        (8, 4, 32)
    );
    assert_eq!(header.model_name(), Some("test"));
    assert_eq!((header.heartbeat_ns, header.stats), (123, stats));
    assert_eq!(header.steps, steps);
    let state = EngineStateWord {
        state: EngineState::Failed,
        error: Some(EngineError::EngineFailed),
    };
    assert_eq!(EngineStateWord::unpack(header.state), Some(state));
}

#[test]
fn long_model_name_is_cut_at_a_character() {
    let Setup {
        mut engine,
        front_end,
        _heap,
        ..
    } = setup();
    let name = format!("x{}", "é".repeat(200));
    engine.describe(&EngineInfo {
        model_name: &name,
        ..crate::common::INFO
    });
    let mut bytes = [0; HEADER_BYTES as usize];
    front_end.memory.read(0, &mut bytes).unwrap();
    let cut = format!("x{}", "é".repeat(127));
    assert_eq!(Header::decode(&bytes).model_name(), Some(cut.as_str()));
}

#[test]
fn foreign_or_damaged_header_is_refused() {
    let Setup {
        engine,
        front_end,
        _heap,
        ..
    } = setup();
    let mut bytes = [0; HEADER_BYTES as usize];
    front_end.memory.read(0, &mut bytes).unwrap();
    let len = front_end.memory.len();
    let good = Header::decode(&bytes);
    let broken = |change: fn(&mut Header)| {
        let mut header = good;
        change(&mut header);
        header.layout(len)
    };
    assert_eq!(broken(|_| ()), Ok(*engine.layout()));
    assert_eq!(broken(|h| h.magic = 0), Err(HeaderError::Magic(0)));
    assert_eq!(broken(|h| h.version = 9), Err(HeaderError::Version(9)));
    assert_eq!(broken(|h| h.progress_offset += 8), Err(HeaderError::Layout));
    assert_eq!(broken(|h| h.total_bytes += 8), Err(HeaderError::Layout));
    assert!(matches!(
        broken(|h| h.num_slots = 0),
        Err(HeaderError::Geometry(_))
    ));
    assert!(matches!(
        broken(|h| h.input_bytes = u64::MAX),
        Err(HeaderError::Geometry(_))
    ));
    assert_eq!(
        good.layout(len - 1),
        Err(HeaderError::TooSmall(len, len - 1))
    );
}

#[test]
fn ring_needs_room_and_a_matching_slot_table() {
    let bytes = RingLayout::new(SMALL).unwrap().total_bytes();
    let heap = Heap::new(bytes - PAGE_BYTES);
    let small = EngineRing::create(heap.memory(), &OPTIONS, slot_table(4)).err();
    assert_eq!(
        small,
        Some(AttachError::TooSmall(bytes, bytes - PAGE_BYTES))
    );
    let heap = Heap::new(bytes);
    let table = EngineRing::create(heap.memory(), &OPTIONS, slot_table(3)).err();
    assert_eq!(table, Some(AttachError::SlotTable(4, 3)));
    let nothing = EngineRing::adopt(heap.memory(), 1, slot_table(4)).err();
    assert_eq!(nothing, Some(AttachError::Header(HeaderError::Magic(0))));
}

#[test]
fn one_sided_access_outside_the_region_is_refused() {
    let Setup {
        front_end, _heap, ..
    } = setup();
    let memory = &front_end.memory;
    let len = memory.len();
    for offset in [len - 7, len, u64::MAX] {
        assert!(memory.read(offset, &mut [0; 8]).is_err());
        assert!(memory.write(offset, &[0; 8]).is_err());
        assert!(memory.read_word(offset).is_err());
        assert!(memory.write_flag(offset, 0).is_err());
        assert!(memory.compare_and_swap(offset, 0, 0).is_err());
    }
    assert!(memory.read_word(4).is_err(), "a word is aligned");
    let at = front_end.layout.input_arena().start;
    memory
        .write(at + 3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
        .unwrap();
    let mut bytes = [0; 12];
    memory.read(at + 2, &mut bytes).unwrap();
    assert_eq!(
        bytes,
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0],
        "unaligned ends are copied too"
    );
}

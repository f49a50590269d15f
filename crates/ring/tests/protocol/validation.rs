//! Everything a front end writes is checked: one broken field each, and what must come of it.
use std::ops::Range;

use crate::common::{FrontEnd, SMALL, engine, events};
use crate::heap::Heap;
use izar_ring::*;

const OK: Result<(), BadRequest> = Ok(());

/// Claims the plain request after `change` has had a go at its record.
fn claim(change: impl FnOnce(&mut RequestRecord, &FrontEnd)) -> Result<(), BadRequest> {
    let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
    let mut engine = engine(heap.memory());
    let mut front_end = FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).unwrap();
    let slot = front_end.slot(1);
    let mut record = front_end.record(slot, 1);
    front_end.write_request(slot, &record, [3, 4]);
    change(&mut record, &front_end);
    front_end
        .memory
        .write(front_end.layout.request_offset(slot), &record.encode())
        .unwrap();
    front_end.store_submit(slot, 1);
    front_end.ring_doorbell();
    assert_eq!(events(|f| engine.scan(f)), [SlotEvent::Submitted { slot }]);
    let claimed = engine.claim(slot, 0);
    if let Err(bad) = claimed {
        let reason = FinishReason::Error(EngineError::BadRequest(bad));
        assert_eq!(
            front_end.observe(slot, 1),
            Observation::Completed {
                reason,
                num_generated: 0
            }
        );
        front_end.recycle(slot, 1);
        assert_eq!(
            events(|f| engine.scan(f)),
            [SlotEvent::Recycled { slot }],
            "the slot comes back"
        );
    }
    claimed.map(|_| ())
}

/// The same with `words` in the input arena and a span over them set by `set`.
fn claim_with(
    words: &[u32],
    element_words: u32,
    set: impl FnOnce(&mut RequestRecord, Span),
) -> Result<(), BadRequest> {
    claim(|record, front_end| {
        let offset = front_end.layout.lease_input(LeaseIdx(0)).start + 1024;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        front_end.memory.write(offset, &bytes).unwrap();
        set(
            record,
            Span {
                offset,
                len: words.len() as u32 / element_words,
                reserved: 0,
            },
        );
    })
}

#[test]
fn plain_request_is_accepted() {
    assert_eq!(claim(|_, _| ()), OK);
}

#[test]
fn record_of_another_generation_or_with_unknown_flags_is_refused() {
    assert_eq!(claim(|r, _| r.generation = 2), Err(BadRequest::Generation));
    assert_eq!(claim(|r, _| r.flags = 16), Err(BadRequest::Flags));
    let known = REQUEST_IGNORE_EOS | REQUEST_HAS_SEED;
    assert_eq!(claim(|r, _| r.flags = known), OK);
}

#[test]
fn spans_outside_the_lease_are_refused() {
    let input = |front_end: &FrontEnd| front_end.layout.lease_input(LeaseIdx(0));
    type Break = fn(&mut Span, Range<u64>);
    let set_prompt: [(&str, Break); 9] = [
        ("empty", |span, _| span.len = 0),
        ("misaligned", |span, _| span.offset += 4),
        ("before the lease", |span, lease| {
            span.offset = lease.start - 8
        }),
        ("behind the lease", |span, lease| span.offset = lease.end),
        ("across the end", |span, lease| span.offset = lease.end - 8),
        ("far too long", |span, _| span.len = u32::MAX),
        ("wrapping around", |span, _| span.offset = u64::MAX - 7),
        ("in the header", |span, _| span.offset = 0),
        ("in the output arena", |span, lease| {
            span.offset = lease.end + 8192
        }),
    ];
    for (what, set) in set_prompt {
        let got = claim(|record, front_end| {
            record.prompt.len = 3;
            set(&mut record.prompt, input(front_end));
        });
        assert_eq!(got, Err(BadRequest::Prompt), "{what}");
    }
    let last = |record: &mut RequestRecord, front_end: &FrontEnd| {
        record.prompt.offset = input(front_end).end - 8;
    };
    assert_eq!(claim(last), OK, "the last bytes of the lease are inside it");
    let outside = Span {
        offset: 0,
        len: 1,
        reserved: 0,
    };
    assert_eq!(claim(|r, _| r.stop_ids = outside), Err(BadRequest::StopIds));
    assert_eq!(
        claim(|r, _| r.bad_words = outside),
        Err(BadRequest::BadWords)
    );
    assert_eq!(
        claim(|r, _| r.allowed_ids = outside),
        Err(BadRequest::AllowedIds)
    );
    assert_eq!(
        claim(|r, _| r.logit_bias = outside),
        Err(BadRequest::LogitBias)
    );
    let masks = Span { len: 4, ..outside };
    assert_eq!(
        claim(|r, _| (r.flags, r.masks) = (REQUEST_MASKED, masks)),
        Err(BadRequest::TokenMask)
    );
}

#[test]
fn output_range_must_lie_in_the_lease_and_hold_max_tokens() {
    let output = |front_end: &FrontEnd| front_end.layout.lease_output(LeaseIdx(0));
    assert_eq!(claim(|r, _| r.output_offset += 8), Err(BadRequest::Output));
    assert_eq!(
        claim(|r, f| r.output_offset = output(f).start - 16),
        Err(BadRequest::Output)
    );
    assert_eq!(
        claim(|r, f| r.output_offset = output(f).end - 16),
        Err(BadRequest::Output)
    );
    assert_eq!(claim(|r, f| r.output_offset = output(f).end - 32), OK);
    assert_eq!(
        claim(|r, _| r.output_offset = u64::MAX - 15),
        Err(BadRequest::Output)
    );
    assert_eq!(
        claim(|r, _| r.output_capacity = u32::MAX),
        Err(BadRequest::Output)
    );
    assert_eq!(claim(|r, _| r.max_tokens = 0), Err(BadRequest::MaxTokens));
    assert_eq!(claim(|r, _| r.max_tokens = 3), Err(BadRequest::MaxTokens));
    assert_eq!(claim(|r, _| r.min_tokens = 3), Err(BadRequest::MinTokens));
    assert_eq!(claim(|r, _| r.min_tokens = 2), OK);
}

#[test]
fn logprobs_range_must_lie_in_the_lease() {
    let start = |front_end: &FrontEnd| front_end.layout.lease_output(LeaseIdx(0)).start;
    let set = |num_logprobs, offset: u64| {
        claim(move |r, f| {
            r.num_logprobs = num_logprobs;
            r.logprobs_offset = start(f) + offset;
        })
    };
    assert_eq!(set(0, 1024), OK);
    assert_eq!(set(MAX_LOGPROBS, 1024), OK);
    assert_eq!(set(MAX_LOGPROBS + 1, 1024), Err(BadRequest::Logprobs));
    assert_eq!(set(-2, 1024), Err(BadRequest::Logprobs));
    assert_eq!(set(0, 1028), Err(BadRequest::Logprobs));
    assert_eq!(set(0, 4096 - 24), Err(BadRequest::Logprobs));
    assert_eq!(set(0, 4096 - 32), OK);
    assert_eq!(
        set(-1, u64::MAX / 2),
        OK,
        "unused offsets are not looked at"
    );
}

#[test]
fn sampling_parameters_must_be_numbers_in_range() {
    for temperature in [f32::NAN, f32::INFINITY, -0.1, f32::NEG_INFINITY] {
        assert_eq!(
            claim(|r, _| r.temperature = temperature),
            Err(BadRequest::Temperature)
        );
    }
    for top_p in [f32::NAN, 0.0, 1.1, -1.0] {
        assert_eq!(claim(|r, _| r.top_p = top_p), Err(BadRequest::TopP));
    }
    for min_p in [f32::NAN, -0.1, 1.1] {
        assert_eq!(claim(|r, _| r.min_p = min_p), Err(BadRequest::MinP));
    }
    for penalty in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let got = claim(|r, _| r.repetition_penalty = penalty);
        assert_eq!(got, Err(BadRequest::RepetitionPenalty));
    }
    for penalty in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(
            claim(|r, _| r.presence_penalty = penalty),
            Err(BadRequest::Penalty)
        );
        assert_eq!(
            claim(|r, _| r.frequency_penalty = penalty),
            Err(BadRequest::Penalty)
        );
    }
    let hot = claim(|r, _| {
        (r.temperature, r.top_p, r.top_k, r.min_p) = (2.0, 0.9, 50, 0.05);
        (
            r.repetition_penalty,
            r.presence_penalty,
            r.frequency_penalty,
        ) = (1.1, -2.0, 2.0);
    });
    assert_eq!(hot, OK);
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    assert_eq!(claim_with(&[99], 1, |r, span| r.prompt = span), OK);
    assert_eq!(
        claim_with(&[0, 100], 1, |r, span| r.prompt = span),
        Err(BadRequest::PromptToken)
    );
    assert_eq!(
        claim_with(&[100], 1, |r, span| r.stop_ids = span),
        Err(BadRequest::StopIds)
    );
    assert_eq!(
        claim_with(&[100], 1, |r, span| r.allowed_ids = span),
        Err(BadRequest::AllowedIds)
    );
    let bias = |token: u32, bias: f32| {
        claim_with(&[token, bias.to_bits()], 2, |r, span| r.logit_bias = span)
    };
    assert_eq!(bias(99, -100.0), OK);
    assert_eq!(bias(100, 1.0), Err(BadRequest::LogitBias));
    assert_eq!(bias(1, f32::NAN), Err(BadRequest::LogitBias));
    assert_eq!(bias(1, f32::INFINITY), Err(BadRequest::LogitBias));
}

#[test]
fn bad_word_lists_must_add_up() {
    let lists = |words: &[u32]| claim_with(words, 1, |r, span| r.bad_words = span);
    assert_eq!(lists(&[1, 5, 2, 6, 7]), OK);
    assert_eq!(lists(&[1, 5, 2, 6]), Err(BadRequest::BadWords));
    assert_eq!(lists(&[u32::MAX, 5]), Err(BadRequest::BadWords));
    assert_eq!(lists(&[0]), Err(BadRequest::BadWords));
    assert_eq!(lists(&[1, 100]), Err(BadRequest::BadWords));
}

#[test]
fn mask_area_is_room_for_two_masks_of_a_flagged_request() {
    let area = |flags, num_words: usize| {
        claim_with(&vec![0; 2 * num_words], 2, |r, span| {
            (r.flags, r.masks) = (flags, span)
        })
    };
    assert_eq!(mask_words(100), 2);
    assert_eq!(area(REQUEST_MASKED, 4), OK);
    assert_eq!(area(0, 0), OK);
    for (flags, num_words) in [(REQUEST_MASKED, 3), (REQUEST_MASKED, 5), (0, 4)] {
        assert_eq!(area(flags, num_words), Err(BadRequest::TokenMask));
    }
    assert_eq!(
        claim(|r, _| r.flags = REQUEST_MASKED),
        Err(BadRequest::TokenMask)
    );
    let bounds = |front_end: &FrontEnd| front_end.layout.lease_input(LeaseIdx(0));
    type Place = fn(Range<u64>) -> u64;
    let bad: [Place; 5] = [
        |arena| arena.start + 4,
        |arena| arena.start - 8,
        |arena| arena.end - 24,
        |arena| arena.end,
        |_| u64::MAX - 7,
    ];
    for place in bad {
        let got = claim(|r, f| {
            r.flags = REQUEST_MASKED;
            r.masks = Span {
                offset: place(bounds(f)),
                len: 4,
                reserved: 0,
            };
        });
        assert_eq!(got, Err(BadRequest::TokenMask));
    }
}

#[test]
fn prompt_logprobs_have_room_for_every_token_but_the_first() {
    let start = |front_end: &FrontEnd| front_end.layout.lease_output(LeaseIdx(0)).start;
    let set = |num_prompt_logprobs, offset: u64| {
        claim(move |r, f| {
            r.flags = REQUEST_PROMPT_LOGPROBS;
            r.num_prompt_logprobs = num_prompt_logprobs;
            r.prompt_logprobs_offset = start(f) + offset;
        })
    };
    assert_eq!(set(0, 1024), OK);
    assert_eq!(set(MAX_LOGPROBS as u32, 1024), OK);
    for (num, offset) in [
        (MAX_LOGPROBS as u32 + 1, 1024),
        (u32::MAX, 1024),
        (0, 1028),
        (0, 4096 - 8),
    ] {
        assert_eq!(set(num, offset), Err(BadRequest::PromptLogprobs));
    }
    assert_eq!(set(0, 4096 - 16), OK);
    let unflagged = claim(|r, _| (r.num_prompt_logprobs, r.prompt_logprobs_offset) = (999, 1));
    assert_eq!(unflagged, OK, "unused fields are not looked at");
}

#[test]
fn record_changed_after_the_claim_changes_nothing() {
    let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
    let mut engine = engine(heap.memory());
    let mut front_end = FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).unwrap();
    let slot = front_end.slot(0);
    front_end.submit(slot);
    events(|f| engine.scan(f));
    let claimed = engine.claim(slot, 0).unwrap();
    let hostile = RequestRecord {
        prompt: Span {
            offset: u64::MAX - 7,
            len: u32::MAX,
            reserved: 0,
        },
        output_offset: 0,
        max_tokens: u32::MAX,
        ..front_end.record(slot, 1)
    };
    front_end
        .memory
        .write(front_end.layout.request_offset(slot), &hostile.encode())
        .unwrap();
    engine.publish_token(slot, crate::common::output(5), None);
    assert_eq!(engine.request(slot), claimed);
    assert_eq!(engine.prompt(slot), [3, 4]);
    assert_eq!(front_end.token(slot, 0).token, 5);
}

#[test]
fn variable_length_fields_arrive_as_written() {
    let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
    let mut engine = engine(heap.memory());
    let mut front_end = FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).unwrap();
    let slot = front_end.slot(0);
    let mut offset = front_end.layout.lease_input(LeaseIdx(0)).start + 1024;
    let mut put = |words: &[u32], element_words: u32| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        front_end.memory.write(offset, &bytes).unwrap();
        let span = Span {
            offset,
            len: words.len() as u32 / element_words,
            reserved: 0,
        };
        offset += (bytes.len() as u64).next_multiple_of(INPUT_ALIGN);
        span
    };
    let lists: [&[u32]; 2] = [&[1, 2, 3], &[4]];
    let mut bad_words = vec![0; bad_words_len(lists)];
    assert_eq!(
        encode_bad_words(lists, &mut bad_words[..5]),
        None,
        "too short a buffer is refused"
    );
    assert_eq!(encode_bad_words(lists, &mut bad_words), Some(6));
    let spans = (
        put(&[10, 11, 12], 1),
        put(&[20], 1),
        put(&bad_words, 1),
        put(&[30, 31], 1),
        put(&[40, 1.5f32.to_bits(), 41, (-2.0f32).to_bits()], 2),
        put(&[0; 8], 2),
    );
    let mut record = front_end.record(slot, 1);
    (record.prompt, record.stop_ids, record.bad_words) = (spans.0, spans.1, spans.2);
    (record.allowed_ids, record.logit_bias, record.masks) = (spans.3, spans.4, spans.5);
    record.flags = REQUEST_HAS_SEED | REQUEST_IGNORE_EOS | REQUEST_MASKED;
    (record.seed, record.priority) = (42, -3);
    front_end
        .memory
        .write(front_end.layout.request_offset(slot), &record.encode())
        .unwrap();
    front_end.store_submit(slot, 1);
    front_end.ring_doorbell();
    events(|f| engine.scan(f));
    let request = engine.claim(slot, 0).unwrap();
    assert_eq!(
        (request.seed, request.ignore_eos, request.priority),
        (Some(42), true, -3)
    );
    assert_eq!(engine.prompt(slot), [10, 11, 12]);
    assert_eq!(engine.stop_ids(slot), [20]);
    assert_eq!(engine.bad_words(slot).collect::<Vec<_>>(), lists);
    assert_eq!(engine.allowed_ids(slot), [30, 31]);
    let pair = |token, bias| LogitBias { token, bias };
    assert_eq!(engine.logit_bias(slot), [pair(40, 1.5), pair(41, -2.0)]);
    assert!(request.is_masked && request.num_prompt_logprobs.is_none());
    let masks = engine.mask_source(slot).expect("masked");
    assert_eq!(masks.area_offset(), spans.5.offset);
    assert_eq!(masks.load(0, &mut [0; 4]), MaskState::Awaited);
}

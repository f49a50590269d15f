//! Words, records and layouts say what was put into them, and nothing else passes for them.
use izar_ring::*;
use proptest::prelude::*;

fn finish_reasons() -> impl Iterator<Item = FinishReason> {
    let errors = (0..=u16::MAX)
        .filter_map(EngineError::from_code)
        .map(FinishReason::Error);
    [
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Cancelled,
    ]
    .into_iter()
    .chain(errors)
}

#[test]
fn every_error_has_its_own_number_and_text() {
    let errors: Vec<_> = (0..=u16::MAX).filter_map(EngineError::from_code).collect();
    assert_eq!(errors.len(), 9 + 20);
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), errors.len());
    for error in errors {
        assert_eq!(EngineError::from_code(error.code()), Some(error));
        assert_ne!(error.code(), 0);
    }
}

#[test]
fn status_word_keeps_every_state_and_reason() {
    let running = [
        State::Empty,
        State::PrefillProcessing,
        State::DecodeProcessing,
        State::DecodePaused,
    ];
    let running = running.map(|state| (state, None));
    let completed = finish_reasons().map(|reason| (State::DecodeCompleted, Some(reason)));
    for (state, finish) in running.into_iter().chain(completed) {
        let word = StatusWord {
            generation: 0xdead_beef,
            state,
            finish,
        };
        assert_eq!(StatusWord::unpack(word.pack()), Some(word));
    }
}

#[test]
fn mask_word_promises_masks_of_its_generation_only() {
    let word = MaskWord {
        generation: 0xdead_beef,
        num_delivered: 3,
        is_open: [false, true],
    };
    assert_eq!(MaskWord::unpack(word.pack()), word);
    let state = |generation, index| word.state(generation, index);
    assert_eq!(state(0xdead_beef, 1), MaskState::Open);
    assert_eq!(state(0xdead_beef, 2), MaskState::Ready);
    assert_eq!(state(0xdead_beef, 3), MaskState::Awaited);
    assert_eq!(state(0xdead_beee, 2), MaskState::Awaited);
    let most = MaskWord {
        num_delivered: MAX_OUTPUT_TOKENS,
        is_open: [true; 2],
        ..word
    };
    assert_eq!(MaskWord::unpack(most.pack()), most);
    assert_eq!(MaskWord::unpack(0).state(0, 0), MaskState::Awaited);
}

#[test]
fn impossible_status_words_are_told_apart() {
    let word = |state: u8, finish: u8, error: u16| {
        u64::from(error) << ERROR_SHIFT | u64::from(finish) << FINISH_SHIFT | u64::from(state)
    };
    for bad in [
        word(1, 0, 0),
        word(6, 0, 0),
        word(5, 0, 0),
        word(5, 5, 0),
        word(5, 4, 0),
        word(3, 1, 0),
    ] {
        assert_eq!(StatusWord::unpack(bad), None, "{bad:#x}");
        assert_eq!(observe(bad, 0, 0), Observation::Malformed);
    }
}

#[test]
fn lease_generation_zero_is_never_held() {
    let verdict = |drained| LeaseVerdict {
        revoked: 0,
        drained,
    };
    let last = LeaseClaim {
        generation: u32::MAX,
        held: false,
    };
    assert_eq!(
        last.next(verdict(u32::MAX)),
        Some(LeaseClaim {
            generation: 1,
            held: true
        })
    );
    assert_eq!(last.next(verdict(3)), None);
}

#[test]
fn generations_wrap() {
    let empty = StatusWord {
        generation: u32::MAX,
        state: State::Empty,
        finish: None,
    }
    .pack();
    assert_eq!(observe(empty, 0, 0), Observation::Unclaimed);
    assert_eq!(observe(empty, 0, 1), Observation::Lost);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 2_000 }, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn front_end_and_lease_words_round_trip(a in any::<u32>(), b in any::<u32>(), held in any::<bool>()) {
        let slot = SlotWord { generation: a, lease: b };
        prop_assert_eq!(SlotWord::unpack(slot.pack()), slot);
        let claim = LeaseClaim { generation: a, held };
        prop_assert_eq!(LeaseClaim::unpack(claim.pack()), claim);
        let verdict = LeaseVerdict { revoked: a, drained: b };
        prop_assert_eq!(LeaseVerdict::unpack(verdict.pack()), verdict);
        let count = CountWord { generation: a, num_generated: b % (MAX_OUTPUT_TOKENS + 1), is_final: held };
        prop_assert_eq!(CountWord::unpack(count.pack()), count);
    }

    /// The two progress words of a slot, each from any moment of two successive requests: a reader of
    /// the first sees what was true at some moment, completion only with the final count, and never
    /// anything of the second.
    #[test]
    fn words_of_two_moments_never_mislead(status_at in 0usize..10, count_at in 0usize..10) {
        let status = |generation, state, finish| StatusWord { generation, state, finish }.pack();
        let count = |generation, num_generated, is_final| CountWord { generation, num_generated, is_final }.pack();
        let stop = Some(FinishReason::Stop);
        // In the order an engine stores them: (status, count) as memory reads after each store.
        let history = [
            (status(4, State::Empty, None), count(4, 9, true)),
            (status(4, State::Empty, None), count(5, 0, false)),
            (status(5, State::PrefillProcessing, None), count(5, 0, false)),
            (status(5, State::PrefillProcessing, None), count(5, 1, false)),
            (status(5, State::DecodeProcessing, None), count(5, 1, false)),
            (status(5, State::DecodeProcessing, None), count(5, 2, true)),
            (status(5, State::DecodeCompleted, stop), count(5, 2, true)),
            (status(5, State::Empty, None), count(5, 2, true)),
            (status(5, State::Empty, None), count(6, 0, false)),
            (status(6, State::DecodeProcessing, None), count(6, 7, false)),
        ];
        match observe(history[status_at].0, history[count_at].1, 5) {
            Observation::Unclaimed => prop_assert!(status_at <= 1),
            Observation::Running { num_generated, .. } => {
                prop_assert!((2..=6).contains(&status_at));
                let known = if (1..=7).contains(&count_at) { [0, 0, 0, 1, 1, 2, 2, 2][count_at] } else { 0 };
                prop_assert_eq!(num_generated, known);
            }
            Observation::Completed { reason, num_generated } => {
                prop_assert_eq!((reason, num_generated), (FinishReason::Stop, 2));
            }
            Observation::Emptied => prop_assert!(status_at == 7 || status_at == 8),
            Observation::Lost => prop_assert!(status_at == 9),
            Observation::Malformed => prop_assert!(false),
        }
    }

    #[test]
    fn records_round_trip(bytes in prop::collection::vec(any::<u8>(), 256)) {
        let request: [u8; 256] = bytes[..].try_into().unwrap();
        // By bytes, for a NaN does not equal itself.
        prop_assert_eq!(RequestRecord::decode(&request).encode(), request);
        let result: [u8; 64] = bytes[..64].try_into().unwrap();
        prop_assert_eq!(ResultRecord::decode(&result).encode(), result);
        let output: [u8; 16] = bytes[..16].try_into().unwrap();
        prop_assert_eq!(OutputRecord::decode(&output).encode(), output);
    }

    #[test]
    fn leases_share_out_everything_exactly_once(
        num_slots in 1u32..5_000, num_leases in 1u32..=MAX_LEASES, input_pages in 0u64..200, output_pages in 0u64..200,
    ) {
        prop_assume!(num_leases <= num_slots);
        let geometry = RingGeometry {
            num_slots,
            num_leases,
            input_arena_bytes: (u64::from(num_leases) + input_pages) * PAGE_BYTES - 1,
            output_arena_bytes: (u64::from(num_leases) + output_pages) * PAGE_BYTES,
        };
        let layout = RingLayout::new(geometry);
        if geometry.input_arena_bytes < u64::from(num_leases) * PAGE_BYTES {
            prop_assert_eq!(layout, Err(GeometryError::ArenaBytes(geometry.input_arena_bytes)));
            return Ok(());
        }
        let layout = layout.unwrap();
        let (mut slot, mut input, mut output) = (0, layout.input_arena().start, layout.output_arena().start);
        for lease in (0..num_leases).map(LeaseIdx) {
            prop_assert_eq!(layout.lease_slots(lease).start, slot);
            prop_assert_eq!(layout.lease_input(lease).start, input);
            prop_assert_eq!(layout.lease_output(lease).start, output);
            prop_assert!(layout.lease_slots(lease).all(|slot| layout.lease_of(SlotIdx(slot)) == lease));
            prop_assert!(!layout.lease_slots(lease).is_empty() && !layout.lease_input(lease).is_empty());
            slot = layout.lease_slots(lease).end;
            (input, output) = (layout.lease_input(lease).end, layout.lease_output(lease).end);
        }
        prop_assert_eq!(slot, num_slots);
        prop_assert_eq!(input, layout.input_arena().end);
        prop_assert_eq!(output, layout.output_arena().end);
        prop_assert_eq!(output, layout.total_bytes());
        let mut ends = layout.sections().to_vec();
        ends.push(layout.total_bytes());
        prop_assert!(ends.is_sorted() && ends.iter().all(|offset| offset % PAGE_BYTES == 0));
        let last = SlotIdx(num_slots - 1);
        prop_assert!(layout.recycle_offset(last) + WORD_BYTES <= layout.mask_offset(SlotIdx(0)));
        prop_assert!(layout.mask_offset(last) + WORD_BYTES <= layout.progress_range().start);
        prop_assert!(layout.request_offset(last) + REQUEST_BYTES <= layout.sections()[7]);
        prop_assert!(layout.result_offset(last) + RESULT_BYTES <= layout.input_arena().start);
    }
}

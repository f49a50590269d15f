use super::*;
use crate::sampling::SamplingParams;

const LIMITS: RowLimits = RowLimits {
    vocab_size: 100,
    max_model_len: 64,
    max_logprobs: 128,
};

fn binding(row: u32) -> RowBinding {
    let mut binding = RowBinding {
        row,
        history: (10..20).collect(),
        ..RowBinding::default()
    };
    binding.limits.prompt_len = 7;
    binding.limits.max_tokens = 5;
    binding
}

fn encode(bindings: &[RowBinding]) -> (usize, Vec<u32>) {
    let mut encoder = Encoder::new(LIMITS, 32);
    let mut words = vec![0xDEAD; encoder.max_words() + 50];
    let count = encoder.encode(bindings, &mut words);
    (count, words)
}

fn record(words: &[u32], idx: usize) -> BindingRecord {
    let at = idx * RECORD_WORDS;
    bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[at..at + RECORD_WORDS]))
}

fn slice(words: &[u32], at: u32, len: u32) -> &[u32] {
    &words[at as usize..(at + len) as usize]
}

#[test]
fn a_plain_binding_needs_no_history() {
    let (count, words) = encode(&[binding(3)]);
    let record = record(&words, 0);
    assert_eq!((count, record.row), (1, 3));
    assert_eq!(
        (record.num_prompt, record.num_generated, record.num_recent),
        (0, 0, 0)
    );
    assert_eq!(record.num_list_words, 0);
    assert_eq!(record.state.num_generated, 3);
    assert_eq!(record.state.flags, 0);
    assert_eq!(record.state.max_key, 0x7F7F_FFFF);
}

#[test]
fn penalties_bring_the_history_they_look_at() {
    let mut presence = binding(0);
    presence.params.presence_penalty = 0.5;
    let mut repetition = binding(0);
    repetition.params.repetition_penalty = 1.5;
    let (_, words) = encode(&[presence]);
    let got = record(&words, 0);
    assert_eq!(
        slice(&words, got.generated_at, got.num_generated),
        [17, 18, 19]
    );
    assert_eq!(
        (got.num_prompt, got.state.flags),
        (0, RowFlags::COUNTS_GENERATED)
    );
    let (_, words) = encode(&[repetition]);
    let got = record(&words, 0);
    assert_eq!(
        slice(&words, got.prompt_at, got.num_prompt),
        [10, 11, 12, 13, 14, 15, 16]
    );
    assert_eq!(
        slice(&words, got.generated_at, got.num_generated),
        [17, 18, 19]
    );
}

#[test]
fn lists_stand_in_the_order_that_the_kernel_reads() {
    let mut one = binding(0);
    one.stop_ids = vec![5, 6];
    let pairs = [(9, 1.0), (2, 4.0), (9, -3.0)];
    one.logit_bias = pairs
        .map(|(token, bias)| LogitBias { token, bias })
        .to_vec();
    one.bad_words = vec![3, 18, 19, 40, 1, 41];
    let (_, words) = encode(&[one]);
    let got = record(&words, 0);
    let lists = slice(&words, got.lists_at, got.num_list_words);
    assert_eq!(lists[..2], [5, 6]);
    let expected = [2, 4f32.to_bits(), 9, 1f32.to_bits(), 9, (-3f32).to_bits()];
    assert_eq!(
        lists[2..8],
        expected,
        "a token's biases together, in their order"
    );
    assert_eq!(lists[8..14], [40, 14, 2, 41, 16, 0]);
    assert_eq!(lists[14..], [18, 19]);
    assert_eq!(
        (
            got.state.num_stop_ids,
            got.state.num_biases,
            got.state.num_bad_words
        ),
        (2, 3, 2)
    );
    assert_eq!(slice(&words, got.recent_at, got.num_recent), [18, 19]);
}

#[test]
fn allowed_ids_become_a_mask() {
    let mut one = binding(0);
    one.allowed_ids = vec![1, 33, 99];
    let (_, words) = encode(&[one]);
    let got = record(&words, 0);
    assert_eq!(slice(&words, got.mask_at, 4), [2, 2, 0, 8]);
}

#[test]
fn what_the_cpu_sampler_refuses_becomes_a_broken_row() {
    let broken: [fn(&mut RowBinding); 6] = [
        |b| b.params.temperature = f32::NAN,
        |b| b.stop_ids.push(100),
        |b| b.bad_words.push(0),
        |b| b.allowed_ids.push(100),
        |b| b.limits.prompt_len = 11,
        |b| b.history = vec![0; 65],
    ];
    for (idx, spoil) in broken.iter().enumerate() {
        let mut one = binding(4);
        spoil(&mut one);
        let (_, words) = encode(&[one, binding(5)]);
        let got = record(&words, 0);
        assert_eq!(
            (got.row, got.state.flags),
            (4, RowFlags::BROKEN),
            "case {idx}"
        );
        assert_eq!(
            got.state.error,
            u32::from(EngineError::RequestChanged.code())
        );
        assert_eq!(record(&words, 1).row, 5);
    }
}

#[test]
fn a_prompt_that_is_scored_changes_nothing_of_its_row() {
    let mut scored = binding(0);
    scored.prompt_logprobs = Some(0);
    assert_eq!(encode(&[scored]).1, encode(&[binding(0)]).1);
}

#[test]
fn lists_beyond_the_capacity_break_the_row_and_name_the_longest() {
    let mut one = binding(0);
    one.logit_bias = vec![
        LogitBias {
            token: 1,
            bias: 1.0
        };
        16
    ];
    assert_eq!(record(&encode(&[one.clone()]).1, 0).state.flags, 0);
    one.stop_ids = vec![1];
    let got = record(&encode(&[one]).1, 0).state;
    let reason = EngineError::BadRequest(BadRequest::LogitBias);
    assert_eq!(
        (got.flags, got.error),
        (RowFlags::BROKEN, u32::from(reason.code()))
    );
}

#[test]
fn as_many_bindings_are_taken_as_fit() {
    let mut all: Vec<RowBinding> = (0..9).map(binding).collect();
    for one in &mut all {
        one.params.repetition_penalty = 2.0;
        one.history = vec![7; 64];
    }
    let (count, words) = encode(&all);
    assert!((1..9).contains(&count), "{count}");
    for (idx, one) in all[..count].iter().enumerate() {
        let got = record(&words, idx);
        assert_eq!(
            (got.row, got.num_prompt, got.num_generated),
            (one.row, 7, 57)
        );
        assert_eq!(slice(&words, got.generated_at, 57), [7; 57]);
    }
}

#[test]
fn greedy_and_min_p_are_worked_out_once() {
    let mut one = binding(0);
    one.params = SamplingParams {
        min_p: 1.0,
        top_k: 1,
        ..SamplingParams::default()
    };
    let (_, words) = encode(&[one]);
    let got = record(&words, 0).state;
    assert_eq!((got.flags, got.max_key), (RowFlags::GREEDY, 0));
}

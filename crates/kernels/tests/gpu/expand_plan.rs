//! A plan expanded on the device is what it says, padding included, and nothing else is written.

use bytemuck::Zeroable;
use izar_kernels::{
    DeviceBuffer, ExpandPlan, Mark, PlanWriter, StepInputs, StepMarks, StepMeta, expand_plan,
    step_mark,
};

use crate::gpu;

const MAX_TOKENS: u32 = 700;
const MAX_SEQS: u32 = 40;
const MAX_BLOCKS: u32 = 50;
const UNTOUCHED: u32 = 0xFFFF_FFFE;

#[derive(Clone)]
struct Entry {
    row: u32,
    start: u32,
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    samples: bool,
}

/// `num_decodes` decodes and then chunks of the lengths given, in made-up places.
fn entries(num_decodes: u32, chunks: &[u32], last_tokens: &[u32]) -> Vec<Entry> {
    let lens = (0..num_decodes).map(|_| 1).chain(chunks.iter().copied());
    lens.enumerate()
        .map(|(idx, len)| {
            let idx = idx as u32;
            let (row, start) = ((idx * 7 + 3) % MAX_SEQS, idx * 5 % 60);
            let num_blocks = (start + len).div_ceil(16);
            let tokens = if idx < num_decodes {
                vec![last_tokens[row as usize]]
            } else {
                (0..len).map(|i| 1000 * idx + i).collect()
            };
            Entry {
                row,
                start,
                tokens,
                blocks: (0..num_blocks).map(|b| 100 * idx + b * 3).collect(),
                samples: idx < num_decodes || idx.is_multiple_of(2),
            }
        })
        .collect()
}

#[test]
fn expanded_plans_are_what_they_say() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    let device = stream.device();
    let last: Vec<u32> = (0..MAX_SEQS).map(|row| 9000 + row).collect();
    let last_tokens = DeviceBuffer::from_slice(stream, &last).unwrap();
    let inputs = StepInputs::new(device, MAX_TOKENS, MAX_SEQS, MAX_BLOCKS).unwrap();
    let words = PlanWriter::words(MAX_SEQS as usize, MAX_TOKENS as usize, MAX_BLOCKS as usize);
    let plan = DeviceBuffer::<u32>::new(device, words).unwrap();
    let marks = StepMarks::new(device).unwrap();
    let cases: [(u32, &[u32], u32, u32); 6] = [
        (1, &[], 1, 1),
        (5, &[], 8, 8),
        (40, &[], 40, 40),
        (3, &[1, 300], 320, 40),
        (0, &[600], 700, 40),
        (20, &[17, 16, 15, 1, 400], 512, 33),
    ];
    let mut number = 77 << 32;
    for (num_decodes, chunks, bucket_tokens, bucket_seqs) in cases {
        let what = format!("{num_decodes} decodes and {chunks:?} in {bucket_tokens}");
        let entries = entries(num_decodes, chunks, &last);
        let num_tokens: usize = entries.iter().map(|e| e.tokens.len()).sum();
        let blocks_per_row = entries.iter().map(|e| e.blocks.len()).max().unwrap();
        let mut host = vec![0xAAAA_AAAA; words];
        let mut writer = PlanWriter::new(&mut host, entries.len(), num_tokens, blocks_per_row);
        for (idx, e) in entries.iter().enumerate() {
            if idx < num_decodes as usize {
                writer.decode(e.row, e.start, &e.blocks, e.samples);
            } else {
                writer.prefill(e.row, e.start, &e.tokens, &e.blocks, e.samples);
            }
        }
        number += 1;
        writer.finish(number);
        plan.write(stream, &host).unwrap();
        let arrays = [
            &inputs.token_ids,
            &inputs.positions,
            &inputs.kv_slots,
            &inputs.query_starts,
            &inputs.query_lens,
            &inputs.seq_lens,
            &inputs.decode_seq_lens,
            &inputs.block_tables,
            &inputs.sample_tokens,
            &inputs.sample_rows,
        ];
        for array in arrays {
            array.write(stream, &vec![UNTOUCHED; array.len()]).unwrap();
        }
        let step = ExpandPlan {
            plan: &plan,
            last_tokens: &last_tokens,
            inputs: &inputs,
            marks: Some(&marks),
            bucket_tokens,
            bucket_seqs,
        };
        expand_plan(stream, &step).unwrap();
        step_mark(stream, &marks, Mark::Finished, Some(&inputs.meta)).unwrap();
        let read = |buffer: &DeviceBuffer<u32>| {
            let mut host = vec![0; buffer.len()];
            buffer.read(stream, &mut host).unwrap();
            host
        };
        let wanted = expected(
            &entries,
            num_decodes,
            bucket_tokens as usize,
            bucket_seqs as usize,
        );
        let names = [
            "token_ids",
            "positions",
            "kv_slots",
            "query_starts",
            "query_lens",
            "seq_lens",
            "decode_seq_lens",
            "block_tables",
            "sample_tokens",
            "sample_rows",
        ];
        for ((name, array), wanted) in names.iter().zip(arrays).zip(&wanted) {
            let got = read(array);
            let wrong = got
                .iter()
                .zip(wanted)
                .position(|(got, wanted)| got != wanted);
            assert!(
                wrong.is_none(),
                "{what}: {name}[{wrong:?}]: {:?}, not {:?}",
                wrong.map(|at| got[at]),
                wrong.map(|at| wanted[at])
            );
        }
        let mut meta = [StepMeta::zeroed()];
        inputs.meta.read(stream, &mut meta).unwrap();
        let num_samples = entries.iter().filter(|e| e.samples).count() as u32;
        assert_eq!(
            (meta[0].num_entries, meta[0].num_tokens, meta[0].num_decodes),
            (entries.len() as u32, num_tokens as u32, num_decodes),
            "{what}"
        );
        assert_eq!((meta[0].num_samples, meta[0].step), (num_samples, number));
        let (started, finished) = (
            marks.clock_ns(Mark::Started),
            marks.clock_ns(Mark::Finished),
        );
        assert_eq!(marks.completed_step(), number);
        assert!(
            started > 0 && finished >= started,
            "{what}: {started} to {finished}"
        );
    }
}

/// The arrays in the order of the test, each as long as its buffer.
fn expected(
    entries: &[Entry],
    num_decodes: u32,
    bucket_tokens: usize,
    bucket_seqs: usize,
) -> [Vec<u32>; 10] {
    let tokens = |padding: u32| {
        let mut array = vec![UNTOUCHED; MAX_TOKENS as usize];
        array[..bucket_tokens].fill(padding);
        array
    };
    let seqs = || {
        let mut array = vec![UNTOUCHED; MAX_SEQS as usize];
        array[..bucket_seqs].fill(0);
        array
    };
    let (mut ids, mut positions, mut kv_slots) = (tokens(0), tokens(0), tokens(u32::MAX));
    let (mut starts, mut lens, mut seq_lens, mut decode_lens) = (seqs(), seqs(), seqs(), seqs());
    let (mut sample_tokens, mut sample_rows) = (seqs(), seqs());
    let mut tables = vec![UNTOUCHED; (MAX_SEQS * MAX_BLOCKS) as usize];
    let (mut token, mut sample) = (0, 0);
    for (idx, e) in entries.iter().enumerate() {
        let end = e.start + e.tokens.len() as u32;
        (starts[idx], lens[idx], seq_lens[idx]) = (token as u32, e.tokens.len() as u32, end);
        decode_lens[idx] = if (idx as u32) < num_decodes { end } else { 0 };
        for (position, &id) in (e.start..).zip(&e.tokens) {
            let block = e.blocks[position as usize / 16];
            (ids[token], positions[token]) = (id, position);
            kv_slots[token] = block * 16 + position % 16;
            token += 1;
        }
        tables[idx * MAX_BLOCKS as usize..][..e.blocks.len()].copy_from_slice(&e.blocks);
        if e.samples {
            (sample_tokens[sample], sample_rows[sample]) = (token as u32 - 1, e.row);
            sample += 1;
        }
    }
    [
        ids,
        positions,
        kv_slots,
        starts,
        lens,
        seq_lens,
        decode_lens,
        tables,
        sample_tokens,
        sample_rows,
    ]
}

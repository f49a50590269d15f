//! The state lives in memory of the caller's, of the lengths that `MemorySizes` gives.

use izar_policy::{
    Block, BlockHash, Config, FreeRow, Globals, Memory, MemorySizes, Plan, PlanEntry, PlanHeader,
    Sequence, SizeMismatch, State,
};

const CONFIG: Config = Config {
    hash_key: [1, 2],
    num_slots: 3,
    block_size: 2,
    num_blocks: 5,
    max_num_seqs: 2,
    max_num_batched_tokens: 8,
    max_model_len: 9,
    num_hash_pages: 1,
    prefix_caching: true,
    chunked_prefill: true,
};

struct Arrays {
    globals: Globals,
    sequences: [Sequence; 3],
    waiting: [u32; 3],
    running: [u32; 2],
    rows: [FreeRow; 4],
    block_tables: [u32; 10],
    blocks: [Block; 5],
    buckets: [u32; 8],
    hashes: [BlockHash; 32],
    hash_page_tables: [u32; 3],
    free_hash_pages: [u32; 1],
}

impl Arrays {
    fn new() -> Self {
        Self {
            globals: Globals::default(),
            sequences: Default::default(),
            waiting: [9; 3],
            running: [9; 2],
            rows: Default::default(),
            block_tables: [9; 10],
            blocks: Default::default(),
            buckets: [9; 8],
            hashes: Default::default(),
            hash_page_tables: [9; 3],
            free_hash_pages: [9; 1],
        }
    }

    fn memory(&mut self) -> Memory<'_> {
        Memory {
            globals: &mut self.globals,
            sequences: &mut self.sequences,
            waiting: &mut self.waiting,
            running: &mut self.running,
            rows: &mut self.rows,
            block_tables: &mut self.block_tables,
            blocks: &mut self.blocks,
            buckets: &mut self.buckets,
            hashes: &mut self.hashes,
            hash_page_tables: &mut self.hash_page_tables,
            free_hash_pages: &mut self.free_hash_pages,
        }
    }
}

#[test]
fn state_stays_in_the_callers_memory_between_attachments() {
    let mut arrays = Arrays::new();
    State::init(&CONFIG, arrays.memory()).expect("the sizes are right");
    let attach = |arrays: &mut Arrays| {
        let mut state = State::attach(&CONFIG, arrays.memory()).expect("the sizes are right");
        state.add(2, &[1, 2, 3], 5, 0, 0).expect("it fits");
        state.check_integrity().expect("the state is consistent");
    };
    attach(&mut arrays);
    let mut state = State::attach(&CONFIG, arrays.memory()).expect("the sizes are right");
    let (mut header, mut entries, mut preempted) =
        (PlanHeader::default(), [PlanEntry::default(); 2], [0; 2]);
    let mut plan = Plan {
        header: &mut header,
        entries: &mut entries,
        preempted: &mut preempted,
    };
    state.plan(77, &mut plan).expect("nothing is in flight");
    let entry = plan.entries()[0];
    assert_eq!(
        (entry.slot, entry.start, entry.num_tokens, entry.num_blocks),
        (2, 0, 3, 2)
    );
    assert_eq!(state.block_table(entry.row)[..2], [0, 1]);
    assert_eq!((plan.header.planned_ns, plan.header.step), (77, 1));
}

#[test]
fn a_wrong_length_is_named() {
    let mut arrays = Arrays::new();
    let memory = arrays.memory();
    let memory = Memory {
        buckets: &mut memory.buckets[..4],
        ..memory
    };
    let error = State::init(&CONFIG, memory)
        .map(|_| ())
        .expect_err("a bucket array is short");
    assert_eq!(
        error,
        SizeMismatch {
            array: "buckets",
            expected: 8,
            got: 4
        }
    );
    assert_eq!(
        error.to_string(),
        "the policy's array `buckets` has 4 elements, but must have 8"
    );
    assert_eq!(MemorySizes::new(&CONFIG).block_tables, 10);
}

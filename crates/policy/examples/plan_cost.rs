//! What planning costs: nanoseconds per plan and per completion with 16, 64, 256 and 1024 decoding sequences.
//!
//! `cargo run --release -p izar-policy --example plan_cost`
//!
//! Steady decode from contexts of 500 tokens on, as seen by a driver that plans one step ahead. One step in 16 of a
//! sequence takes a block and registers one. Best and median of batches of 100 steps.

use std::time::Instant;

use izar_policy::{Config, OwnedPlan, OwnedState, StepResult, Verdict};

const PROMPT_LEN: u32 = 500;
const STEPS_PER_BATCH: usize = 100;
const NUM_BATCHES: usize = 20;

fn main() {
    println!("hardware: one thread of {}", cpu_name());
    println!(
        "configuration: block_size 16, prompts of {PROMPT_LEN} tokens, prefix cache, optimistic"
    );
    println!(
        "sequences   plan best / median ns   complete best / median ns   prefix hash ns per block"
    );
    for num_seqs in [16, 64, 256, 1024] {
        let (hash_ns, batches) = measure(num_seqs);
        let (mut plan_ns, mut done_ns): (Vec<u64>, Vec<u64>) = batches.into_iter().unzip();
        plan_ns.sort_unstable();
        done_ns.sort_unstable();
        let mid = NUM_BATCHES / 2;
        println!(
            "{num_seqs:>9}   {:>9} / {:<9}   {:>11} / {:<11}   {hash_ns}",
            plan_ns[0], plan_ns[mid], done_ns[0], done_ns[mid]
        );
    }
}

/// Nanoseconds per prompt block in `add`, and per plan and per completion for each batch.
fn measure(num_seqs: u32) -> (u64, Vec<(u64, u64)>) {
    let max_len = PROMPT_LEN + 2 * (NUM_BATCHES * STEPS_PER_BATCH) as u32;
    let config = Config::new(num_seqs * max_len.div_ceil(16), num_seqs, 8192, max_len);
    let mut state = OwnedState::new(config).expect("the configuration is valid");
    let prompts: Vec<u32> = (0..PROMPT_LEN * num_seqs).collect();
    let started = Instant::now();
    for (slot, prompt) in prompts.chunks(PROMPT_LEN as usize).enumerate() {
        state
            .add(slot as u32, prompt, max_len, 0, slot as u64)
            .expect("the prompt fits");
    }
    let num_blocks = num_seqs as u64 * PROMPT_LEN as u64 / 16;
    let hash_ns = started.elapsed().as_nanos() as u64 / num_blocks;
    let mut driver = Driver::new(&state);
    while driver.plans[driver.now].header().num_decodes < num_seqs {
        driver.step(&mut state);
    }
    (
        hash_ns,
        (0..NUM_BATCHES).map(|_| driver.batch(&mut state)).collect(),
    )
}

struct Driver {
    plans: [OwnedPlan; 2],
    now: usize,
    results: Vec<StepResult>,
}

impl Driver {
    fn new(state: &OwnedState) -> Self {
        Self {
            plans: [state.new_plan(), state.new_plan()],
            now: 0,
            results: Vec::new(),
        }
    }

    /// Plans the next step, then completes the one before. Nanoseconds of each.
    fn step(&mut self, state: &mut OwnedState) -> (u64, u64) {
        let next = 1 - self.now;
        let started = Instant::now();
        state
            .plan(0, &mut self.plans[next])
            .expect("one step is in flight");
        let plan_ns = started.elapsed().as_nanos() as u64;
        let running = &self.plans[self.now];
        let step = running.header().step;
        self.results.clear();
        let sampled = running.entries().iter().filter(|entry| entry.samples());
        self.results.extend(sampled.map(|entry| StepResult {
            slot: entry.slot,
            token: entry.start,
            verdict: Verdict::Continue,
        }));
        let started = Instant::now();
        if !running.is_empty() {
            state
                .complete_step(step, &self.results, |_| ())
                .expect("steps complete in order");
        }
        let done_ns = started.elapsed().as_nanos() as u64;
        self.now = next;
        (plan_ns, done_ns)
    }

    fn batch(&mut self, state: &mut OwnedState) -> (u64, u64) {
        let (mut plan_ns, mut done_ns) = (0, 0);
        for _ in 0..STEPS_PER_BATCH {
            let (plan, done) = self.step(state);
            plan_ns += plan;
            done_ns += done;
        }
        (
            plan_ns / STEPS_PER_BATCH as u64,
            done_ns / STEPS_PER_BATCH as u64,
        )
    }
}

fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1))
        .unwrap_or("an unknown CPU")
        .to_string()
}

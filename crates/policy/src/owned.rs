//! State and plans on the heap, for users on the host. Everything is allocated by `new`; nothing allocates afterwards.

use alloc::boxed::Box;
use alloc::vec;

use crate::config::{Config, ConfigError};
use crate::hash::BlockHash;
use crate::integrity::Violation;
use crate::memory::{Globals, Memory, MemorySizes, State};
use crate::outcome::{CompleteError, Departure, Gauges, PlanError, Refusal, StepResult};
use crate::plan::{Plan, PlanEntry, PlanHeader};
use crate::pool::Block;
use crate::rows::FreeRow;
use crate::sequence::Sequence;

/// A scheduler whose memory it owns. Its methods are those of [`State`].
#[derive(Clone, Debug)]
pub struct OwnedState {
    config: Config,
    globals: Globals,
    sequences: Box<[Sequence]>,
    waiting: Box<[u32]>,
    running: Box<[u32]>,
    rows: Box<[FreeRow]>,
    block_tables: Box<[u32]>,
    blocks: Box<[Block]>,
    buckets: Box<[u32]>,
    hashes: Box<[BlockHash]>,
    hash_page_tables: Box<[u32]>,
    free_hash_pages: Box<[u32]>,
}

fn boxed<T: Clone + Default>(len: usize) -> Box<[T]> {
    vec![T::default(); len].into_boxed_slice()
}

impl OwnedState {
    /// An empty scheduler.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let sizes = MemorySizes::new(&config);
        let mut owned = Self {
            config,
            globals: Globals::default(),
            sequences: boxed(sizes.sequences),
            waiting: boxed(sizes.waiting),
            running: boxed(sizes.running),
            rows: boxed(sizes.rows),
            block_tables: boxed(sizes.block_tables),
            blocks: boxed(sizes.blocks),
            buckets: boxed(sizes.buckets),
            hashes: boxed(sizes.hashes),
            hash_page_tables: boxed(sizes.hash_page_tables),
            free_hash_pages: boxed(sizes.free_hash_pages),
        };
        owned.state().clear();
        Ok(owned)
    }

    /// The scheduler itself.
    pub fn state(&mut self) -> State<'_> {
        let memory = Memory {
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
        };
        State::assemble(&self.config, memory)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A plan of the right size for this scheduler, empty. Optimistic use needs two.
    pub fn new_plan(&self) -> OwnedPlan {
        OwnedPlan::new(self.config.max_num_seqs)
    }

    /// See [`State::add`].
    ///
    /// # Errors
    /// [`Refusal`]; the state is unchanged.
    pub fn add(
        &mut self,
        slot: u32,
        prompt: &[u32],
        max_total_len: u32,
        priority: i32,
        arrival_ns: u64,
    ) -> Result<(), Refusal> {
        self.state()
            .add(slot, prompt, max_total_len, priority, arrival_ns)
    }

    /// See [`State::cancel`].
    pub fn cancel(&mut self, slot: u32) -> Option<Departure> {
        self.state().cancel(slot)
    }

    /// See [`State::plan`].
    ///
    /// # Errors
    /// [`PlanError`]; neither state nor plan changed.
    pub fn plan(&mut self, now_ns: u64, plan: &mut OwnedPlan) -> Result<(), PlanError> {
        self.state().plan(now_ns, &mut plan.view())
    }

    /// See [`State::compute_all`].
    pub fn compute_all(&mut self, slot: u32) {
        self.state().compute_all(slot);
    }

    /// See [`State::accepts`].
    pub fn accepts(&self, step: u64, slot: u32) -> bool {
        self.sequences
            .get(slot as usize)
            .is_some_and(|seq| seq.accepts(step))
    }

    /// See [`State::complete_step`].
    ///
    /// # Errors
    /// [`CompleteError`]; the state is unchanged.
    pub fn complete_step(
        &mut self,
        step: u64,
        results: &[StepResult],
        departed: impl FnMut(Departure),
    ) -> Result<(), CompleteError> {
        self.state().complete_step(step, results, departed)
    }

    /// The block table row of a running sequence; the plan entry's `num_blocks` says how many entries are valid.
    pub fn block_table(&self, row: u32) -> &[u32] {
        let width = self.config.max_blocks_per_seq() as usize;
        &self.block_tables[row as usize * width..][..width]
    }

    /// See [`State::gauges`].
    pub fn gauges(&self) -> Gauges {
        let Globals {
            core,
            num_waiting,
            pool,
            ..
        } = &self.globals;
        core.gauges(self.config.num_blocks, *num_waiting, pool)
    }

    /// See [`State::check_integrity`].
    ///
    /// # Errors
    /// [`Violation`].
    pub fn check_integrity(&mut self) -> Result<(), Violation> {
        self.state().check_integrity()
    }
}

/// A plan whose memory it owns.
#[derive(Clone, Debug)]
pub struct OwnedPlan {
    header: PlanHeader,
    entries: Box<[PlanEntry]>,
    preempted: Box<[u32]>,
}

impl OwnedPlan {
    /// An empty plan with room for `max_num_seqs` entries.
    pub fn new(max_num_seqs: u32) -> Self {
        Self {
            header: PlanHeader::default(),
            entries: vec![PlanEntry::default(); max_num_seqs as usize].into_boxed_slice(),
            preempted: vec![0; max_num_seqs as usize].into_boxed_slice(),
        }
    }

    /// The totals.
    pub fn header(&self) -> &PlanHeader {
        &self.header
    }

    /// The entries, decodes first.
    pub fn entries(&self) -> &[PlanEntry] {
        &self.entries[..self.header.num_entries as usize]
    }

    /// Slots that this plan preempted.
    pub fn preempted(&self) -> &[u32] {
        &self.preempted[..self.header.num_preempted as usize]
    }

    /// Whether there is nothing to run. An empty plan is not a step and is not completed.
    pub fn is_empty(&self) -> bool {
        self.header.num_entries == 0
    }

    /// The plan as the core sees it.
    pub fn view(&mut self) -> Plan<'_> {
        Plan {
            header: &mut self.header,
            entries: &mut self.entries,
            preempted: &mut self.preempted,
        }
    }
}

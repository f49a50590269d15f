//! State and plans on the heap, for users on the host. Everything is allocated by `new`; nothing allocates afterwards.

use alloc::boxed::Box;
use alloc::vec;

use crate::config::{Config, ConfigError};
use crate::outcome::{CompleteError, Departure, Gauges, PlanError, Refusal, StepResult};
use crate::plan::{Plan, PlanEntry, PlanHeader};

/// A scheduler whose memory it owns.
#[derive(Debug)]
pub struct OwnedState {
    config: Config,
    block_tables: Box<[u32]>,
}

impl OwnedState {
    /// An empty scheduler.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let num_entries = config.max_num_seqs as usize * config.max_blocks_per_seq() as usize;
        Ok(Self {
            config,
            block_tables: vec![0; num_entries].into_boxed_slice(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A plan of the right size for this scheduler, empty. Optimistic use needs two.
    pub fn new_plan(&self) -> OwnedPlan {
        OwnedPlan::new(self.config.max_num_seqs)
    }

    /// Adds a sequence; FCFS by `arrival_ns` inside a priority, lower values first.
    ///
    /// # Errors
    /// [`Refusal`]; the state is unchanged.
    pub fn add(
        &mut self,
        _slot: u32,
        _prompt: &[u32],
        _max_total_len: u32,
        _priority: i32,
        _arrival_ns: u64,
    ) -> Result<(), Refusal> {
        todo!()
    }

    /// Takes a sequence out at once, whatever it is doing.
    pub fn cancel(&mut self, _slot: u32) -> Option<Departure> {
        todo!()
    }

    /// Plans the next step.
    ///
    /// # Errors
    /// [`PlanError`]; neither state nor plan changed.
    pub fn plan(&mut self, _now_ns: u64, _plan: &mut OwnedPlan) -> Result<(), PlanError> {
        todo!()
    }

    /// Whether the token that `step` sampled for `slot` counts. False for what was planned once too often.
    pub fn accepts(&self, _step: u64, _slot: u32) -> bool {
        todo!()
    }

    /// Takes in the outcome of the oldest step in flight, and reports who left.
    ///
    /// # Errors
    /// [`CompleteError`]; the state is unchanged.
    pub fn complete_step(
        &mut self,
        _step: u64,
        _results: &[StepResult],
        _departed: impl FnMut(Departure),
    ) -> Result<(), CompleteError> {
        todo!()
    }

    /// The block table row of a running sequence; the plan entry's `num_blocks` says how many entries are valid.
    pub fn block_table(&self, row: u32) -> &[u32] {
        let width = self.config.max_blocks_per_seq() as usize;
        &self.block_tables[row as usize * width..][..width]
    }

    /// Figures for metrics.
    pub fn gauges(&self) -> Gauges {
        todo!()
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

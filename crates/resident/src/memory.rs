//! Where everything lies: device addresses, written once by whoever allocates.

use izar_policy::{
    Block, BlockHash, Config, FreeRow, Globals, Memory, MemorySizes, Plan, PlanEntry, PlanHeader,
    Sequence, State, StepResult,
};
use izar_ring::{EngineSlot, LogprobEntry};

use crate::core_state::{Event, Live, Sample};

/// Sizes and addresses, as the resident scheduler sees them. An address is that of an array whose length follows from the
/// sizes; everything but the ring and the log-probabilities is device memory that nobody else writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Addresses {
    /// The policy's configuration.
    pub config: Config,
    /// Root of the seeds of requests that bring none.
    pub seed: u64,
    /// The ring's region.
    pub ring: u64,
    /// Bytes of it.
    pub ring_bytes: u64,
    /// A copy of its beginning, up to the output arena: what was submitted.
    pub submitted: u64,
    /// Of the ring's geometry.
    pub input_arena_bytes: u64,
    /// Of the ring's geometry.
    pub output_arena_bytes: u64,
    /// Of the ring's options.
    pub lease_timeout_ns: u64,
    /// How long a masked sequence waits for one mask before it fails.
    pub mask_timeout_ns: u64,
    /// Of the ring's geometry.
    pub num_leases: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Words of a sampler row's lists.
    pub list_capacity: u32,
    /// Zero.
    pub reserved: u32,
    /// `[num_slots]` [`EngineSlot`].
    pub slots: u64,
    /// `[num_slots]` [`Live`].
    pub live: u64,
    /// `[3 num_slots]` [`Event`].
    pub events: u64,
    /// `[max_num_seqs]` [`Sample`].
    pub samples: u64,
    /// `[2, max_num_seqs, entries]` [`LogprobEntry`], as the sampler writes them.
    pub logprobs: u64,
    /// `[max_num_seqs]` [`StepResult`].
    pub results: u64,
    /// [`PlanHeader`].
    pub plan_header: u64,
    /// `[max_num_seqs]` [`PlanEntry`].
    pub plan_entries: u64,
    /// `[max_num_seqs]` u32.
    pub plan_preempted: u64,
    /// The policy's [`Memory`], by name.
    pub globals: u64,
    /// See [`Memory`].
    pub sequences: u64,
    /// See [`Memory`].
    pub waiting: u64,
    /// See [`Memory`].
    pub running: u64,
    /// See [`Memory`].
    pub rows: u64,
    /// See [`Memory`].
    pub block_tables: u64,
    /// See [`Memory`].
    pub blocks: u64,
    /// See [`Memory`].
    pub buckets: u64,
    /// See [`Memory`].
    pub hashes: u64,
    /// See [`Memory`].
    pub hash_page_tables: u64,
    /// See [`Memory`].
    pub free_hash_pages: u64,
}

/// The array at an address.
///
/// # Safety
/// `len` elements lie there, initialised (any bits do for those used here) and used by nobody else while the slice lives.
unsafe fn array<'a, T>(address: u64, len: usize) -> &'a mut [T] {
    // SAFETY: promised by the caller.
    unsafe { core::slice::from_raw_parts_mut(address as *mut T, len) }
}

impl Addresses {
    /// Bytes of each array, in the order of the addresses from `slots` on, but without `logprobs`, which is the sampler's.
    pub fn array_bytes(config: &Config) -> [usize; 19] {
        let sizes = MemorySizes::new(config);
        let (slots, seqs) = (config.num_slots as usize, config.max_num_seqs as usize);
        [
            slots * size_of::<EngineSlot>(),
            slots * size_of::<Live>(),
            3 * slots * size_of::<Event>(),
            seqs * size_of::<Sample>(),
            seqs * size_of::<StepResult>(),
            size_of::<PlanHeader>(),
            seqs * size_of::<PlanEntry>(),
            seqs * size_of::<u32>(),
            size_of::<Globals>(),
            sizes.sequences * size_of::<Sequence>(),
            sizes.waiting * size_of::<u32>(),
            sizes.running * size_of::<u32>(),
            sizes.rows * size_of::<FreeRow>(),
            sizes.block_tables * size_of::<u32>(),
            sizes.blocks * size_of::<Block>(),
            sizes.buckets * size_of::<u32>(),
            sizes.hashes * size_of::<BlockHash>(),
            sizes.hash_page_tables * size_of::<u32>(),
            sizes.free_hash_pages * size_of::<u32>(),
        ]
    }

    /// The addresses that [`Addresses::array_bytes`] sizes, in its order.
    pub fn arrays(&mut self) -> [&mut u64; 19] {
        [
            &mut self.slots,
            &mut self.live,
            &mut self.events,
            &mut self.samples,
            &mut self.results,
            &mut self.plan_header,
            &mut self.plan_entries,
            &mut self.plan_preempted,
            &mut self.globals,
            &mut self.sequences,
            &mut self.waiting,
            &mut self.running,
            &mut self.rows,
            &mut self.block_tables,
            &mut self.blocks,
            &mut self.buckets,
            &mut self.hashes,
            &mut self.hash_page_tables,
            &mut self.free_hash_pages,
        ]
    }

    fn num_slots(&self) -> usize {
        self.config.num_slots as usize
    }

    fn max_num_seqs(&self) -> usize {
        self.config.max_num_seqs as usize
    }

    /// # Safety
    /// The addresses are right, and nobody else uses the policy's arrays while the result lives.
    pub(crate) unsafe fn policy_memory<'a>(&self) -> Memory<'a> {
        let sizes = MemorySizes::new(&self.config);
        // SAFETY: promised by the caller; the lengths are those the arrays were allocated with.
        unsafe {
            Memory {
                globals: &mut *(self.globals as *mut Globals),
                sequences: array(self.sequences, sizes.sequences),
                waiting: array(self.waiting, sizes.waiting),
                running: array(self.running, sizes.running),
                rows: array(self.rows, sizes.rows),
                block_tables: array(self.block_tables, sizes.block_tables),
                blocks: array(self.blocks, sizes.blocks),
                buckets: array(self.buckets, sizes.buckets),
                hashes: array(self.hashes, sizes.hashes),
                hash_page_tables: array(self.hash_page_tables, sizes.hash_page_tables),
                free_hash_pages: array(self.free_hash_pages, sizes.free_hash_pages),
            }
        }
    }

    /// # Safety
    /// As for [`Addresses::policy_memory`]; the state was initialised.
    pub(crate) unsafe fn policy<'a>(&self) -> State<'a> {
        // SAFETY: promised by the caller.
        match State::attach(&self.config, unsafe { self.policy_memory() }) {
            Ok(state) => state,
            Err(_) => unreachable!("the arrays have the sizes they were made with"),
        }
    }

    /// # Safety
    /// The addresses are right, and nobody else uses the plan while the result lives.
    pub(crate) unsafe fn plan<'a>(&self) -> Plan<'a> {
        // SAFETY: promised by the caller.
        unsafe {
            Plan {
                header: &mut *(self.plan_header as *mut PlanHeader),
                entries: array(self.plan_entries, self.max_num_seqs()),
                preempted: array(self.plan_preempted, self.max_num_seqs()),
            }
        }
    }

    /// # Safety
    /// The addresses are right, and nobody else uses the array while the result lives. So for the next ones.
    pub(crate) unsafe fn slots(&self) -> &'static mut [EngineSlot] {
        // SAFETY: promised by the caller.
        unsafe { array(self.slots, self.num_slots()) }
    }

    /// # Safety
    /// See [`Addresses::slots`].
    pub(crate) unsafe fn live<'a>(&self) -> &'a mut [Live] {
        // SAFETY: promised by the caller.
        unsafe { array(self.live, self.num_slots()) }
    }

    /// # Safety
    /// See [`Addresses::slots`].
    pub(crate) unsafe fn events<'a>(&self) -> &'a mut [Event] {
        // SAFETY: promised by the caller.
        unsafe { array(self.events, 3 * self.num_slots()) }
    }

    /// # Safety
    /// See [`Addresses::slots`].
    pub(crate) unsafe fn samples<'a>(&self, count: u32) -> &'a [Sample] {
        // SAFETY: promised by the caller.
        unsafe { array(self.samples, (count as usize).min(self.max_num_seqs())) }
    }

    /// # Safety
    /// See [`Addresses::slots`].
    pub(crate) unsafe fn results<'a>(&self) -> &'a mut [StepResult] {
        // SAFETY: promised by the caller.
        unsafe { array(self.results, self.max_num_seqs()) }
    }

    /// # Safety
    /// The sampler has written `count` entries from entry `first` on, and writes none of them while the slice lives.
    pub(crate) unsafe fn logprobs<'a>(&self, first: u64, count: u32) -> &'a [LogprobEntry] {
        let address = self.logprobs + first * size_of::<LogprobEntry>() as u64;
        // SAFETY: promised by the caller.
        unsafe { core::slice::from_raw_parts(address as *const LogprobEntry, count as usize) }
    }
}

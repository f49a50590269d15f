//! What submitters, handles and the token reader share: [`Shared`], and the inbox between the first and the last.
//!
//! Locks are per request, never per token: the slot tracker's and the arenas' when a request takes or returns its space, the
//! inbox's when it is handed over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::arena::{Extent, SharedArena};
use super::engine::{EngineHealth, EngineWatch};
use super::lease::Lease;
use super::outcome::{RequestError, Shortage, SubmitError};
use super::slots::{SlotTracker, TakenSlot};
use super::staging::Staging;
use super::stats::{ClientStats, Counters};
use super::tracker::Newcomer;
use crate::Transport;
use crate::wake::EventCount;

/// What submitters, handles and the token reader share.
pub(super) struct Shared {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) lease: Lease,
    slots: Mutex<SlotTracker>,
    pub(super) input: SharedArena,
    pub(super) output: SharedArena,
    pub(super) staging: Staging,
    pub(super) engine: EngineWatch,
    pub(super) counters: Counters,
    inbox: Mutex<Inbox>,
    /// Lets the reader skip the inbox's lock when there is nothing in it.
    inbox_has_some: AtomicBool,
    pub(super) closing: AtomicBool,
    /// What the reader sleeps on if the transport has no event for it.
    own_event: EventCount,
    pub(super) next_request_id: AtomicU64,
}

/// Requests on their way to the token reader.
#[derive(Default)]
struct Inbox {
    newcomers: Vec<Newcomer>,
    /// Why no more are taken, once that is so.
    closed: Option<RequestError>,
}

impl Shared {
    /// Everything free, nothing seen, over a lease whose free slots are `slots`.
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        lease: Lease,
        slots: SlotTracker,
        engine: EngineWatch,
    ) -> std::io::Result<Shared> {
        let layout = lease.layout();
        let (input, output) = (
            layout.lease_input(lease.idx()),
            layout.lease_output(lease.idx()),
        );
        Ok(Shared {
            slots: Mutex::new(slots),
            input: SharedArena::new(input.start, input.end - input.start),
            output: SharedArena::new(output.start, output.end - output.start),
            staging: Staging::new(output)?,
            engine,
            counters: Counters::default(),
            inbox: Mutex::default(),
            inbox_has_some: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            own_event: EventCount::new(),
            next_request_id: AtomicU64::new(1),
            lease,
            transport,
        })
    }

    /// Why no more requests are taken, once that is so.
    pub(super) fn closed(&self) -> Option<RequestError> {
        self.inbox().closed.clone()
    }

    /// What the token reader sleeps on.
    pub(super) fn event(&self) -> &EventCount {
        self.transport.reader_event().unwrap_or(&self.own_event)
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, SlotTracker> {
        // A panic inside is our own broken invariant; whoever comes after would only panic again.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Pushes and swaps leave it consistent, so a panic elsewhere does not spoil it.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closing(&self) -> bool {
        // Relaxed: the event's fence orders it; a busy reader sees it soon enough.
        self.closing.load(Ordering::Relaxed)
    }

    /// Refuses if the engine takes no requests; looks again if the last look said so.
    pub(super) fn check_engine(&self) -> Result<(), SubmitError> {
        if self.engine.health() == EngineHealth::Ready {
            return Ok(());
        }
        match self.engine.refresh(&*self.transport, Instant::now()) {
            Ok(EngineHealth::Ready) => Ok(()),
            Ok(health) => Err(SubmitError::EngineNotReady(health)),
            Err(error) => Err(SubmitError::Disconnected(error.into())),
        }
    }

    /// Takes input space, output space and a slot, or nothing.
    pub(super) fn take_space(
        &self,
        input_bytes: u64,
        output_bytes: u64,
    ) -> Result<(Extent, Extent, TakenSlot), SubmitError> {
        if !self.input.could_hold(input_bytes) {
            return Err(SubmitError::InputTooLarge {
                needed_bytes: input_bytes,
                arena_bytes: self.input.capacity(),
            });
        }
        if !self.output.could_hold(output_bytes) {
            return Err(SubmitError::OutputTooLarge {
                needed_bytes: output_bytes,
                arena_bytes: self.output.capacity(),
            });
        }
        let input = self
            .input
            .allocate(input_bytes)
            .ok_or_else(|| self.full(Shortage::InputArena))?;
        let output = self
            .output
            .allocate(output_bytes)
            .ok_or_else(|| self.full(Shortage::OutputArena))?;
        // Not in one expression: counting a refusal looks at the slots again.
        let taken = self.slots().take();
        let taken = taken.ok_or_else(|| self.full(Shortage::Slots))?;
        Ok((input, output, taken))
    }

    fn full(&self, what: Shortage) -> SubmitError {
        self.counters.refused.add(1);
        let stats = self.stats();
        SubmitError::Full {
            what,
            retry_after: self.counters.retry_after(stats.slots_in_use),
        }
    }

    /// Puts a request into the reader's inbox.
    pub(super) fn hand_over(&self, newcomer: Newcomer) -> Result<(), RequestError> {
        {
            let mut inbox = self.inbox();
            if let Some(reason) = &inbox.closed {
                return Err(reason.clone());
            }
            inbox.newcomers.push(newcomer);
        }
        self.counters.submitted.add(1);
        self.counters.pending.add(1);
        // SYNC inbox: pairs with the acquire swap in `take_newcomers`.
        self.inbox_has_some.store(true, Ordering::Release);
        if self.transport.reader_event().is_none() {
            // Without an engine that wakes the reader, it has to start polling now.
            self.own_event.raise();
        }
        Ok(())
    }

    pub(super) fn has_newcomers(&self) -> bool {
        // Relaxed: whoever acts on it takes the inbox's lock.
        self.inbox_has_some.load(Ordering::Relaxed)
    }

    /// Reader: moves the inbox's contents to `into`; false if there were none.
    pub(super) fn take_newcomers(&self, into: &mut Vec<Newcomer>) -> bool {
        // SYNC inbox: pairs with the release store in `hand_over`.
        if !self.has_newcomers() || !self.inbox_has_some.swap(false, Ordering::Acquire) {
            return false;
        }
        into.append(&mut self.inbox().newcomers);
        true
    }

    /// Reader: takes no more requests, for this reason, and moves the last ones to `into`.
    pub(super) fn close(&self, reason: RequestError, into: &mut Vec<Newcomer>) {
        let mut inbox = self.inbox();
        inbox.closed = Some(reason);
        into.append(&mut inbox.newcomers);
    }

    pub(super) fn stats(&self) -> ClientStats {
        let (num_slots, num_free) = {
            let slots = self.slots();
            (slots.num_slots(), slots.num_free())
        };
        let counters = &self.counters;
        ClientStats {
            num_slots,
            slots_in_use: num_slots - num_free,
            input_bytes: self.input.capacity(),
            input_used_bytes: self.input.used_bytes(),
            output_bytes: self.output.capacity(),
            output_used_bytes: self.output.used_bytes(),
            num_pending: counters.pending.get(),
            num_submitted: counters.submitted.get(),
            num_refused: counters.refused.get(),
            num_completed: counters.completed.get(),
            num_cancelled: counters.cancelled.get(),
            num_failed: counters.failed.get(),
            num_tokens: counters.tokens.get(),
            num_polls: counters.polls.get(),
            num_polls_with_news: counters.polls_with_news.get(),
        }
    }
}

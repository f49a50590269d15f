//! Sleeping and waking between the engine and the front end of one process.
//!
//! An [`EventCount`] lets one side sleep until the other has done something, without a lost wake-up and without cost when
//! nobody sleeps: raising it is then one fence and one load. It carries no data; the ring does.
//!
//! The protocol (Dekker's): the sleeper announces itself, then looks at the ring once more, then sleeps; the waker writes
//! the ring, then looks for announced sleepers. Both put a full fence between their write and their look, so at least one
//! of them sees the other.
//!
//! [`EngineDoorbell`] is the engine's end: it sleeps until a front end writes, and tells the token reader about news. It
//! works over transports that have no events, too, by looking at the ring again and again with growing naps.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Transport;

/// An event that threads can wait for; see the module documentation.
#[derive(Debug, Default)]
pub struct EventCount {
    waiters: AtomicU32,
    epoch: Mutex<u64>,
    raised: Condvar,
}

/// An announced intention to sleep; made by [`EventCount::prepare`].
#[derive(Debug)]
#[must_use = "look at the condition once more, then wait or drop this"]
pub struct Prepared<'a> {
    event: &'a EventCount,
    epoch: u64,
}

impl EventCount {
    /// An event that nobody waits for yet.
    pub fn new() -> EventCount {
        EventCount::default()
    }

    /// Announces that this thread is about to sleep. Check the awaited condition after this and before [`Prepared::wait`].
    pub fn prepare(&self) -> Prepared<'_> {
        let epoch = *self.lock();
        // Relaxed: the fence below orders it, and it carries no data.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // SYNC wake-up: pairs with the fence in `raise`. Our announcement comes before the caller's last look.
        fence(Ordering::SeqCst);
        Prepared { event: self, epoch }
    }

    /// Wakes every thread that is between [`EventCount::prepare`] and the end of [`Prepared::wait`].
    /// Returns whether anybody was.
    pub fn raise(&self) -> bool {
        // SYNC wake-up: pairs with the fence in `prepare`. What the caller wrote comes before our look for sleepers.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return false;
        }
        *self.lock() += 1;
        self.raised.notify_all();
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, u64> {
        // A counter cannot be left half-changed, so a panic elsewhere does not spoil it.
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prepared<'_> {
    /// Sleeps until the event is raised (true) or `timeout` has passed (false).
    pub fn wait(self, timeout: Duration) -> bool {
        let epoch = self.event.lock();
        let (epoch, _) = self
            .event
            .raised
            .wait_timeout_while(epoch, timeout, |now| *now == self.epoch)
            .unwrap_or_else(PoisonError::into_inner);
        *epoch != self.epoch
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // Relaxed: a raiser that still sees us wakes nobody, which is harmless.
        self.event.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shortest and longest nap of [`EngineDoorbell::park`] on a transport without events.
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_micros(500);

/// The engine's end of the wake-ups: sleeps while there is nothing to do, and rings after publishing.
#[derive(Clone)]
pub struct EngineDoorbell {
    transport: Arc<dyn Transport>,
}

impl EngineDoorbell {
    /// The doorbell of an engine whose front end uses `transport`.
    pub fn new(transport: Arc<dyn Transport>) -> EngineDoorbell {
        EngineDoorbell { transport }
    }

    /// Sleeps until `has_work` says so or `timeout` has passed; returns the last answer of `has_work`.
    ///
    /// `has_work` looks at the ring (a front end's doorbell word moved) and must be cheap: on a transport without events
    /// it is asked every 20 to 500 microseconds.
    pub fn park(&self, timeout: Duration, mut has_work: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut nap = NAP_MIN;
        loop {
            if has_work() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            match self.transport.engine_event() {
                Some(event) => {
                    let prepared = event.prepare();
                    if has_work() {
                        return true;
                    }
                    prepared.wait(left);
                }
                None => {
                    std::thread::sleep(nap.min(left));
                    nap = (nap * 2).min(NAP_MAX);
                }
            }
        }
    }

    /// Tells the token reader that tokens, completions or states were published. Once per step is enough; without a
    /// sleeping reader in this process it costs a fence.
    pub fn ring(&self) {
        if let Some(event) = self.transport.reader_event() {
            event.raise();
        }
    }

    /// The transport, for whoever needs its memory mapped.
    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        self.transport.clone()
    }

    /// Wakes the engine thread itself, for example to make it notice a shutdown request.
    pub fn wake_engine(&self) {
        if let Some(event) = self.transport.engine_event() {
            event.raise();
        }
    }
}

#[cfg(test)]
mod tests;

//! The token reader: one thread that polls the ring for a whole front end (Blink §4.4).
//!
//! How it waits: with nothing in flight it is parked. With requests in flight and an engine in this process that raises the
//! reader's event, it sleeps until then. Otherwise it polls: hot for a moment after news, then yielding, then with naps that
//! grow up to [`ClientOptions::max_poll_interval`], which bounds the latency it can add to a token. In any case it looks up a few
//! times a second, to show that this front end lives and to see whether the engine does.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ClientOptions;
use super::outcome::RequestError;
use super::shared::Shared;
use super::tracker::{Newcomer, Polled, Tracker};
use crate::TransportError;

/// For how long after the last news the reader yields between polls before it naps.
const YIELD_TIME: Duration = Duration::from_micros(50);
const NAP_MIN: Duration = Duration::from_micros(10);
/// The thread's state.
pub(super) struct Reader {
    shared: Arc<Shared>,
    tracker: Tracker,
    newcomers: Vec<Newcomer>,
    pacer: Pacer,
    heartbeat_interval: Duration,
    next_check: Instant,
    has_ended: bool,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, options: &ClientOptions) -> Reader {
        let slots = shared.lease.layout().lease_slots(shared.lease.idx());
        let tracker = Tracker::new(
            slots.start,
            slots.end - slots.start,
            options.max_tokens_per_poll.max(1),
        );
        let now = Instant::now();
        Reader {
            shared,
            tracker,
            newcomers: Vec::new(),
            pacer: Pacer::new(options, now),
            heartbeat_interval: options.heartbeat_interval,
            next_check: now,
            has_ended: false,
        }
    }

    /// Runs until the client closes or the connection is lost.
    pub(super) fn run(mut self) {
        if self.shared.transport.reader_event().is_none() {
            precise_naps();
        }
        let reason = loop {
            match self.turn() {
                Ok(()) if self.shared.is_closing() => break RequestError::ClientClosed,
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        self.end(reason);
    }

    /// One round: look after the connection, take newcomers in, poll, wait.
    fn turn(&mut self) -> Result<(), RequestError> {
        let now = Instant::now();
        if now >= self.next_check {
            self.check(now)?;
        }
        self.admit();
        match self.poll(now)? {
            Polled::Nothing => self.pause(now)?,
            Polled::News | Polled::Suspect => self.pacer.news(now),
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Result<Polled, TransportError> {
        let polled = self.tracker.poll(&self.shared)?;
        if polled == Polled::Suspect {
            self.next_check = now;
        }
        Ok(polled)
    }

    fn admit(&mut self) {
        if self.shared.take_newcomers(&mut self.newcomers) {
            self.newcomers
                .drain(..)
                .for_each(|newcomer| self.tracker.admit(newcomer));
            self.pacer.news(Instant::now());
        }
    }

    /// Shows a sign of life, and looks for the engine's.
    fn check(&mut self, now: Instant) -> Result<(), RequestError> {
        let shared = self.shared.clone();
        self.next_check = now + self.heartbeat_interval;
        if shared.lease.is_revoked()? {
            return Err(RequestError::LeaseRevoked);
        }
        shared.lease.beat()?;
        shared.engine.refresh(&*shared.transport, now)?;
        if let Some(loss) = shared.engine.loss(now) {
            // What the engine published before its end is still delivered.
            self.admit();
            while self.tracker.poll(&shared)? != Polled::Nothing {}
            self.tracker.fail_all(&shared, &loss);
        }
        Ok(())
    }

    /// Waits for something to do, not longer than to the next check.
    fn pause(&mut self, now: Instant) -> Result<(), TransportError> {
        let shared = self.shared.clone();
        let left = self.next_check.saturating_duration_since(now);
        if !self.tracker.is_empty() && shared.transport.reader_event().is_none() {
            self.pacer.pause(now, left);
            return Ok(());
        }
        let prepared = shared.event().prepare();
        // Whatever comes from here on raises the event.
        if shared.has_newcomers() || shared.is_closing() || self.poll(now)? != Polled::Nothing {
            return Ok(());
        }
        prepared.wait(left);
        Ok(())
    }

    /// Ends all requests and lets the lease go; the engine ends what still runs under it.
    fn end(&mut self, reason: RequestError) {
        self.has_ended = true;
        let shared = self.shared.clone();
        shared.close(reason.clone(), &mut self.newcomers);
        self.newcomers
            .drain(..)
            .for_each(|newcomer| self.tracker.admit(newcomer));
        // From here on nobody writes a word of any slot.
        self.tracker.streams().for_each(|stream| stream.let_go());
        self.tracker.fail_all(&shared, &reason);
        self.tracker.clear();
        if reason != RequestError::ClientClosed {
            tracing::error!(error = %reason, "lost the connection to the engine");
        } else if let Err(error) = shared.lease.release() {
            tracing::warn!(%error, "the lease was not given back and will expire");
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Only a panic gets here without an end; nobody may wait for tokens that will not come.
        if !self.has_ended {
            self.end(RequestError::ReaderFailed);
        }
    }
}

/// Decides how long to wait between polls that find nothing.
struct Pacer {
    spin_time: Duration,
    nap_max: Duration,
    nap: Duration,
    last_news: Instant,
}

impl Pacer {
    fn new(options: &ClientOptions, now: Instant) -> Pacer {
        let nap_max = options.max_poll_interval.max(NAP_MIN);
        Pacer {
            spin_time: options.spin_time,
            nap_max,
            nap: NAP_MIN,
            last_news: now,
        }
    }

    fn news(&mut self, now: Instant) {
        self.last_news = now;
        self.nap = NAP_MIN;
    }

    fn pause(&mut self, now: Instant, limit: Duration) {
        let quiet = now.saturating_duration_since(self.last_news);
        if quiet < self.spin_time {
            std::hint::spin_loop();
        } else if quiet < self.spin_time + YIELD_TIME {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.nap.min(limit));
            self.nap = (self.nap * 2).min(self.nap_max);
        }
    }
}

/// Lets this thread's sleeps end within microseconds of when they should: the kernel's default is 50 µs late.
fn precise_naps() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000)) {
        tracing::debug!(%error, "cannot ask for precise timers");
    }
}

//! One watcher: an inbox that the sampler fills, and the body that empties it into a connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::Error;
use bytes::Bytes;
use http_body::{Body, Frame};

use super::Stats;

/// Events a watcher may be behind.
const MAX_BEHIND: usize = 8;

/// Events on their way to one watcher.
pub(super) struct Inbox(Mutex<Events>);

#[derive(Default)]
struct Events {
    queue: VecDeque<Bytes>,
    /// It was full: what the watcher needs next is a snapshot.
    has_missed: bool,
    /// Nothing follows what is in the queue.
    has_ended: bool,
    waker: Option<Waker>,
}

impl Inbox {
    /// Its first event is `first`.
    pub(super) fn holding(first: Bytes) -> Self {
        let events = Events {
            queue: VecDeque::from([first]),
            ..Events::default()
        };
        Self(Mutex::new(events))
    }

    /// Puts an event in, or, if there is no room, throws away what is there.
    pub(super) fn put(&self, event: Bytes) {
        let mut events = self.lock();
        if events.queue.len() >= MAX_BEHIND {
            events.queue.clear();
            events.has_missed = true;
        }
        if !events.has_missed {
            events.queue.push_back(event);
        }
        events.wake();
    }

    /// Puts the last event in.
    pub(super) fn end(&self, event: Bytes) {
        let mut events = self.lock();
        events.has_missed = false;
        events.has_ended = true;
        events.queue.push_back(event);
        events.wake();
    }

    /// Forgets everything: a snapshot follows.
    pub(super) fn clear(&self) {
        let mut events = self.lock();
        events.queue.clear();
        events.has_missed = false;
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        // Every update leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The body of an answer: events until the server drains. Dropped, the watcher has left.
pub struct Watcher {
    stats: Arc<Stats>,
    inbox: Arc<Inbox>,
}

impl Watcher {
    pub(super) fn new(stats: Arc<Stats>, inbox: Arc<Inbox>) -> Self {
        Self { stats, inbox }
    }

    /// Events that wait for it.
    #[cfg(test)]
    pub(super) fn inbox_len(&self) -> usize {
        self.inbox.lock().queue.len()
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        {
            let mut events = self.inbox.lock();
            if let Some(event) = events.queue.pop_front() {
                return Poll::Ready(Some(event));
            }
            if events.has_ended {
                return Poll::Ready(None);
            }
            if !events.has_missed {
                events.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        match self.stats.catch_up(&self.inbox) {
            Some(snapshot) => Poll::Ready(Some(snapshot)),
            // The end came in between, and is in the inbox.
            None => Poll::Ready(self.inbox.lock().queue.pop_front()),
        }
    }
}

impl Body for Watcher {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.poll_event(cx)
            .map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stats.leave(&self.inbox);
    }
}

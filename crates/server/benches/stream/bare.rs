//! A bare server of events: a thread says when, a channel for each stream carries the bytes, the HTTP library writes them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::post;
use http_body::Frame;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::NUM_TOKENS;

/// When streams get their tokens.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// From one token of a stream to its next.
    pub step: Duration,
    /// Groups that take turns within a step.
    pub num_groups: u32,
}

impl Pace {
    /// All streams at the same time.
    pub fn lockstep(step: Duration) -> Self {
        Self {
            step,
            num_groups: 1,
        }
    }
}

/// A stream and how many chunks it has had.
struct Stream {
    chunks: UnboundedSender<Bytes>,
    num_sent: u64,
    group: u32,
}

/// A server of `NUM_TOKENS` chunks an answer, each made by `chunk` when its time has come.
pub fn router(path: &str, pace: Pace, chunk: impl Fn() -> Bytes + Send + 'static) -> Router {
    let streams = Arc::new(Mutex::new(Vec::<Stream>::new()));
    let served = Arc::clone(&streams);
    std::thread::spawn(move || run(&served, pace, chunk));
    let next_group = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let handler = move || {
        let (chunks, received) = unbounded_channel();
        // Relaxed: only the spread matters.
        let group = next_group.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % pace.num_groups;
        let stream = Stream {
            chunks,
            num_sent: 0,
            group,
        };
        streams.lock().expect("unpoisoned").push(stream);
        std::future::ready(Body::new(Events(received)))
    };
    Router::new().route(path, post(handler))
}

/// Sends until nobody can ask any more.
fn run(streams: &Arc<Mutex<Vec<Stream>>>, pace: Pace, chunk: impl Fn() -> Bytes) {
    let (mut next, mut turn) = (Instant::now(), 0);
    while Arc::strong_count(streams) > 1 {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        streams.lock().expect("unpoisoned").retain_mut(|stream| {
            if stream.group != turn {
                return true;
            }
            stream.num_sent += 1;
            stream.chunks.send(chunk()).is_ok() && stream.num_sent < NUM_TOKENS
        });
        turn = (turn + 1) % pace.num_groups;
        // As the mock engine: lost time is made up for, a step of it at most.
        next += pace.step / pace.num_groups;
        next = next.max(Instant::now() - pace.step);
    }
}

/// A body of what comes through a channel: all that is there in one frame.
struct Events(UnboundedReceiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = ready!(self.0.poll_recv(cx));
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

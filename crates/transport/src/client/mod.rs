//! The front end's client: submit requests into a ring and stream their tokens back.
//!
//! Parts (names as in Blink §4.4): a *lease* on a share of the ring; *arenas* for prompts and outputs; the *slot tracker*, a
//! local cache of free slots; the *token reader*, one thread that polls the ring for everybody; the *request tracker* that
//! it keeps; *staging*, the local mirror that tokens land in; and one *stream* per request between reader and handle.
//!
//! Life of a request: `submit` takes space and a slot, writes payload, record and submit word, and leaves the request in the
//! reader's inbox. The engine claims it, publishes tokens and completes it; the reader copies tokens to the mirror and wakes
//! the handle, at most once per poll. When all has been read, the reader writes the recycle word; when the engine answers
//! EMPTY, slot and input space are free again, and output space as soon as the handle is gone, too. A handle dropped early
//! writes the cancel word; the rest is the same.
//!
//! A request with masks (grammars) has one reader more: its [`MaskFeed`], which sees the tokens as the handle does and answers
//! each with what the next may be.
//!
//! Threads: `submit`, `cancel` and statistics may be called from any; each request's words have one writer at a time, by the
//! lock in `stream`. The tracker belongs to the reader's thread.
//!
//! If the engine's heartbeat stops, every stream ends with [`RequestError::EngineLost`]; slots wait for its return. If the
//! lease is revoked or the transport fails, streams end, too, and the client is of no further use: connect a new one.
//!
//! ```
//! use std::time::Duration;
//!
//! use izar_transport::client::{ClientOptions, Progress, RingClient, Submission};
//! use izar_transport::mock_engine::{MockEngine, MockOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (transport, _engine) = MockEngine::in_process(&Default::default(), MockOptions::default())?;
//! let client = RingClient::connect(transport, ClientOptions::default())?;
//! client.wait_ready(Duration::from_secs(5))?;
//! let mut request = client.submit(&Submission::new(&[7, 8, 9], 3))?;
//! let mut tokens = Vec::new();
//! // In a task: `request.next(&mut tokens).await`.
//! while let Some(Progress::More) = request.wait(&mut tokens, Duration::from_secs(5)) {}
//! assert_eq!(tokens.iter().map(|t| t.token).collect::<Vec<_>>(), [7, 8, 9]);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use izar_ring::{
    HEADER_BYTES, Header, PROGRESS_BYTES, RingLayout, SlotIdx, StatusWord, mask_words,
};

mod arena;
mod encode;
mod engine;
mod handle;
mod lease;
mod masks;
mod outcome;
mod reader;
mod shared;
mod slots;
mod staging;
mod stats;
mod stream;
mod submission;
mod tracker;
mod watch;

use encode::Placement;
use engine::EngineWatch;
use lease::Lease;
use reader::Reader;
use shared::Shared;
use slots::SlotTracker;
use stream::{Shape, Stream};
use tracker::Newcomer;

use crate::{Transport, TransportError};

pub use engine::{EngineHealth, EngineStatus};
pub use handle::RequestHandle;
pub use izar_ring::{
    BadRequest, EngineError, EngineStats, State, StepHistogram, StepRecord, StepStats,
};
pub use masks::{FeedProgress, MaskFeed};
pub use outcome::{
    ConnectError, Finish, FinishReason, GeneratedToken, Progress, RequestError, Shortage,
    SubmitError, TokenLogprobs,
};
pub use stats::ClientStats;
pub use submission::{SamplingParams, Submission};
pub use watch::NewSteps;

/// How a client behaves; the default suits an engine on the same host.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// An engine whose heartbeat stands still for so long counts as lost. Longer than its longest step.
    pub engine_timeout: Duration,
    /// How often the client shows a sign of life and looks for the engine's.
    pub heartbeat_interval: Duration,
    /// Longest pause between two polls while requests are in flight and the engine cannot wake the reader: the most that
    /// polling adds to a token's latency.
    pub max_poll_interval: Duration,
    /// How long after news the reader polls without giving up its processor. Zero unless it has one to itself.
    pub spin_time: Duration,
    /// Most tokens that one poll takes.
    pub max_tokens_per_poll: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            engine_timeout: Duration::from_secs(30),
            heartbeat_interval: Duration::from_millis(250),
            max_poll_interval: Duration::from_micros(100),
            spin_time: Duration::ZERO,
            max_tokens_per_poll: 16_384,
        }
    }
}

/// A connection to a ring: submits requests and reads their tokens. Share it by `Arc`.
///
/// Dropping it ends all requests with [`RequestError::ClientClosed`] and gives the lease back; the engine cancels what still
/// runs.
pub struct RingClient {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

impl RingClient {
    /// Claims a lease of the ring behind `transport` and starts the token reader's thread.
    ///
    /// The engine need not be ready yet; see [`RingClient::wait_ready`].
    ///
    /// # Errors
    /// If there is no ring, no free lease, or no way to reach it.
    pub fn connect(
        transport: Arc<dyn Transport>,
        options: ClientOptions,
    ) -> Result<RingClient, ConnectError> {
        let layout = read_layout(&*transport)?;
        let lease = Lease::claim(transport.clone(), layout, u64::from(std::process::id()))?;
        let slots = read_slots(&*transport, &lease)?;
        let engine = EngineWatch::new(options.engine_timeout, Instant::now());
        let shared = Arc::new(Shared::new(transport, lease, slots, engine)?);
        shared.engine.refresh(&*shared.transport, Instant::now())?;
        let reader = Reader::new(shared.clone(), &options);
        let thread = std::thread::Builder::new()
            .name("izar-tokens".into())
            .spawn(move || reader.run())?;
        Ok(RingClient {
            shared,
            reader: Some(thread),
        })
    }

    /// Puts a request into the ring. Never blocks on the engine: a full ring is an answer ([`SubmitError::Full`]).
    ///
    /// # Errors
    /// See [`SubmitError`]. Nothing is held in the ring after an error.
    pub fn submit(&self, submission: &Submission<'_>) -> Result<RequestHandle, SubmitError> {
        let shared = &self.shared;
        shared.check_engine()?;
        let encoded = encode::encode(submission)?;
        let shape = Shape {
            capacity: submission.max_tokens,
            num_logprobs: encoded.num_logprobs(),
            num_prompt_logprobs: submission.prompt_logprobs.map_or(-1, |n| n as i32),
            prompt_len: submission.prompt.len() as u32,
            mask_bytes: 8 * u64::from(mask_words(submission.masked_vocab_size)),
        };
        let (input, output, taken) =
            shared.take_space(encoded.input_bytes(), shape.output_bytes())?;
        let generation = taken.last_generation.wrapping_add(1);
        let stream = Arc::new(Stream::new(
            taken.slot,
            generation,
            shape,
            output,
            input.offset() + encoded.masks_at(),
        ));
        let request_id = match submission.request_id {
            // Relaxed: only uniqueness counts.
            0 => shared.next_request_id.fetch_add(1, Ordering::Relaxed),
            id => id,
        };
        let placement = Placement {
            generation,
            request_id,
            arrival_ns: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |t| t.as_nanos() as u64),
            input: input.offset(),
            output: stream.token_offset(0),
            logprobs: stream.logprob_offset(0),
            prompt_logprobs: stream.prompt_logprob_offset(0),
        };
        let record_offset = shared.lease.layout().request_offset(SlotIdx(taken.slot));
        let newcomer = Newcomer {
            stream: stream.clone(),
            input,
            submitted: Instant::now(),
        };
        let written = encoded
            .write(
                submission.prompt,
                &placement,
                &*shared.transport,
                record_offset,
            )
            .map_err(|error| SubmitError::Disconnected(error.into()))
            .and_then(|()| {
                shared
                    .hand_over(newcomer)
                    .map_err(SubmitError::Disconnected)
            });
        if let Err(error) = written {
            shared.slots().put_back(taken.slot, taken.last_generation);
            return Err(error);
        }
        let handle = RequestHandle::new(shared.clone(), stream, request_id);
        shared
            .lease
            .submit(taken.slot, generation)
            .map_err(|error| SubmitError::Disconnected(error.into()))?;
        Ok(handle)
    }

    /// The client's gauges and counters.
    pub fn stats(&self) -> ClientStats {
        self.shared.stats()
    }

    /// When a slot will probably be free, by how long requests take and how many there are.
    pub fn retry_after(&self) -> Duration {
        let in_flight = self.shared.stats().slots_in_use;
        self.shared.counters.retry_after(in_flight)
    }

    /// Ends all requests with [`RequestError::ClientClosed`] and takes no more; what else it does on dropping is done then.
    pub fn close(&self) {
        // Relaxed: the event's fence orders it before the reader's look.
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.event().raise();
    }

    /// What the engine says about itself now.
    ///
    /// # Errors
    /// If the ring cannot be reached.
    pub fn engine_status(&self) -> Result<EngineStatus, TransportError> {
        self.shared.engine.status(&*self.shared.transport)
    }

    /// The engine's condition as of the last look, at most one heartbeat interval ago. Cheap.
    pub fn engine_health(&self) -> EngineHealth {
        self.shared.engine.health()
    }

    /// Why this client can no longer submit, if so: its lease was revoked or its transport failed. Connect a new one.
    pub fn disconnected(&self) -> Option<RequestError> {
        self.shared.closed()
    }

    /// Blocks until the engine is ready (or has stopped or failed), at most for `timeout`; returns its condition.
    ///
    /// # Errors
    /// If the ring cannot be reached.
    pub fn wait_ready(&self, timeout: Duration) -> Result<EngineHealth, TransportError> {
        let deadline = Instant::now() + timeout;
        loop {
            let health = self
                .shared
                .engine
                .refresh(&*self.shared.transport, Instant::now())?;
            if health != EngineHealth::Starting || Instant::now() >= deadline {
                return Ok(health);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for RingClient {
    fn drop(&mut self) {
        self.close();
        if let Some(reader) = self.reader.take()
            && reader.join().is_err()
        {
            tracing::error!("the token reader panicked");
        }
    }
}

impl std::fmt::Debug for RingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "RingClient {{ lease: {:?}, engine: {} }}",
            self.shared.lease.idx(),
            self.engine_health()
        )
    }
}

/// Reads the header and checks that it is a ring of this version.
fn read_layout(transport: &dyn Transport) -> Result<RingLayout, ConnectError> {
    // SYNC ring-created: pairs with the engine's release store of the magic; all else in the header came before it.
    transport.read_word(0)?;
    let mut bytes = [0; HEADER_BYTES as usize];
    transport.read(0, &mut bytes)?;
    Ok(Header::decode(&bytes).layout(transport.len())?)
}

/// Fills the slot tracker from one bulk read. A slot that is not EMPTY is left out.
fn read_slots(transport: &dyn Transport, lease: &Lease) -> Result<SlotTracker, TransportError> {
    let slots = lease.layout().lease_slots(lease.idx());
    let mut progress = vec![0u8; slots.len() * PROGRESS_BYTES as usize];
    transport.read(
        lease.layout().progress_offset(SlotIdx(slots.start)),
        &mut progress,
    )?;
    let mut tracker = SlotTracker::new(slots.start, slots.end - slots.start);
    for (slot, words) in slots.zip(progress.as_chunks::<{ PROGRESS_BYTES as usize }>().0) {
        let status = u64::from_le_bytes(words[..8].try_into().expect("eight bytes"));
        match StatusWord::unpack(status) {
            Some(StatusWord {
                state: State::Empty,
                generation,
                ..
            }) => tracker.put_back(slot, generation),
            _ => tracing::warn!(slot, status, "a slot of a fresh lease is not empty"),
        }
    }
    Ok(tracker)
}

//! An answer as server-sent events.
//!
//! [`EventStream`] is the HTTP body itself: each poll takes all tokens that are there and returns their chunks in one frame, so that
//! tokens which came together leave in one write.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use izar_transport::client::GeneratedToken;
use serde_json::{Map, Value};
use tokio::time::Sleep;

use super::choice::{Choice, Sink, Step};
use super::{Answer, cached_tokens};
use crate::api::StreamRequest;
use crate::deadline::Deadline;
use crate::drain::InFlight;
use crate::error::ApiError;
use crate::output::chunk::ChunkWriter;
use crate::output::events::EventWriter;
use crate::output::head::{Ending, Piece, Usage};
use crate::output::response::{ResponseEvents, ResponseHead};

/// A frame is sent when it has this many bytes, whatever more there is.
const FRAME_BYTES: usize = 32 * 1024;

/// Writes events to a buffer.
pub(super) struct Events<W> {
    pub(super) out: BytesMut,
    pub(super) writer: W,
    pub(super) usage: Usage,
    pub(super) continuous_usage: bool,
    /// Bytes at which to send what there is.
    pub(super) full_at: usize,
}

impl<W: EventWriter> Sink for Events<W> {
    fn piece(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>) {
        self.usage.completion_tokens += num_tokens;
        let usage = self.continuous_usage.then_some(&self.usage);
        self.writer
            .piece(&mut self.out, index, num_tokens, piece, usage);
    }

    fn ending(&mut self, index: usize, num_tokens: u64, piece: &Piece<'_>, ending: &Ending) {
        self.usage.completion_tokens += num_tokens;
        let usage = self.continuous_usage.then_some(&self.usage);
        self.writer
            .ending(&mut self.out, index, piece, ending, usage);
    }

    fn is_full(&self) -> bool {
        self.out.len() >= self.full_at
    }
}

/// A deadline and what resolves at it.
type Expiry = (Deadline, Pin<Box<Sleep>>);

/// The body of a streamed answer.
pub struct EventStream<W> {
    events: Events<W>,
    choices: Vec<Choice>,
    /// Choices that have not ended, those whose turn comes first in front.
    open: Vec<usize>,
    n: usize,
    scratch: Vec<GeneratedToken>,
    done: bool,
    expiry: Option<Expiry>,
    _in_flight: InFlight,
}

impl Answer {
    /// Waits for the first token and returns the body that streams from there.
    ///
    /// # Errors
    /// Whatever failed before the first token: it is still time for a plain answer with a status of its own.
    pub async fn stream(
        self,
        request: StreamRequest,
    ) -> Result<EventStream<ChunkWriter>, ApiError> {
        let writer = ChunkWriter::new(self.head.clone(), self.choices.len(), request.include_usage);
        let mut out = BytesMut::new();
        for index in 0..self.choices.len() {
            writer.put_role(&mut out, index, self.prompt_ids_of(index));
        }
        self.stream_with(writer, out, request.continuous_usage)
            .await
    }

    /// As [`Self::stream`], in the events of `/v1/responses`.
    ///
    /// # Errors
    /// Whatever failed before the first token.
    pub async fn stream_response(
        self,
        echo: Map<String, Value>,
    ) -> Result<EventStream<ResponseEvents>, ApiError> {
        let mut writer = ResponseEvents::new(ResponseHead {
            head: self.head.clone(),
            echo,
        });
        let mut out = BytesMut::new();
        writer.put_begin(&mut out);
        self.stream_with(writer, out, false).await
    }

    /// `out` holds what comes before the first token.
    async fn stream_with<W: EventWriter>(
        self,
        writer: W,
        out: BytesMut,
        continuous_usage: bool,
    ) -> Result<EventStream<W>, ApiError> {
        let begun = out.len();
        let mut stream = EventStream {
            events: Events {
                out,
                writer,
                usage: self.usage,
                continuous_usage,
                full_at: begun + FRAME_BYTES,
            },
            open: (0..self.choices.len()).collect(),
            choices: self.choices,
            n: self.n,
            scratch: Vec::new(),
            done: false,
            expiry: None,
            _in_flight: self.in_flight,
        };
        let first = poll_fn(|cx| match stream.fill(cx) {
            Err(error) if stream.events.out.len() == begun => Poll::Ready(Err(error)),
            Err(error) => {
                stream.fail(&error);
                Poll::Ready(Ok(()))
            }
            Ok(()) if stream.events.out.len() > begun || stream.done => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
        });
        Deadline::bound(self.deadline, first).await?;
        stream.expiry = self.deadline.map(|deadline| (deadline, deadline.sleep()));
        Ok(stream)
    }
}

impl<W: EventWriter> EventStream<W> {
    /// Writes the events of the tokens there are, and the end once every choice has ended. Where they are more than a frame, those of the
    /// choices that come too late for it are left for the next: a client that does not read must not fill our memory.
    fn fill(&mut self, cx: &mut Context<'_>) -> Result<(), ApiError> {
        let Self {
            events,
            choices,
            open,
            scratch,
            ..
        } = self;
        let (mut failed, mut num_polled) = (None, 0);
        open.retain(|&index| {
            if failed.is_some() || events.is_full() {
                return true;
            }
            match choices[index].poll(cx, scratch, events) {
                Step::Waiting | Step::Full => {
                    num_polled += 1;
                    true
                }
                Step::Ended => false,
                Step::Failed(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        open.rotate_left(num_polled);
        if open.is_empty() && !self.done {
            let events = &mut self.events;
            events.usage.cached_tokens = cached_tokens(&self.choices, self.n);
            events.writer.done(&mut events.out, &events.usage);
            self.done = true;
        }
        Ok(())
    }

    /// Whether the stream's time is up.
    fn expired(&mut self, cx: &mut Context<'_>) -> Option<ApiError> {
        let (deadline, sleep) = self.expiry.as_mut()?;
        sleep.as_mut().poll(cx).is_ready().then(|| deadline.error())
    }

    /// Ends the stream with an error event; the other choices are cancelled.
    fn fail(&mut self, error: &ApiError) {
        self.events.writer.error(&mut self.events.out, error);
        self.choices.clear();
        self.open.clear();
        self.done = true;
    }
}

impl<W: EventWriter + Unpin> Body for EventStream<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if !this.done
            && let Some(error) = this.expired(cx)
        {
            this.fail(&error);
        }
        if !this.done
            && !this.events.is_full()
            && let Err(error) = this.fill(cx)
        {
            this.fail(&error);
        }
        if !this.events.out.is_empty() {
            this.events.full_at = FRAME_BYTES;
            return Poll::Ready(Some(Ok(Frame::data(this.events.out.split().freeze()))));
        }
        if this.done {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done && self.events.out.is_empty()
    }
}

//! What a stream asks of those who write its events.

use bytes::BytesMut;

use super::head::{Ending, Piece, Usage};
use crate::error::ApiError;

/// Writes the server-sent events of one answer.
pub trait EventWriter {
    /// A piece of choice `index`, made of `num_tokens` tokens; `usage` counts them already and is there where the client wants it
    /// on every event.
    fn piece(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        num_tokens: u64,
        piece: &Piece<'_>,
        usage: Option<&Usage>,
    );
    /// The end of choice `index`; the piece has no text.
    fn ending(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        piece: &Piece<'_>,
        ending: &Ending,
        usage: Option<&Usage>,
    );
    /// The end of the answer.
    fn done(&mut self, out: &mut BytesMut, usage: &Usage);
    /// An error after the first token, after which the stream closes.
    fn error(&mut self, out: &mut BytesMut, error: &ApiError);
}

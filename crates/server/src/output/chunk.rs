//! Server-sent events in OpenAI's shape: `data: {chunk}`, a blank line, and `data: [DONE]` last.
//!
//! All that is the same in every chunk of an answer is written once, when the answer starts; a chunk is then a few copies and
//! the escaped text.

use bytes::{BufMut, BytesMut};

use super::events::EventWriter;
use super::head::{Ending, Head, Part, Piece, Shape, Usage, put_ids};
use super::json::put_string;
use crate::error::ApiError;

/// Writes the chunks of one answer.
pub struct ChunkWriter {
    head: Head,
    /// `data: {"id":…,"model":…,"choices":[`.
    open: Vec<u8>,
    /// For each choice, `open` and the choice up to its text or the members of its delta.
    open_choice: Vec<Vec<u8>>,
    /// Whether chunks carry a usage, null on ordinary ones.
    include_usage: bool,
}

impl ChunkWriter {
    /// A writer for an answer of `num_choices`.
    pub fn new(head: Head, num_choices: usize, include_usage: bool) -> Self {
        let object = match head.shape {
            Shape::Completion => "text_completion",
            Shape::Chat | Shape::Response => "chat.completion.chunk",
        };
        let mut open = BytesMut::from(&b"data: {"[..]);
        head.put_identity(&mut open, object);
        open.put_slice(b",\"choices\":[");
        let before_text = match head.shape {
            Shape::Completion => "\"text\":",
            Shape::Chat | Shape::Response => "\"delta\":{",
        };
        let open_choice = |index: usize| {
            [
                &open[..],
                format!("{{\"index\":{index},{before_text}").as_bytes(),
            ]
            .concat()
        };
        Self {
            open_choice: (0..num_choices).map(open_choice).collect(),
            open: open.to_vec(),
            head,
            include_usage,
        }
    }

    /// The first chunk of each choice of a chat: the role, once.
    pub fn put_role(&self, out: &mut BytesMut, index: usize, prompt_ids: Option<&[u32]>) {
        if self.head.shape == Shape::Completion {
            return;
        }
        out.put_slice(&self.open);
        out.put_slice(
            format!("{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}")
                .as_bytes(),
        );
        out.put_slice(b",\"logprobs\":null,\"finish_reason\":null}]");
        put_ids(out, "prompt_token_ids", prompt_ids);
        self.close(out, None);
    }

    fn close(&self, out: &mut BytesMut, usage: Option<&Usage>) {
        if self.include_usage {
            out.put_slice(b",\"usage\":");
            match usage {
                Some(usage) => usage.put(out),
                None => out.put_slice(b"null"),
            }
        }
        out.put_slice(b"}\n\n");
    }
}

impl EventWriter for ChunkWriter {
    fn piece(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        _num_tokens: u64,
        piece: &Piece<'_>,
        usage: Option<&Usage>,
    ) {
        out.put_slice(&self.open_choice[index]);
        match (self.head.shape, piece.part) {
            (Shape::Completion, Part::Text(text)) => put_string(out, text),
            (_, part) => {
                part.put_delta(out);
                out.put_u8(b'}');
            }
        }
        self.head.put_logprobs(out, piece.entries);
        out.put_slice(b",\"finish_reason\":null");
        put_ids(out, "token_ids", piece.token_ids);
        out.put_slice(b"}]");
        self.close(out, usage);
    }

    /// Tokens that made no text come with the last chunk.
    fn ending(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        piece: &Piece<'_>,
        ending: &Ending,
        usage: Option<&Usage>,
    ) {
        out.put_slice(&self.open_choice[index]);
        out.put_slice(match self.head.shape {
            Shape::Completion => &b"\"\""[..],
            Shape::Chat | Shape::Response => b"}",
        });
        self.head.put_logprobs(out, piece.entries);
        ending.put(out);
        put_ids(out, "token_ids", piece.token_ids);
        out.put_slice(b"}]");
        self.close(out, usage);
    }

    /// The usage where it was asked for, and `[DONE]`.
    fn done(&mut self, out: &mut BytesMut, usage: &Usage) {
        if self.include_usage {
            out.put_slice(&self.open);
            out.put_u8(b']');
            self.close(out, Some(usage));
        }
        out.put_slice(b"data: [DONE]\n\n");
    }

    /// An event of its own; there is no `[DONE]` after it.
    fn error(&mut self, out: &mut BytesMut, error: &ApiError) {
        out.put_slice(b"data: ");
        out.put_slice(error.body().to_string().as_bytes());
        out.put_slice(b"\n\n");
    }
}

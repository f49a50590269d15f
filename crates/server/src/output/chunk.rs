//! Server-sent events in OpenAI's shape: `data: {chunk}`, a blank line, and `data: [DONE]` last.
//!
//! All that is the same in every chunk of an answer is written once, when the answer starts; a chunk is then a few copies and
//! the escaped text.

use bytes::{BufMut, BytesMut};

use super::head::{Ending, Head, Piece, Shape, Usage, put_ids};
use super::json::put_string;
use crate::error::ApiError;

/// Writes the chunks of one answer.
pub struct ChunkWriter {
    head: Head,
    /// `data: {"id":…,"model":…,"choices":[`.
    open: Vec<u8>,
    /// For each choice, `open` and the choice up to its text.
    open_choice: Vec<Vec<u8>>,
    /// Whether chunks carry a usage, null on ordinary ones.
    include_usage: bool,
}

impl ChunkWriter {
    /// A writer for an answer of `num_choices`.
    pub fn new(head: Head, num_choices: usize, include_usage: bool) -> Self {
        let object = match head.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Completion => "text_completion",
        };
        let mut open = BytesMut::from(&b"data: {"[..]);
        head.put_identity(&mut open, object);
        open.put_slice(b",\"choices\":[");
        let before_text = match head.shape {
            Shape::Chat => "\"delta\":{\"content\":",
            Shape::Completion => "\"text\":",
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

    /// A piece of a choice's text.
    pub fn put_piece(
        &self,
        out: &mut BytesMut,
        index: usize,
        piece: &Piece<'_>,
        usage: Option<&Usage>,
    ) {
        out.put_slice(&self.open_choice[index]);
        put_string(out, piece.text);
        if self.head.shape == Shape::Chat {
            out.put_u8(b'}');
        }
        self.head.put_logprobs(out, piece.entries);
        out.put_slice(b",\"finish_reason\":null");
        put_ids(out, "token_ids", piece.token_ids);
        out.put_slice(b"}]");
        self.close(out, usage);
    }

    /// The last chunk of a choice: no text, and why it ended. Tokens that made no text come with it.
    pub fn put_ending(
        &self,
        out: &mut BytesMut,
        index: usize,
        piece: &Piece<'_>,
        ending: &Ending,
        usage: Option<&Usage>,
    ) {
        match self.head.shape {
            Shape::Chat => {
                out.put_slice(&self.open);
                out.put_slice(format!("{{\"index\":{index},\"delta\":{{}}").as_bytes());
            }
            Shape::Completion => {
                out.put_slice(&self.open_choice[index]);
                out.put_slice(b"\"\"");
            }
        }
        self.head.put_logprobs(out, piece.entries);
        ending.put(out);
        put_ids(out, "token_ids", piece.token_ids);
        out.put_slice(b"}]");
        self.close(out, usage);
    }

    /// The end of the answer: the usage where it was asked for, and `[DONE]`.
    pub fn put_done(&self, out: &mut BytesMut, usage: &Usage) {
        if self.include_usage {
            out.put_slice(&self.open);
            out.put_u8(b']');
            self.close(out, Some(usage));
        }
        out.put_slice(b"data: [DONE]\n\n");
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

/// An error after the first token: an event of its own, after which the stream closes without `[DONE]`.
pub fn put_error(out: &mut BytesMut, error: &ApiError) {
    out.put_slice(b"data: ");
    out.put_slice(error.body().to_string().as_bytes());
    out.put_slice(b"\n\n");
}

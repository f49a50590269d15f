//! The body of an answer that is not streamed.

use bytes::{BufMut, BytesMut};

use super::head::{Ending, Head, Piece, Shape, Usage, put_ids};
use super::json::{put_list, put_string, put_uint};
use super::logprobs::TokenEntry;

/// A finished choice.
#[derive(Debug)]
pub struct WholeChoice {
    /// All of its text.
    pub text: String,
    /// Log probabilities of all of its tokens, where they were asked for.
    pub entries: Option<Vec<TokenEntry>>,
    /// Ids of all of its tokens, where they were asked for.
    pub token_ids: Option<Vec<u32>>,
    /// Ids of its prompt, where they were asked for.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Why it ended.
    pub ending: Ending,
}

impl WholeChoice {
    /// Appends a piece to the choice.
    pub fn append(&mut self, piece: &Piece<'_>) {
        self.text.push_str(piece.text);
        if let (Some(all), Some(entries)) = (&mut self.entries, piece.entries) {
            all.extend_from_slice(entries);
        }
        if let (Some(all), Some(ids)) = (&mut self.token_ids, piece.token_ids) {
            all.extend_from_slice(ids);
        }
    }
}

/// The whole body.
pub fn body(head: &Head, choices: &[WholeChoice], usage: &Usage) -> BytesMut {
    let text_bytes: usize = choices.iter().map(|choice| choice.text.len()).sum();
    let mut out = BytesMut::with_capacity(512 + text_bytes + text_bytes / 8);
    let object = match head.shape {
        Shape::Chat => "chat.completion",
        Shape::Completion => "text_completion",
    };
    out.put_u8(b'{');
    head.put_identity(&mut out, object);
    out.put_slice(b",\"choices\":");
    put_list(
        &mut out,
        choices.iter().enumerate(),
        |out, (index, choice)| put_choice(out, head, index, choice),
    );
    out.put_slice(b",\"usage\":");
    usage.put(&mut out);
    if head.shape == Shape::Chat {
        put_ids(
            &mut out,
            "prompt_token_ids",
            choices
                .first()
                .and_then(|choice| choice.prompt_token_ids.as_deref()),
        );
    }
    out.put_u8(b'}');
    out
}

fn put_choice(out: &mut BytesMut, head: &Head, index: usize, choice: &WholeChoice) {
    out.put_slice(b"{\"index\":");
    put_uint(out, index as u64);
    match head.shape {
        Shape::Chat => {
            out.put_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
            put_string(out, &choice.text);
            out.put_slice(b",\"refusal\":null}");
        }
        Shape::Completion => {
            out.put_slice(b",\"text\":");
            put_string(out, &choice.text);
        }
    }
    head.put_logprobs(out, choice.entries.as_deref());
    choice.ending.put(out);
    put_ids(out, "token_ids", choice.token_ids.as_deref());
    if head.shape == Shape::Completion {
        put_ids(out, "prompt_token_ids", choice.prompt_token_ids.as_deref());
    }
    out.put_u8(b'}');
}

//! Log probabilities in the two forms of OpenAI's API.
//!
//! A token is bytes, and some tokens are parts of characters. Chat answers carry the bytes beside the text, so the text of such a
//! token may be lossy; completions have nothing but the text, which for such a token is `bytes:\xe2\x82`, as OpenAI writes it, so that
//! the keys of `top_logprobs` stay distinct.

use bytes::{BufMut, BytesMut};
use izar_tokenizer::Tokenizer;
use izar_transport::client::TokenLogprobs;

use super::json::{put_list, put_logprob, put_string, put_uint};
use crate::answer::scores::ScoredPrompt;

/// The log probabilities of one token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEntry {
    /// The token.
    pub token: u32,
    /// Its log probability and the likeliest alternatives; none for the first token of an echoed prompt.
    pub logprobs: Option<Box<TokenLogprobs>>,
    /// Characters of text before this token's.
    pub text_offset: usize,
}

impl TokenEntry {
    fn sampled(&self) -> Option<f32> {
        self.logprobs.as_ref().map(|logprobs| logprobs.sampled)
    }

    fn top(&self) -> &[(u32, f32)] {
        self.logprobs.as_ref().map_or(&[], |logprobs| &logprobs.top)
    }
}

/// Appends vLLM's list for a prompt: null for its first token, then for each an object from ids to
/// `{"logprob","rank","decoded_token"}`, of the token itself and the likeliest ones in its place.
pub fn put_prompt(out: &mut BytesMut, tokenizer: &Tokenizer, prompt: &ScoredPrompt) {
    out.put_slice(b"[null");
    for (&token, logprobs) in prompt.ids.iter().skip(1).zip(&prompt.logprobs) {
        out.put_slice(b",{");
        put_ranked(out, tokenizer, token, logprobs.sampled, logprobs.rank);
        for (&(top, logprob), rank) in logprobs.top.iter().zip(1..) {
            if top != token {
                out.put_u8(b',');
                put_ranked(out, tokenizer, top, logprob, rank);
            }
        }
        out.put_u8(b'}');
    }
    out.put_u8(b']');
}

fn put_ranked(out: &mut BytesMut, tokenizer: &Tokenizer, token: u32, logprob: f32, rank: u32) {
    out.put_u8(b'"');
    put_uint(out, token.into());
    out.put_slice(b"\":{\"logprob\":");
    put_logprob(out, logprob);
    out.put_slice(b",\"rank\":");
    put_uint(out, rank.into());
    out.put_slice(b",\"decoded_token\":");
    put_string(out, &String::from_utf8_lossy(tokenizer.token_bytes(token)));
    out.put_u8(b'}');
}

/// Appends chat's form: `{"content":[{"token","logprob","bytes","top_logprobs"}],"refusal":null}`.
pub fn put_chat(out: &mut BytesMut, tokenizer: &Tokenizer, entries: &[TokenEntry]) {
    out.put_slice(b"{\"content\":");
    put_chat_entries(out, tokenizer, entries);
    out.put_slice(b",\"refusal\":null}");
}

/// Appends `[{"token","logprob","bytes","top_logprobs"}]`.
pub fn put_chat_entries(out: &mut BytesMut, tokenizer: &Tokenizer, entries: &[TokenEntry]) {
    put_list(out, entries, |out, entry| {
        out.put_u8(b'{');
        put_chat_token(out, tokenizer, entry.token, entry.sampled().unwrap_or(0.0));
        out.put_slice(b",\"top_logprobs\":");
        put_list(out, entry.top(), |out, &(token, logprob)| {
            out.put_u8(b'{');
            put_chat_token(out, tokenizer, token, logprob);
            out.put_u8(b'}');
        });
        out.put_u8(b'}');
    });
}

fn put_chat_token(out: &mut BytesMut, tokenizer: &Tokenizer, token: u32, logprob: f32) {
    let bytes = tokenizer.token_bytes(token);
    out.put_slice(b"\"token\":");
    put_string(out, &String::from_utf8_lossy(bytes));
    out.put_slice(b",\"logprob\":");
    put_logprob(out, logprob);
    out.put_slice(b",\"bytes\":");
    put_list(out, bytes, |out, &byte| put_uint(out, byte.into()));
}

/// Appends the completions' form: `{"text_offset":[],"token_logprobs":[],"tokens":[],"top_logprobs":[{}]}`.
/// `top_logprobs` holds the alternatives asked for, and the sampled token where it is not among them.
pub fn put_completion(out: &mut BytesMut, tokenizer: &Tokenizer, entries: &[TokenEntry]) {
    out.put_slice(b"{\"text_offset\":");
    put_list(out, entries, |out, entry| {
        put_uint(out, entry.text_offset as u64)
    });
    out.put_slice(b",\"token_logprobs\":");
    put_list(out, entries, |out, entry| match entry.sampled() {
        Some(logprob) => put_logprob(out, logprob),
        None => out.put_slice(b"null"),
    });
    out.put_slice(b",\"tokens\":");
    put_list(out, entries, |out, entry| {
        put_string(out, &completion_text(tokenizer, entry.token))
    });
    out.put_slice(b",\"top_logprobs\":");
    put_list(out, entries, |out, entry| {
        put_alternatives(out, tokenizer, entry)
    });
    out.put_u8(b'}');
}

fn put_alternatives(out: &mut BytesMut, tokenizer: &Tokenizer, entry: &TokenEntry) {
    let Some(logprob) = entry.sampled() else {
        return out.put_slice(b"null");
    };
    let top = entry.top();
    let sampled =
        (!top.iter().any(|&(token, _)| token == entry.token)).then_some((entry.token, logprob));
    out.put_u8(b'{');
    for (idx, (token, logprob)) in top.iter().copied().chain(sampled).enumerate() {
        if idx > 0 {
            out.put_u8(b',');
        }
        put_string(out, &completion_text(tokenizer, token));
        out.put_u8(b':');
        put_logprob(out, logprob);
    }
    out.put_u8(b'}');
}

fn completion_text(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| {
            text + &format!("\\x{byte:02x}")
        }),
    }
}

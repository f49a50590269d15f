//! Log probabilities in the two forms of OpenAI's API.
//!
//! A token is bytes, and some tokens are parts of characters. Chat answers carry the bytes beside the text, so the text of such a
//! token may be lossy; completions have nothing but the text, which for such a token is `bytes:\xe2\x82`, as OpenAI writes it, so that
//! the keys of `top_logprobs` stay distinct.

use bytes::{BufMut, BytesMut};
use izar_tokenizer::Tokenizer;
use izar_transport::client::TokenLogprobs;

use super::json::{put_list, put_logprob, put_string, put_uint};

/// The log probabilities of one generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEntry {
    /// The sampled token.
    pub token: u32,
    /// Its log probability and the likeliest alternatives.
    pub logprobs: Box<TokenLogprobs>,
    /// Characters of text before this token's.
    pub text_offset: usize,
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
        put_chat_token(out, tokenizer, entry.token, entry.logprobs.sampled);
        out.put_slice(b",\"top_logprobs\":");
        put_list(out, &entry.logprobs.top, |out, &(token, logprob)| {
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
    put_list(out, entries, |out, entry| {
        put_logprob(out, entry.logprobs.sampled)
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
    let top = &entry.logprobs.top;
    let sampled = (!top.iter().any(|&(token, _)| token == entry.token))
        .then_some((entry.token, entry.logprobs.sampled));
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

//! The body of an answer that is not streamed.

use bytes::{BufMut, BytesMut};

use super::head::{Ending, Head, Part, Piece, Shape, Usage, put_call, put_ids, put_reasoning};
use super::json::{put_list, put_string, put_uint};
use super::logprobs::{TokenEntry, put_prompt};
use crate::answer::scores::ScoredPrompt;

/// A call, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What the tool's answer will refer to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON.
    pub arguments: String,
}

/// A finished choice.
#[derive(Debug)]
pub struct WholeChoice {
    /// All of its text for the reader.
    pub text: String,
    /// All of its reasoning.
    pub reasoning: String,
    /// All of its calls.
    pub calls: Vec<ToolCall>,
    /// Log probabilities of all of its tokens, where they were asked for.
    pub entries: Option<Vec<TokenEntry>>,
    /// Ids of all of its tokens, where they were asked for.
    pub token_ids: Option<Vec<u32>>,
    /// Ids of its prompt, where they were asked for.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Log probabilities of its prompt, where they are to be listed.
    pub prompt_logprobs: Option<ScoredPrompt>,
    /// Why it ended.
    pub ending: Ending,
}

impl WholeChoice {
    /// Appends a piece to the choice.
    pub fn append(&mut self, piece: &Piece<'_>) {
        match piece.part {
            Part::Text(text) => self.text.push_str(text),
            Part::Reasoning(text) => self.reasoning.push_str(text),
            Part::Call { id, name, .. } => self.calls.push(ToolCall {
                id: id.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
            }),
            Part::Arguments { index, text } => self.calls[index].arguments.push_str(text),
        }
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
    let text_bytes: usize = choices
        .iter()
        .map(|choice| choice.text.len() + choice.reasoning.len())
        .sum();
    let mut out = BytesMut::with_capacity(512 + text_bytes + text_bytes / 8);
    let object = match head.shape {
        Shape::Completion => "text_completion",
        Shape::Chat | Shape::Response => "chat.completion",
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
        let first = choices.first();
        put_scores(
            &mut out,
            head,
            first.and_then(|c| c.prompt_logprobs.as_ref()),
        );
    }
    out.put_u8(b'}');
    out
}

fn put_choice(out: &mut BytesMut, head: &Head, index: usize, choice: &WholeChoice) {
    out.put_slice(b"{\"index\":");
    put_uint(out, index as u64);
    match head.shape {
        Shape::Chat | Shape::Response => put_message(out, choice),
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
        put_scores(out, head, choice.prompt_logprobs.as_ref());
    }
    out.put_u8(b'}');
}

/// Appends `,"message":{…}`. Without text, the content is null where there is something else.
fn put_message(out: &mut BytesMut, choice: &WholeChoice) {
    out.put_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
    if choice.text.is_empty() && !(choice.reasoning.is_empty() && choice.calls.is_empty()) {
        out.put_slice(b"null");
    } else {
        put_string(out, &choice.text);
    }
    out.put_slice(b",\"refusal\":null");
    if !choice.reasoning.is_empty() {
        out.put_u8(b',');
        put_reasoning(out, &choice.reasoning);
    }
    if !choice.calls.is_empty() {
        out.put_slice(b",\"tool_calls\":");
        put_list(out, &choice.calls, |out, call| {
            out.put_u8(b'{');
            put_call(out, &call.id, &call.name, &call.arguments);
            out.put_u8(b'}');
        });
    }
    out.put_u8(b'}');
}

/// Appends `,"prompt_logprobs":[…]` where there are some to append.
fn put_scores(out: &mut BytesMut, head: &Head, prompt: Option<&ScoredPrompt>) {
    if let Some(prompt) = prompt {
        out.put_slice(b",\"prompt_logprobs\":");
        put_prompt(out, &head.tokenizer, prompt);
    }
}

//! The items of a response: reasoning, messages and calls in the order in which the model wrote them.

use bytes::BytesMut;
use izar_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::output::head::{Part, Piece};
use crate::output::logprobs::{TokenEntry, put_chat_entries};

/// What an item is made of so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The model's thinking.
    Reasoning(String),
    /// Text for the reader, and its tokens' log probabilities where they were asked for.
    Message(String, Vec<TokenEntry>),
    /// A call.
    Call {
        /// What the tool's answer will refer to.
        call_id: String,
        /// The tool.
        name: String,
        /// JSON.
        arguments: String,
    },
}

/// An item of the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// `rs_…`, `msg_…` or `fc_…`.
    pub id: String,
    /// What it is made of.
    pub content: Content,
}

/// The items of one response. All but the last are complete.
#[derive(Debug)]
pub struct Items {
    /// What the ids of items share.
    id: String,
    items: Vec<Item>,
    /// Tokens of reasoning.
    pub num_reasoning_tokens: u64,
}

impl Items {
    /// No items yet; `id` is the response's.
    pub fn new(response_id: &str) -> Self {
        Self {
            id: response_id.trim_start_matches("resp_").to_owned(),
            items: Vec::new(),
            num_reasoning_tokens: 0,
        }
    }

    /// All items, in order.
    pub fn all(&self) -> &[Item] {
        &self.items
    }

    /// Whether `part` belongs to the last item.
    pub fn takes(&self, part: &Part<'_>) -> bool {
        self.items
            .last()
            .is_some_and(|item| item.content.takes(part))
    }

    /// Adds a piece to the last item, or to a new one; returns whether it is a new one.
    pub fn add(&mut self, num_tokens: u64, piece: &Piece<'_>) -> bool {
        if let Part::Reasoning(_) = piece.part {
            self.num_reasoning_tokens += num_tokens;
        }
        let goes_on = self.takes(&piece.part);
        if !goes_on {
            let content = Content::begun_by(&piece.part);
            let id = format!("{}_{}{:02x}", content.prefix(), self.id, self.items.len());
            self.items.push(Item { id, content });
        }
        if let Some(item) = self.items.last_mut() {
            item.content.append(piece);
        }
        !goes_on
    }
}

impl Content {
    fn begun_by(part: &Part<'_>) -> Self {
        match *part {
            Part::Text(_) => Self::Message(String::new(), Vec::new()),
            Part::Reasoning(_) => Self::Reasoning(String::new()),
            Part::Call { id, name, .. } => Self::Call {
                call_id: id.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
            },
            // A call's arguments follow the call.
            Part::Arguments { .. } => Self::Call {
                call_id: String::new(),
                name: String::new(),
                arguments: String::new(),
            },
        }
    }

    fn takes(&self, part: &Part<'_>) -> bool {
        matches!(
            (self, part),
            (Self::Message(..), Part::Text(_))
                | (Self::Reasoning(_), Part::Reasoning(_))
                | (Self::Call { .. }, Part::Arguments { .. })
        )
    }

    fn append(&mut self, piece: &Piece<'_>) {
        match (self, piece.part) {
            (Self::Message(all, entries), Part::Text(text)) => {
                all.push_str(text);
                entries.extend_from_slice(piece.entries.unwrap_or_default());
            }
            (Self::Reasoning(all), Part::Reasoning(text))
            | (Self::Call { arguments: all, .. }, Part::Arguments { text, .. }) => {
                all.push_str(text);
            }
            _ => {}
        }
    }

    fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning(_) => "rs",
            Self::Message(..) => "msg",
            Self::Call { .. } => "fc",
        }
    }

    /// The content part of an item that has one.
    pub fn part(&self, tokenizer: &Tokenizer) -> Option<Value> {
        match self {
            Self::Reasoning(text) => Some(json!({"type": "reasoning_text", "text": text})),
            Self::Message(text, entries) => {
                let logprobs = logprobs(tokenizer, entries);
                Some(
                    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}),
                )
            }
            Self::Call { .. } => None,
        }
    }

    /// As at the item's beginning.
    pub fn blank(&self) -> Self {
        match self {
            Self::Reasoning(_) => Self::Reasoning(String::new()),
            Self::Message(..) => Self::Message(String::new(), Vec::new()),
            Self::Call { call_id, name, .. } => Self::Call {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: String::new(),
            },
        }
    }
}

impl Item {
    /// The item as OpenAI has it; `status` is `in_progress`, `completed` or `incomplete`.
    pub fn json(&self, tokenizer: &Tokenizer, status: &str) -> Value {
        let parts = |part: Option<Value>| match status {
            "in_progress" => Vec::new(),
            _ => Vec::from_iter(part),
        };
        match &self.content {
            content @ Content::Reasoning(_) => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts(content.part(tokenizer)),
            }),
            content @ Content::Message(..) => json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts(content.part(tokenizer)),
            }),
            Content::Call {
                call_id,
                name,
                arguments,
            } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments,
            }),
        }
    }
}

/// Log probabilities as a value.
pub fn logprobs(tokenizer: &Tokenizer, entries: &[TokenEntry]) -> Value {
    if entries.is_empty() {
        return json!([]);
    }
    let mut out = BytesMut::new();
    put_chat_entries(&mut out, tokenizer, entries);
    // What was written is JSON.
    serde_json::from_slice(&out).unwrap_or_default()
}

//! The events of a streamed response: each has a name, a type and a number, and the last one carries the whole response.

use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

use super::items::{Content, Item, Items};
use super::{ResponseHead, Status};
use crate::error::ApiError;
use crate::output::events::EventWriter;
use crate::output::head::{Ending, Part, Piece, Usage};
use crate::output::json::{put_string, put_uint};
use crate::output::logprobs::put_chat_entries;

/// Writes the events of one response.
pub struct ResponseEvents {
    response: ResponseHead,
    items: Items,
    sequence_number: u64,
    ending: Option<Ending>,
}

impl ResponseEvents {
    /// A writer for a response that has not begun.
    pub fn new(response: ResponseHead) -> Self {
        let items = Items::new(&response.head.id);
        Self {
            response,
            items,
            sequence_number: 0,
            ending: None,
        }
    }

    /// What comes before the first token.
    pub fn put_begin(&mut self, out: &mut BytesMut) {
        self.put_response(out, "response.created", Status::InProgress);
        self.put_response(out, "response.in_progress", Status::InProgress);
    }

    /// Writes an event up to the members that `put` writes, each after a comma.
    fn put(&mut self, out: &mut BytesMut, kind: &str, put: impl FnOnce(&mut BytesMut, &Self)) {
        for part in [
            "event: ",
            kind,
            "\ndata: {\"type\":\"",
            kind,
            "\",\"sequence_number\":",
        ] {
            out.put_slice(part.as_bytes());
        }
        put_uint(out, self.sequence_number);
        put(out, self);
        out.put_slice(b"}\n\n");
        self.sequence_number += 1;
    }

    fn put_response(&mut self, out: &mut BytesMut, kind: &str, status: Status<'_>) {
        self.put(out, kind, |out, this| {
            let response = this.response.json(&this.items, status);
            put_member(out, "response", &response);
        });
    }

    /// `output_item.added` or `.done` for the last item.
    fn put_item(&mut self, out: &mut BytesMut, kind: &str, status: &str, blank: bool) {
        self.put(out, kind, |out, this| {
            let Some(item) = this.items.all().last() else {
                return;
            };
            let item = match blank {
                true => Item {
                    id: item.id.clone(),
                    content: item.content.blank(),
                },
                false => item.clone(),
            };
            put_output_index(out, &this.items);
            let item = item.json(&this.response.head.tokenizer, status);
            put_member(out, "item", &item);
        });
    }

    /// `content_part.added` or `.done` for the last item, where it has a part.
    fn put_part(&mut self, out: &mut BytesMut, kind: &str, blank: bool) {
        let tokenizer = std::sync::Arc::clone(&self.response.head.tokenizer);
        let part = self.items.all().last().and_then(|item| match blank {
            true => item.content.blank().part(&tokenizer),
            false => item.content.part(&tokenizer),
        });
        if let Some(part) = part {
            self.put(out, kind, |out, this| {
                put_place(out, &this.items, true);
                put_member(out, "part", &part);
            });
        }
    }

    fn put_delta(&mut self, out: &mut BytesMut, piece: &Piece<'_>) {
        let (kind, delta) = match piece.part {
            Part::Text(text) => ("response.output_text.delta", text),
            Part::Reasoning(text) => ("response.reasoning_text.delta", text),
            Part::Arguments { text, .. } => ("response.function_call_arguments.delta", text),
            Part::Call { .. } => return,
        };
        self.put(out, kind, |out, this| {
            put_place(
                out,
                &this.items,
                !matches!(piece.part, Part::Arguments { .. }),
            );
            out.put_slice(b",\"delta\":");
            put_string(out, delta);
            if let Part::Text(_) = piece.part {
                out.put_slice(b",\"logprobs\":");
                put_chat_entries(
                    out,
                    &this.response.head.tokenizer,
                    piece.entries.unwrap_or_default(),
                );
            }
        });
    }

    /// Everything that ends the last item.
    fn close_item(&mut self, out: &mut BytesMut, status: &str) {
        let Some(item) = self.items.all().last() else {
            return;
        };
        let content = item.content.clone();
        let tokenizer = std::sync::Arc::clone(&self.response.head.tokenizer);
        match &content {
            Content::Message(text, entries) => {
                let logprobs = super::items::logprobs(&tokenizer, entries);
                self.put(out, "response.output_text.done", |out, this| {
                    put_place(out, &this.items, true);
                    put_member(out, "text", &json!(text));
                    put_member(out, "logprobs", &logprobs);
                });
            }
            Content::Reasoning(text) => {
                self.put(out, "response.reasoning_text.done", |out, this| {
                    put_place(out, &this.items, true);
                    put_member(out, "text", &json!(text));
                });
            }
            Content::Call {
                name, arguments, ..
            } => {
                self.put(out, "response.function_call_arguments.done", |out, this| {
                    put_place(out, &this.items, false);
                    put_member(out, "name", &json!(name));
                    put_member(out, "arguments", &json!(arguments));
                });
            }
        }
        self.put_part(out, "response.content_part.done", false);
        self.put_item(out, "response.output_item.done", status, false);
    }
}

impl EventWriter for ResponseEvents {
    fn piece(
        &mut self,
        out: &mut BytesMut,
        _index: usize,
        num_tokens: u64,
        piece: &Piece<'_>,
        _usage: Option<&Usage>,
    ) {
        if !self.items.takes(&piece.part) {
            self.close_item(out, "completed");
        }
        if self.items.add(num_tokens, piece) {
            self.put_item(out, "response.output_item.added", "in_progress", true);
            self.put_part(out, "response.content_part.added", true);
        }
        self.put_delta(out, piece);
    }

    fn ending(
        &mut self,
        out: &mut BytesMut,
        _index: usize,
        _piece: &Piece<'_>,
        ending: &Ending,
        _usage: Option<&Usage>,
    ) {
        let status = match ending.finish_reason {
            "length" => "incomplete",
            _ => "completed",
        };
        self.close_item(out, status);
        self.ending = Some(ending.clone());
    }

    fn done(&mut self, out: &mut BytesMut, usage: &Usage) {
        let Some(ending) = self.ending.take() else {
            return;
        };
        let kind = match ending.finish_reason {
            "length" => "response.incomplete",
            _ => "response.completed",
        };
        self.put_response(out, kind, Status::Ended(&ending, usage));
    }

    fn error(&mut self, out: &mut BytesMut, error: &ApiError) {
        let body = error.body();
        self.put(out, "error", |out, _| {
            for name in ["code", "message", "param"] {
                put_member(out, name, &body["error"][name]);
            }
        });
        self.put_response(out, "response.failed", Status::Failed(error));
    }
}

/// Appends `,"NAME":value`.
fn put_member(out: &mut BytesMut, name: &str, value: &Value) {
    out.put_slice(b",\"");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\":");
    out.put_slice(value.to_string().as_bytes());
}

/// Appends the last item's place in the output.
fn put_output_index(out: &mut BytesMut, items: &Items) {
    out.put_slice(b",\"output_index\":");
    put_uint(out, items.all().len().saturating_sub(1) as u64);
}

/// Appends the last item's place and id, and the index of its only part where it has one.
fn put_place(out: &mut BytesMut, items: &Items, has_part: bool) {
    put_output_index(out, items);
    if let Some(item) = items.all().last() {
        out.put_slice(b",\"item_id\":");
        put_string(out, &item.id);
    }
    if has_part {
        out.put_slice(b",\"content_index\":0");
    }
}

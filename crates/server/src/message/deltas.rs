//! What a parser answers with.

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text for the reader.
    Content(String),
    /// The model's thinking.
    Reasoning(String),
    /// A call begins: once for each `index`, which counts from 0.
    Call {
        /// Which call of the message.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// The next piece of a call's arguments, a text of JSON.
    Arguments {
        /// Which call of the message.
        index: usize,
        /// Never empty.
        text: String,
    },
}

/// Collects deltas, neighbours of a kind as one.
#[derive(Debug, Default)]
pub struct Deltas(Vec<Delta>);

impl Deltas {
    /// Appends content.
    pub fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Content(last)) => last.push_str(text),
            _ => self.0.push(Delta::Content(text.to_owned())),
        }
    }

    /// Appends reasoning.
    pub fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// Begins a call.
    pub fn call(&mut self, index: usize, name: String) {
        self.0.push(Delta::Call { index, name });
    }

    /// Appends to the arguments of call `index`.
    pub fn arguments(&mut self, index: usize, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Arguments { text: last, .. }) => last.push_str(text),
            _ => self.0.push(Delta::Arguments {
                index,
                text: text.to_owned(),
            }),
        }
    }

    /// Hands over what was collected.
    pub fn take(&mut self) -> std::vec::IntoIter<Delta> {
        std::mem::take(&mut self.0).into_iter()
    }
}

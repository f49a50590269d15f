//! A chat's generated text, taken apart: reasoning, content and tool calls.
//!
//! One [`MessageParser`] belongs to one choice and is fed that choice's text in whatever pieces it comes. It answers with [`Delta`]s, and
//! the deltas of any cut of a text concatenate to those of the whole: streaming and not streaming agree by construction. Nothing is lost
//! or doubled: what is not a well-formed call is content, markup included; only white space next to markup is dropped. A decision is
//! never taken back, so a call is announced only once its name and the beginning of its arguments are there.
//!
//! What is *not* here: OpenAI's JSON (`output`), and how the model is made to write calls (the chat template, or a constraint).

mod call_object;
mod calls;
mod deltas;
mod json;
mod reasoning;
mod tool_format;

pub use deltas::Delta;
pub use reasoning::{Begins, PromptEnd, ReasoningFormat};
pub use tool_format::ToolFormat;

use std::sync::Arc;

use calls::{CallParser, CallRules};
use deltas::Deltas;
use reasoning::ThinkSplitter;

/// What to look for in the text of one request's choices.
#[derive(Debug, Clone, Default)]
pub struct MessageFormat {
    /// How the text begins, where reasoning is to be split off.
    pub reasoning: Option<Begins>,
    /// How calls are written, where they are to be found.
    pub calls: Option<ExpectedCalls>,
}

/// The calls that a text may hold.
#[derive(Debug, Clone)]
pub enum ExpectedCalls {
    /// Any number of calls, in the model's own format or as a bare list.
    Written {
        /// How they are written.
        format: ToolFormat,
        /// Names of the tools there are.
        names: Arc<[String]>,
        /// Whether there may be more than one.
        parallel: bool,
    },
    /// All of the text is the arguments of one call of this tool.
    ArgumentsOf(String),
}

impl MessageFormat {
    /// Whether there is anything to look for.
    pub fn is_plain(&self) -> bool {
        self.reasoning.is_none() && self.calls.is_none()
    }

    /// The markup that may be written with control tokens, whose text a detokenizer would leave out.
    pub fn markers(&self) -> impl Iterator<Item = &'static str> {
        let calls = match &self.calls {
            Some(ExpectedCalls::Written { format, .. }) => format.markers(),
            _ => &[],
        };
        let reasoning = self.reasoning.map_or(&[][..], |_| &reasoning::MARKERS);
        calls.iter().chain(reasoning).copied()
    }
}

/// Takes one choice's text apart.
#[derive(Debug)]
pub struct MessageParser {
    think: Option<ThinkSplitter>,
    calls: Calls,
    deltas: Deltas,
    /// Texts at hand, empty between pushes.
    reasoning: String,
    content: String,
}

#[derive(Debug)]
enum Calls {
    None,
    Written(Box<CallParser>),
    ArgumentsOf { name: String, begun: bool },
}

impl MessageParser {
    /// A parser at the beginning of a text.
    pub fn new(format: &MessageFormat) -> Self {
        let calls = match &format.calls {
            None => Calls::None,
            Some(ExpectedCalls::Written {
                format,
                names,
                parallel,
            }) => Calls::Written(Box::new(CallParser::new(CallRules {
                format: *format,
                names: Arc::clone(names),
                parallel: *parallel,
            }))),
            Some(ExpectedCalls::ArgumentsOf(name)) => Calls::ArgumentsOf {
                name: name.clone(),
                begun: false,
            },
        };
        Self {
            think: format.reasoning.map(ThinkSplitter::new),
            calls,
            deltas: Deltas::default(),
            reasoning: String::new(),
            content: String::new(),
        }
    }

    /// Takes the next piece of text and returns what is certain of it.
    pub fn push(&mut self, text: &str) -> std::vec::IntoIter<Delta> {
        match &mut self.think {
            Some(think) => think.push(text, &mut self.reasoning, &mut self.content),
            None => self.content.push_str(text),
        }
        self.pass_on();
        self.deltas.take()
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> std::vec::IntoIter<Delta> {
        if let Some(think) = &mut self.think {
            think.finish(&mut self.reasoning, &mut self.content);
        }
        self.pass_on();
        if let Calls::Written(calls) = &mut self.calls {
            calls.finish(&mut self.deltas);
        }
        self.deltas.take()
    }

    /// Whether the model called tools of its own choice, which a `finish_reason` tells.
    pub fn has_called(&self) -> bool {
        matches!(&self.calls, Calls::Written(calls) if calls.num_calls() > 0)
    }

    /// Whether all calls that were wanted are complete, so that nothing more is wanted of the model.
    pub fn is_over(&self) -> bool {
        matches!(&self.calls, Calls::Written(calls) if calls.is_over())
    }

    fn pass_on(&mut self) {
        self.deltas.reasoning(&self.reasoning);
        match &mut self.calls {
            Calls::None => self.deltas.content(&self.content),
            Calls::Written(calls) => calls.push(&self.content, &mut self.deltas),
            Calls::ArgumentsOf { name, begun } if !self.content.is_empty() => {
                if !std::mem::replace(begun, true) {
                    self.deltas.call(0, std::mem::take(name));
                }
                self.deltas.arguments(0, &self.content);
            }
            Calls::ArgumentsOf { .. } => {}
        }
        self.reasoning.clear();
        self.content.clear();
    }
}

#[cfg(test)]
mod tests;

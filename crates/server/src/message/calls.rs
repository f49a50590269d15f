//! Finds calls in a text and takes them out of it.

use std::sync::Arc;

use super::call_object::{CallObject, Fed};
use super::deltas::Deltas;
use super::tool_format::{Bracket, ToolFormat};

/// What is a call.
#[derive(Debug, Clone)]
pub struct CallRules {
    /// How calls are written.
    pub format: ToolFormat,
    /// Names of the tools. A call between marks may name any tool; without marks, an object with another name is not a call.
    pub names: Arc<[String]>,
    /// Whether there may be more than one; if not, the text is over after the first.
    pub parallel: bool,
}

/// Finds the calls of one text.
#[derive(Debug)]
pub struct CallParser {
    rules: CallRules,
    state: State,
    /// What is not certain yet. It is content unless it turns out to be of a call.
    held: String,
    /// Nothing but white space came so far.
    at_start: bool,
    /// Nothing but white space came since a call.
    after_call: bool,
    /// The marks around the call at hand; none for one without.
    bracket: Option<Bracket>,
    in_list: bool,
    call: CallObject,
    /// Whether the call at hand was announced, so that it is no longer held.
    is_announced: bool,
    num_calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In content. White space and what may become a mark is held.
    Text,
    /// Before a call object.
    BeforeCall,
    /// In a call object.
    Call,
    /// After a call object in a list.
    InList,
    /// Before a closing mark.
    Closing,
    /// After a call that is followed by another one without marks, or by content.
    Separator,
    /// After the only call that is wanted.
    Over,
}

impl CallParser {
    /// A parser at the beginning of a text.
    pub fn new(rules: CallRules) -> Self {
        Self {
            rules,
            state: State::Text,
            held: String::new(),
            at_start: true,
            after_call: false,
            bracket: None,
            in_list: false,
            call: CallObject::new(),
            is_announced: false,
            num_calls: 0,
        }
    }

    /// Calls announced so far.
    pub fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// Whether the only call that is wanted is complete.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, out: &mut Deltas) {
        for c in text.chars() {
            match self.state {
                State::Text => self.text(c, out),
                State::BeforeCall => self.before_call(c, out),
                State::Call => self.in_call(c, out),
                State::InList => self.in_list(c, out),
                State::Closing => self.closing(c, out),
                State::Separator => self.separator(c, out),
                State::Over => return,
            }
        }
        self.pass_arguments(out);
    }

    /// Ends the text. A call that was not announced is content; one that was stays as it is.
    pub fn finish(&mut self, out: &mut Deltas) {
        let is_blank = self.held.trim().is_empty();
        match self.state {
            State::Closing | State::Over => {}
            State::Text if self.after_call && is_blank => {}
            State::InList | State::Separator if is_blank => {}
            _ => out.content(&self.held),
        }
        self.held.clear();
    }

    fn text(&mut self, c: char, out: &mut Deltas) {
        self.held.push(c);
        loop {
            let blank = self.held.len() - self.held.trim_start().len();
            let tail = &self.held[blank..];
            let Some(first) = tail.chars().next() else {
                return;
            };
            if self.at_start && self.rules.format.bare_start() == Some(first) {
                return self.begin(None, first, out);
            }
            let brackets = self.rules.format.brackets();
            if let Some(bracket) = brackets.iter().find(|bracket| bracket.open == tail) {
                return self.begin(Some(*bracket), first, out);
            }
            if brackets
                .iter()
                .any(|bracket| bracket.open.starts_with(tail))
            {
                return;
            }
            // No mark begins where `tail` does.
            let end = blank + first.len_utf8();
            out.content(&self.held[..end]);
            self.held.drain(..end);
            (self.at_start, self.after_call) = (false, false);
        }
    }

    /// A call or a list of calls begins, with a mark or with `first` alone.
    fn begin(&mut self, bracket: Option<Bracket>, first: char, out: &mut Deltas) {
        (self.at_start, self.after_call) = (false, false);
        self.bracket = bracket;
        self.in_list = bracket.map_or(first == '[', |bracket| bracket.is_list);
        self.state = State::BeforeCall;
        if bracket.is_none() && first == '{' {
            self.begin_call(out);
        }
    }

    /// The `{` of a call was read.
    fn begin_call(&mut self, out: &mut Deltas) {
        self.state = State::Call;
        self.call = CallObject::new();
        self.is_announced = false;
        if self.call.feed('{') != Fed::More {
            self.give_up(out);
        }
    }

    fn before_call(&mut self, c: char, out: &mut Deltas) {
        match c {
            '{' => {
                self.held.push(c);
                self.begin_call(out);
            }
            '[' if !self.in_list => {
                self.held.push(c);
                self.in_list = true;
            }
            _ if c.is_whitespace() => self.held.push(c),
            _ => self.give_up_at(c, out),
        }
    }

    fn in_call(&mut self, c: char, out: &mut Deltas) {
        let fed = self.call.feed(c);
        if fed == Fed::Malformed {
            return self.give_up_at(c, out);
        }
        if !self.is_announced {
            self.held.push(c);
            let Some(name) = self.call.announced_name().map(str::to_owned) else {
                return;
            };
            if self.bracket.is_none() && !self.rules.names.contains(&name) {
                return self.give_up(out);
            }
            out.call(self.num_calls, name);
            self.num_calls += 1;
            self.is_announced = true;
            self.held.clear();
        }
        if fed == Fed::Complete {
            self.pass_arguments(out);
            self.complete();
        }
    }

    fn complete(&mut self) {
        self.state = if !self.rules.parallel {
            State::Over
        } else if self.in_list {
            State::InList
        } else {
            self.after_value()
        };
    }

    /// What comes after a call or a list of them.
    fn after_value(&mut self) -> State {
        self.after_call = true;
        match self.bracket {
            Some(Bracket { close: Some(_), .. }) => State::Closing,
            _ if self.rules.format.has_separators() => State::Separator,
            _ => State::Text,
        }
    }

    fn in_list(&mut self, c: char, out: &mut Deltas) {
        match c {
            ',' => {
                self.held.push(c);
                self.state = State::BeforeCall;
            }
            ']' => {
                self.held.clear();
                self.in_list = false;
                self.state = self.after_value();
            }
            _ if c.is_whitespace() => self.held.push(c),
            _ => self.give_up_at(c, out),
        }
    }

    fn closing(&mut self, c: char, out: &mut Deltas) {
        self.held.push(c);
        let close = self.bracket.and_then(|bracket| bracket.close).unwrap_or("");
        let tail = self.held.trim_start();
        if tail == close {
            self.held.clear();
            self.state = State::Text;
        } else if tail == "{" {
            self.begin_call(out);
        } else if !close.starts_with(tail) {
            self.reread(out);
        }
    }

    fn separator(&mut self, c: char, out: &mut Deltas) {
        self.held.push(c);
        match c {
            '{' => {
                self.bracket = None;
                self.begin_call(out);
            }
            ';' | ',' => {}
            _ if c.is_whitespace() => {}
            _ => self.reread(out),
        }
    }

    /// What is held is text after a call.
    fn reread(&mut self, out: &mut Deltas) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.held);
        let mut chars = held.chars();
        // Text may begin a call by itself; what is held is short, and no call fits into it.
        while let Some(c) = chars.next() {
            self.text(c, out);
            if self.state != State::Text {
                return self.push(chars.as_str(), out);
            }
        }
    }

    /// What is held is no call, and neither is `c`, which comes after it.
    fn give_up_at(&mut self, c: char, out: &mut Deltas) {
        self.give_up(out);
        self.text(c, out);
    }

    /// What is held is no call; what was announced stays as it is.
    fn give_up(&mut self, out: &mut Deltas) {
        if self.state == State::Call {
            self.pass_arguments(out);
        }
        out.content(&self.held);
        self.held.clear();
        self.state = State::Text;
        self.in_list = false;
        self.is_announced = false;
    }

    fn pass_arguments(&mut self, out: &mut Deltas) {
        if self.is_announced {
            let text = self.call.take_arguments();
            out.arguments(self.num_calls - 1, &text);
        }
    }
}

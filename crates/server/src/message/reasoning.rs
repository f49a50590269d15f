//! Reasoning: what a model writes between `<think>` and `</think>` before it answers.

/// The marks around reasoning.
pub const MARKERS: [&str; 2] = [OPEN, CLOSE];
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Which models' reasoning is split off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Qwen3, QwQ and others that write `<think>` themselves or whose prompt ends with it.
    Qwen3,
    /// DeepSeek R1 and its distillations: what comes before `</think>` is reasoning, whether or not it was opened.
    DeepseekR1,
}

impl ReasoningFormat {
    /// What a chat template tells: one that knows `</think>` is of a model that thinks.
    pub fn detect(template: &str) -> Option<Self> {
        template.contains(CLOSE).then_some(Self::Qwen3)
    }

    /// Where a text begins that follows a prompt which ends like this.
    pub fn begins(self, prompt: PromptEnd) -> Begins {
        match (prompt, self) {
            (PromptEnd::Thinking, _) | (PromptEnd::Neither, Self::DeepseekR1) => Begins::Thinking,
            (PromptEnd::Neither, Self::Qwen3) | (PromptEnd::Answering, _) => Begins::Open,
        }
    }
}

/// Whether a prompt ends inside the model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptEnd {
    /// After `<think>`.
    Thinking,
    /// After `</think>`: there is no more thinking to come.
    Answering,
    /// Neither.
    Neither,
}

impl PromptEnd {
    /// Looks at what the template wrote last. The end of a rendered prompt is the template's, never a user's.
    pub fn of_prompt(text: &str) -> Self {
        let text = text.trim_end();
        if text.ends_with(OPEN) {
            Self::Thinking
        } else if text.ends_with(CLOSE) {
            Self::Answering
        } else {
            Self::Neither
        }
    }

    /// Looks at the message that is to be continued.
    pub fn of_continued(message: &str) -> Self {
        match (message.rfind(OPEN), message.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self::Thinking,
            (_, Some(_)) => Self::Answering,
            _ => Self::Neither,
        }
    }
}

/// Where a text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// Inside reasoning.
    Thinking,
    /// Before reasoning or an answer, as the text shows.
    Open,
}

/// Splits a text into reasoning and content. White space next to the marks belongs to neither.
#[derive(Debug)]
pub struct ThinkSplitter {
    state: State,
    /// White space and the beginning of a mark that may follow it.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space came.
    Start,
    /// Inside reasoning; `begun` once there was more than white space.
    Thinking { begun: bool },
    /// After `</think>` and white space.
    Closed,
    /// In the answer.
    Content,
}

impl ThinkSplitter {
    /// A splitter at the beginning of a text.
    pub fn new(begins: Begins) -> Self {
        let state = match begins {
            Begins::Thinking => State::Thinking { begun: false },
            Begins::Open => State::Start,
        };
        Self {
            state,
            held: String::new(),
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, reasoning: &mut String, content: &mut String) {
        let mut chars = text.chars();
        while self.state != State::Content {
            let Some(c) = chars.next() else { return };
            match self.state {
                State::Closed if c.is_whitespace() => {}
                State::Closed => {
                    self.state = State::Content;
                    content.push(c);
                }
                State::Start => self.start(c, content),
                _ => self.think(c, reasoning),
            }
        }
        content.push_str(chars.as_str());
    }

    /// Ends the text: what was held is what it is.
    pub fn finish(&mut self, reasoning: &mut String, content: &mut String) {
        match self.state {
            State::Thinking { .. } => reasoning.push_str(&self.held),
            _ => content.push_str(&self.held),
        }
        self.held.clear();
    }

    fn start(&mut self, c: char, content: &mut String) {
        self.held.push(c);
        let tail = self.held.trim_start();
        if tail == OPEN {
            self.state = State::Thinking { begun: false };
            self.held.clear();
        } else if !OPEN.starts_with(tail) {
            self.state = State::Content;
            content.push_str(&self.held);
            self.held.clear();
        }
    }

    fn think(&mut self, c: char, reasoning: &mut String) {
        self.held.push(c);
        loop {
            let blank = self.held.len() - self.held.trim_start().len();
            let tail = &self.held[blank..];
            if tail == CLOSE {
                self.state = State::Closed;
                self.held.clear();
                return;
            }
            if CLOSE.starts_with(tail) {
                return;
            }
            // No mark begins where `tail` does: its first character and the white space before it are reasoning.
            let first = tail.chars().next().map_or(0, char::len_utf8);
            let from = if self.state == (State::Thinking { begun: true }) {
                0
            } else {
                blank
            };
            reasoning.push_str(&self.held[from..blank + first]);
            self.state = State::Thinking { begun: true };
            self.held.drain(..blank + first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split<'a>(begins: Begins, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut splitter = ThinkSplitter::new(begins);
        for piece in pieces {
            splitter.push(piece, &mut reasoning, &mut content);
        }
        splitter.finish(&mut reasoning, &mut content);
        (reasoning, content)
    }

    #[test]
    fn reasoning_is_split_off_and_white_space_beside_marks_dropped() {
        for (begins, text, reasoning, content) in [
            (
                Begins::Open,
                "<think>\na b\n</think>\n\nHi\n",
                "a b",
                "Hi\n",
            ),
            (
                Begins::Thinking,
                "\na <b>\n\n c\n</think>\n\nHi",
                "a <b>\n\n c",
                "Hi",
            ),
            (
                Begins::Open,
                "Hi <think>x</think>",
                "",
                "Hi <think>x</think>",
            ),
            (Begins::Open, "\n<think>\n\n</think>\n\nHi", "", "Hi"),
            (Begins::Open, " Hi", "", " Hi"),
            (Begins::Thinking, "so <</think>x", "so <", "x"),
            (Begins::Open, "<think>never </thin", "never </thin", ""),
            (Begins::Open, "<thi", "", "<thi"),
        ] {
            let got = split(begins, [text]);
            assert_eq!(got, (reasoning.to_owned(), content.to_owned()), "{text}");
        }
    }

    #[test]
    fn prompt_tells_whether_the_model_is_thinking() {
        assert_eq!(
            PromptEnd::of_prompt("…assistant\n<think>\n"),
            PromptEnd::Thinking
        );
        assert_eq!(
            PromptEnd::of_prompt("<think>\n\n</think>\n\n"),
            PromptEnd::Answering
        );
        assert_eq!(
            PromptEnd::of_prompt("<think> assistant\n"),
            PromptEnd::Neither
        );
        assert_eq!(
            PromptEnd::of_continued("<think>a</think>b"),
            PromptEnd::Answering
        );
        assert_eq!(PromptEnd::of_continued("<think>a"), PromptEnd::Thinking);
    }

    proptest! {
        #[test]
        fn any_cut_of_a_text_splits_alike(
            pieces in proptest::collection::vec("(<think>|</think>|[<>/ \\nthké]){0,4}", 0..8),
            thinking in any::<bool>(),
        ) {
            let begins = if thinking { Begins::Thinking } else { Begins::Open };
            let whole = pieces.concat();
            let chars: Vec<String> = whole.chars().map(String::from).collect();
            let want = split(begins, [whole.as_str()]);
            prop_assert_eq!(&split(begins, pieces.iter().map(String::as_str)), &want);
            prop_assert_eq!(&split(begins, chars.iter().map(String::as_str)), &want);
        }
    }
}

//! The parsers of reasoning and tool calls: any text in any cut, in every format.
//!
//! Every cut gives the same message as the whole text; calls begin in order and once, under a name that the text holds, and arguments
//! belong to a call that has begun; content, reasoning and arguments are each found in the text in their order, so nothing is invented;
//! and a text without any mark or brace is all content.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use izar_server::fuzzing::{Begins, Delta, ExpectedCalls, MessageFormat, MessageParser, ToolFormat};
use libfuzzer_sys::fuzz_target;

/// What the formats are made of, and what almost is.
const PHRASES: [&str; 30] = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "functools[", "<|tool_call|>", "<|/tool_call|>", "<think>",
    "</think>", "{", "}", "[", "]", "\"name\"", "\"arguments\"", "\"parameters\"", ": ", ", ", ";", "\"", "\\",
    "\"get\"", "\"set\"", "\"no\"", "{\"name\": \"get\", \"arguments\": {\"a\": [1, \"}\"]}}",
    "{\"arguments\": {}, \"name\": \"set\"}", "\n", " ", "1.5e3", "日", "<",
];

#[derive(Debug)]
struct Input {
    format: MessageFormat,
    pieces: Vec<String>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let formats = [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Phi4, ToolFormat::BareList];
        let calls = match u.int_in_range(0..=5)? {
            4 => None,
            5 => Some(ExpectedCalls::ArgumentsOf("get".to_owned())),
            format => Some(ExpectedCalls::Written {
                format: formats[format],
                names: ["get".to_owned(), "set".to_owned()].into(),
                parallel: u.arbitrary()?,
            }),
        };
        let reasoning = *u.choose(&[None, Some(Begins::Open), Some(Begins::Thinking)])?;
        let mut pieces = Vec::new();
        while !u.is_empty() && pieces.len() < 64 {
            let mut piece = String::new();
            for _ in 0..u.int_in_range(0..=4)? {
                match u.int_in_range(0..=35)? {
                    phrase @ 0..30 => piece.push_str(PHRASES[phrase]),
                    _ => piece.push(u.arbitrary()?),
                }
            }
            pieces.push(piece);
        }
        Ok(Self {
            format: MessageFormat { reasoning, calls },
            pieces,
        })
    }
}

/// A message put together from its deltas.
#[derive(Debug, Default, PartialEq, Eq)]
struct Message {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    has_called: bool,
}

fn parse<'a>(format: &MessageFormat, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let (mut parser, mut message) = (MessageParser::new(format), Message::default());
    for piece in pieces {
        parser.push(piece).for_each(|delta| message.add(delta));
    }
    parser.finish().for_each(|delta| message.add(delta));
    message.has_called = parser.has_called();
    message
}

impl Message {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Call { index, name } => {
                assert_eq!(index, self.calls.len(), "calls begin in order");
                self.calls.push((name, String::new()));
            }
            Delta::Arguments { index, text } => {
                assert!(!text.is_empty() && index + 1 == self.calls.len(), "arguments of the call at hand");
                self.calls[index].1.push_str(&text);
            }
        }
    }
}

/// Whether all of `part` comes in `whole`, in its order.
fn comes_in(part: &str, whole: &str) -> bool {
    let mut rest = whole.chars();
    part.chars().all(|wanted| rest.any(|c| c == wanted))
}

fuzz_target!(|input: Input| {
    let text = input.pieces.concat();
    let whole = parse(&input.format, [text.as_str()]);
    assert_eq!(parse(&input.format, input.pieces.iter().map(String::as_str)), whole);
    let mut buffer = [0; 4];
    let mut characters = MessageParser::new(&input.format);
    let mut by_character = Message::default();
    for c in text.chars() {
        characters.push(c.encode_utf8(&mut buffer)).for_each(|delta| by_character.add(delta));
    }
    characters.finish().for_each(|delta| by_character.add(delta));
    by_character.has_called = characters.has_called();
    assert_eq!(by_character, whole, "character by character");
    for part in [&whole.content, &whole.reasoning] {
        assert!(comes_in(part, &text), "{part:?} was not said");
    }
    let is_forced = matches!(input.format.calls, Some(ExpectedCalls::ArgumentsOf(_)));
    for (name, arguments) in &whole.calls {
        assert!(is_forced || text.contains(name.as_str()) || text.contains('\\'), "{name:?} was not said");
        assert!(comes_in(arguments, &text), "{arguments:?} was not said");
    }
    if input.format.reasoning.is_none() && !is_forced && !text.contains(['{', '[', '<']) {
        assert_eq!((whole.content, whole.calls.len()), (text, 0));
    }
});

//! The parsers on whole texts, and on any cut of them.

use proptest::prelude::*;

use super::*;

/// What a message came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Message {
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

fn parse<'a>(format: &MessageFormat, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut parser = MessageParser::new(format);
    let mut message = Message::default();
    let mut add = |delta: Delta| match delta {
        Delta::Content(text) => message.content.push_str(&text),
        Delta::Reasoning(text) => message.reasoning.push_str(&text),
        Delta::Call { index, name } => {
            assert_eq!(index, message.calls.len());
            message.calls.push((name, String::new()));
        }
        Delta::Arguments { index, text } => {
            assert_eq!(index + 1, message.calls.len());
            assert!(!text.is_empty());
            message.calls[index].1.push_str(&text);
        }
    };
    for piece in pieces {
        parser.push(piece).for_each(&mut add);
    }
    parser.finish().for_each(&mut add);
    message
}

fn written(format: ToolFormat, parallel: bool) -> MessageFormat {
    MessageFormat {
        reasoning: None,
        calls: Some(ExpectedCalls::Written {
            format,
            names: ["f".to_owned(), "g".to_owned()].into(),
            parallel,
        }),
    }
}

fn message(content: &str, calls: &[(&str, &str)]) -> Message {
    Message {
        content: content.to_owned(),
        calls: calls
            .iter()
            .map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()))
            .collect(),
        ..Message::default()
    }
}

#[track_caller]
fn check(format: ToolFormat, text: &str, content: &str, calls: &[(&str, &str)]) {
    assert_eq!(
        parse(&written(format, true), [text]),
        message(content, calls),
        "{text}"
    );
}

#[test]
fn hermes_calls_are_found_between_their_marks() {
    let check = |text: &str, content: &str, calls: &[(&str, &str)]| {
        check(ToolFormat::Hermes, text, content, calls);
    };
    let call = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
    check(
        &format!("Let me see.\n\n{call}\n"),
        "Let me see.",
        &[("f", r#"{"a": 1}"#)],
    );
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": [\"</tool_call>\"]}}\n</tool_call>",
        "",
        &[("f", "{}"), ("g", "{\"x\": [\"</tool_call>\"]}")],
    );
    check(
        &format!("{call} and then"),
        " and then",
        &[("f", r#"{"a": 1}"#)],
    );
    // The closing mark is forgiven, also half of it, and also where another call follows.
    for close in ["", "</tool", "\n"] {
        check(
            &format!(r#"<tool_call>{{"name": "f"}}{close}"#),
            "",
            &[("f", "{}")],
        );
    }
    check(
        &format!(r#"<tool_call>{{"name": "g"}}{call}"#),
        "",
        &[("g", "{}"), ("f", r#"{"a": 1}"#)],
    );
    // A tool that does not exist is for the client to refuse.
    check(
        r#"<tool_call>{"name": "nobody"}</tool_call>"#,
        "",
        &[("nobody", "{}")],
    );
}

#[test]
fn malformed_calls_are_content() {
    for text in [
        "<tool_call>f(1)</tool_call>",
        "<tool_call>",
        "<tool_call>\n",
        "a <tool_call>{\"arguments\": {}}</tool_call> b",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"f\", ",
        "<tool_ca",
        "a < b <tool> <tool_call",
        " \n",
    ] {
        check(ToolFormat::Hermes, text, text, &[]);
    }
    for text in [
        "<|python_tag|>print(1)",
        "{\"answer\": 42}",
        "{\"name\": \"Bob\", \"parameters\": {}}",
        "The call: {\"name\": \"f\", \"parameters\": {}}",
    ] {
        check(ToolFormat::Llama3Json, text, text, &[]);
    }
    for text in [
        "functools",
        "import functools\n",
        "functools[1]",
        "functools[]",
    ] {
        check(ToolFormat::Phi4, text, text, &[]);
    }
}

#[test]
fn call_that_breaks_off_keeps_what_was_announced() {
    check(
        ToolFormat::Hermes,
        r#"<tool_call>{"name": "f", "arguments": {"a": "b"#,
        "",
        &[("f", r#"{"a": "b"#)],
    );
    check(
        ToolFormat::Hermes,
        r#"<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>"#,
        "oops}}</tool_call>",
        &[("f", r#"{"a": "#)],
    );
}

#[test]
fn llama_calls_begin_the_text_or_follow_the_tag() {
    let check = |text: &str, content: &str, calls: &[(&str, &str)]| {
        check(ToolFormat::Llama3Json, text, content, calls);
    };
    let f = r#"{"name": "f", "parameters": {"a": "1"}}"#;
    let g = r#"{"type": "function", "name": "g", "parameters": {}}"#;
    let (call_f, call_g) = (("f", r#"{"a": "1"}"#), ("g", "{}"));
    check(f, "", &[call_f]);
    check(&format!("\n{f};{g}"), "", &[call_f, call_g]);
    check(&format!("<|python_tag|>{f}; {g}\n"), "", &[call_f, call_g]);
    check(&format!("Well: <|python_tag|>{f}"), "Well:", &[call_f]);
    check(&format!("{f} done"), " done", &[call_f]);
    check(&format!("[{f}]"), &format!("[{f}]"), &[]);
    check(&format!("<|python_tag|>[{f}, {g}]"), "", &[call_f, call_g]);
}

#[test]
fn phi_calls_are_lists_after_functools_or_between_their_marks() {
    let list = r#"{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]"#;
    let calls = [("f", r#"{"a": 1}"#), ("g", "{}")];
    for text in [
        format!("functools[{list}"),
        format!("<|tool_call|>[{list}<|/tool_call|>"),
        format!("<|tool_call|>\n[\n{list}"),
    ] {
        check(ToolFormat::Phi4, &text, "", &calls);
    }
    check(
        ToolFormat::Phi4,
        r#"Use functools[{"name": "f"}] now"#,
        "Use now",
        &[("f", "{}")],
    );
}

#[test]
fn bare_list_is_what_required_calls_are() {
    check(
        ToolFormat::BareList,
        r#"[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]"#,
        "",
        &[("f", r#"{"a": 1}"#), ("g", "{}")],
    );
}

#[test]
fn without_parallel_calls_the_first_ends_the_text() {
    let format = written(ToolFormat::Hermes, false);
    let text = r#"<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>"#;
    assert_eq!(parse(&format, [text]), message("", &[("f", "{}")]));
    let mut parser = MessageParser::new(&format);
    let _ = parser.push(r#"<tool_call>{"name": "f""#);
    assert!(!parser.is_over());
    let _ = parser.push("}");
    assert!(parser.is_over() && parser.has_called());
}

#[test]
fn calls_follow_reasoning_and_are_not_looked_for_inside_it() {
    let format = MessageFormat {
        reasoning: Some(reasoning::Begins::Thinking),
        ..written(ToolFormat::Hermes, true)
    };
    let call = r#"<tool_call>{"name": "f"}</tool_call>"#;
    let got = parse(
        &format,
        [format!("I call {call}.\n</think>\n\n{call}").as_str()],
    );
    let want = Message {
        reasoning: format!("I call {call}."),
        ..message("", &[("f", "{}")])
    };
    assert_eq!(got, want);
}

#[test]
fn named_tool_gets_the_whole_text_as_arguments() {
    let format = MessageFormat {
        reasoning: None,
        calls: Some(ExpectedCalls::ArgumentsOf("f".to_owned())),
    };
    assert_eq!(
        parse(&format, ["{\"a\"", ": 1}"]),
        message("", &[("f", r#"{"a": 1}"#)])
    );
    assert_eq!(parse(&format, []), message("", &[]));
}

/// Pieces that parsers care about.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<|python_tag|>", "functools[", "<|tool_call|>", "<|/tool_call|>", "[", "]", ", ", ";", "\n",
            r#"{"name": "f", "arguments": {"a": "é\"}"}}"#, r#"{"parameters": {"x": [1, -2e5]}, "name": "g"}"#,
            r#"{"name": "other"}"#, r#"{"name": "f", "arguments": {"#, "<think>", "</think>",
        ]).prop_map(str::to_owned),
        1 => "[a<{\\[\"\\\\é \\n]{0,3}",
    ]
}

/// Cuts `text` at characters whose number is in `cuts`.
fn cut<'a>(text: &'a str, cuts: &[bool]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for (idx, (at, _)) in text.char_indices().enumerate() {
        if cuts[idx % cuts.len()] && at > from {
            pieces.push(&text[from..at]);
            from = at;
        }
    }
    pieces.push(&text[from..]);
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_cut_of_a_text_is_the_same_message(
        fragments in proptest::collection::vec(fragment(), 0..8),
        cuts in proptest::collection::vec(any::<bool>(), 1..40),
        format in prop::sample::select(vec![ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Phi4, ToolFormat::BareList]),
        parallel in any::<bool>(),
        thinking in any::<bool>(),
    ) {
        let text = fragments.concat();
        let format = MessageFormat {
            reasoning: thinking.then_some(reasoning::Begins::Open),
            ..written(format, parallel)
        };
        let whole = parse(&format, [text.as_str()]);
        prop_assert_eq!(&parse(&format, cut(&text, &cuts)), &whole);
        prop_assert_eq!(&parse(&format, cut(&text, &[true])), &whole);
    }

    #[test]
    fn nothing_but_white_space_and_markup_is_lost(
        words in proptest::collection::vec("[a-z.<|é]{1,5}", 0..6),
        calls in proptest::collection::vec(any::<bool>(), 6),
        blank in "[ \\n]{0,2}",
        cuts in proptest::collection::vec(any::<bool>(), 1..40),
    ) {
        let mut text = String::new();
        let mut want = Message::default();
        for (word, has_call) in words.iter().zip(calls) {
            text.push_str(word);
            want.content.push_str(word);
            text.push_str(&blank);
            if has_call {
                text.push_str(r#"<tool_call>{"name": "f", "arguments": {"w": "<tool_call>"}}</tool_call>"#);
                want.calls.push(("f".to_owned(), r#"{"w": "<tool_call>"}"#.to_owned()));
            } else {
                want.content.push_str(&blank);
            }
        }
        let got = parse(&written(ToolFormat::Hermes, true), cut(&text, &cuts));
        prop_assert_eq!(got, want);
    }
}

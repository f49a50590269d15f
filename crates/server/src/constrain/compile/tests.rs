use super::*;

const EOS: u32 = 256;
const VOCAB_SIZE: u32 = 260;

/// A token a byte, an end of sequence, and some ids that stand for nothing.
fn grammars() -> Grammars {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let char_of = |byte: u8| {
        let before = (0..byte).filter(|&other| !stands_for_itself(other)).count() as u32;
        match stands_for_itself(byte) {
            true => char::from(byte),
            false => char::from_u32(256 + before).expect("a letter of Latin Extended-A"),
        }
    };
    let vocab: serde_json::Map<String, Value> = (0..=255_u8)
        .map(|byte| (char_of(byte).to_string(), byte.into()))
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = Tokenizer::from_json(json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": EOS, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    }));
    Grammars::new(
        Arc::new(tokenizer.expect("a valid definition")),
        VOCAB_SIZE,
        vec![EOS],
    )
}

/// Writes an answer by choosing among the allowed tokens, for at most `limit` of them.
fn walk(constraint: &Constraint, limit: usize, mut choose: impl FnMut(&[u32]) -> u32) -> String {
    let mut matcher = constraint.matcher();
    let mut bytes = Vec::new();
    for _ in 0..limit {
        let mut allowed = Vec::new();
        let mask = matcher.compute_mask_or_eos().expect("a mask");
        mask.iter_set_entries(|id| allowed.push(id as u32));
        assert!(!allowed.is_empty() && allowed.iter().all(|&id| id <= EOS));
        let token = choose(&allowed);
        matcher.consume_token(token).expect("an allowed token");
        if let Ok(byte) = u8::try_from(token) {
            bytes.push(byte);
        }
        if matcher.is_stopped() {
            break;
        }
    }
    assert!(matcher.is_stopped(), "{}", String::from_utf8_lossy(&bytes));
    String::from_utf8(bytes).expect("UTF-8")
}

/// Picks at random, but ends what can end, so that strings and lists stay short.
fn picker(seed: u64) -> impl FnMut(&[u32]) -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |allowed| {
        // Numbers that no double holds are JSON, but not serde's.
        let small = |id: &u32| ![b'e', b'E'].map(u32::from).contains(id);
        let some: Vec<u32> = allowed.iter().copied().filter(small).collect();
        let allowed = if some.is_empty() { allowed } else { &some };
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let ends: Vec<u32> = [EOS, b'"'.into(), b'}'.into(), b']'.into()]
            .into_iter()
            .filter(|id| allowed.contains(id))
            .collect();
        if !ends.is_empty() && state.is_multiple_of(4) {
            return ends[(state >> 8) as usize % ends.len()];
        }
        allowed[(state >> 8) as usize % allowed.len()]
    }
}

fn compiled(format: &Format) -> Constraint {
    grammars().compile(format).expect("a good format")
}

#[test]
fn whatever_is_chosen_the_answer_is_json_of_the_schema() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "tags", "kind"],
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
            "kind": {"enum": ["a", "b", 3]},
            "size": {"type": ["integer", "null"]},
        },
        "$defs": {"tag": {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["id"], "additionalProperties": false}},
    });
    let constraint = compiled(&Format::JsonSchema(schema));
    for seed in 1..40 {
        let text = walk(&constraint, 4096, picker(seed));
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            value["name"]
                .as_str()
                .is_some_and(|name| name.chars().count() <= 12)
        );
        let tags = value["tags"].as_array().expect("a list");
        assert!(
            tags.iter()
                .all(|tag| tag["id"].as_u64().is_some_and(|id| id < 100))
        );
        assert!(
            [json!("a"), json!("b"), json!(3)].contains(&value["kind"]),
            "{text}"
        );
    }
}

#[test]
fn an_object_without_schema_is_any_object() {
    let constraint = compiled(&Format::JsonObject);
    for seed in 1..20 {
        let text = walk(&constraint, 100_000, picker(seed));
        assert!(
            serde_json::from_str::<Value>(&text).is_ok_and(|v| v.is_object()),
            "{text}"
        );
    }
}

#[test]
fn white_space_for_ever_still_gets_to_the_json() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"], "additionalProperties": false});
    let constraint = compiled(&Format::JsonSchema(schema));
    let lover = |allowed: &[u32]| {
        let wanted = [b' ', b'\n', b'\t', b'\r'].map(u32::from);
        let found = wanted.into_iter().find(|space| allowed.contains(space));
        found.unwrap_or(allowed[0])
    };
    let text = walk(&constraint, 8 * MAX_WHITESPACE, lover);
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
}

#[test]
fn a_choice_that_begins_another_is_no_dead_end() {
    let choices = ["yes", "yes, but", "né \"quoted\"\n\\", "no"].map(str::to_owned);
    let constraint = compiled(&Format::Choice(choices.to_vec()));
    let mut seen = std::collections::BTreeSet::new();
    for seed in 1..60 {
        let text = walk(&constraint, 64, picker(seed));
        assert!(choices.contains(&text), "{text}");
        seen.insert(text);
    }
    assert_eq!(seen.len(), choices.len(), "{seen:?}");
}

#[test]
fn a_regular_expression_describes_the_whole_answer() {
    let constraint = compiled(&Format::Regex(r"[0-9]{3}-[a-f]+".to_owned()));
    let text = walk(&constraint, 64, picker(3));
    assert_eq!(text.find('-'), Some(3), "{text}");
    assert!(text[..3].bytes().all(|b| b.is_ascii_digit()));
    assert!(text[4..].bytes().all(|b| (b'a'..=b'f').contains(&b)) && text.len() > 4);
}

#[test]
fn a_grammar_may_hold_json() {
    let grammar = "start: \"<call>\" args \"</call>\"\nargs: %json {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"boolean\"}}, \"required\": [\"x\"], \"additionalProperties\": false}\n";
    let constraint = compiled(&Format::Lark(grammar.to_owned()));
    let text = walk(&constraint, 256, picker(5));
    let json = text
        .strip_prefix("<call>")
        .and_then(|t| t.strip_suffix("</call>"));
    let value: Value = serde_json::from_str(json.expect("framed")).expect("JSON");
    assert!(value["x"].is_boolean());
}

#[test]
fn bad_formats_are_refused_in_a_bounded_line() {
    let grammars = grammars();
    let formats = [
        Format::JsonSchema(json!({"type": "no such type"})),
        Format::JsonSchema(json!({"type": "string", "pattern": "("})),
        Format::JsonSchema(json!({"$ref": "https://example.com/schema"})),
        Format::JsonSchema(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
        Format::JsonSchema(json!(7)),
        Format::Regex("[".to_owned()),
        Format::Regex("((((a{1000}){1000}){1000}){1000}".to_owned()),
        Format::Lark("no rules".to_owned()),
        Format::Lark("start: missing\n".to_owned()),
        Format::Lark(format!(
            "start: {}\"a\"{}\n",
            "(".repeat(20_000),
            ")".repeat(20_000)
        )),
    ];
    for format in formats {
        let error = grammars.compile(&format).expect_err(&format!("{format:?}"));
        let ConstraintError::Refused(why) = &error else {
            panic!("{error}");
        };
        assert!(why.len() < 500 && !why.contains('\n'), "{why}");
    }
    let telling = Format::JsonSchema(json!({"type": "secretly", "properties": {"hidden": {}}}));
    let why = grammars
        .compile(&telling)
        .expect_err("no such type")
        .to_string();
    assert!(!why.contains("secretly"), "{why}");
    let large = Format::Regex("a".repeat(MAX_FORMAT_BYTES));
    assert!(matches!(
        grammars.compile(&large),
        Err(ConstraintError::TooLarge { .. })
    ));
}

#[test]
fn a_vocabulary_without_an_end_cannot_be_constrained() {
    let mut grammars = grammars();
    grammars.eos_token_ids = vec![VOCAB_SIZE];
    let error = grammars.compile(&Format::JsonObject).expect_err("no end");
    assert_eq!(error, ConstraintError::NoEos);
}

#[test]
fn what_was_compiled_lately_is_found_again() {
    let grammars = grammars();
    let regex = |i: usize| Format::Regex(format!("a{{{}}}", i + 1));
    let first = grammars.compile(&regex(0)).expect("good");
    for i in 1..MAX_CACHED {
        grammars.compile(&regex(i)).expect("good");
    }
    let again = grammars.compile(&regex(0)).expect("good");
    assert!(Arc::ptr_eq(&first.0, &again.0));
    grammars.compile(&regex(MAX_CACHED)).expect("good");
    assert_eq!(grammars.cache.lock().expect("no panic").len(), MAX_CACHED);
    let again = grammars.compile(&regex(0)).expect("good");
    assert!(Arc::ptr_eq(&first.0, &again.0), "the latest used stay");
}

/// Whether an answer of `format` may be this text.
fn allows(format: &Format, text: &str) -> bool {
    let mut matcher = compiled(format).matcher();
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let consumed = matcher.try_consume_tokens(&ids);
    consumed.is_ok_and(|num| num == ids.len()) && matcher.is_accepting().unwrap_or(false)
}

#[test]
fn reasoning_may_come_before_an_answer_that_is_constrained() {
    let format = |is_optional| Format::AfterReasoning {
        is_optional,
        answer: Box::new(Format::JsonSchema(
            json!({"type": "array", "items": {"const": 1}}),
        )),
    };
    for (text, opened, optional) in [
        ("I {think} so.\n</think>\n\n[1, 1]", true, false),
        ("</think>[1]", true, false),
        ("[1]", false, true),
        ("<think>\nso\n</think>\n\n[1]", true, true),
        ("<think>\nso\n</think>\n\n[2]", false, false),
        ("so </think> no", false, false),
        ("so", false, false),
    ] {
        assert_eq!(
            (allows(&format(false), text), allows(&format(true), text)),
            (opened, optional),
            "{text}"
        );
    }
}

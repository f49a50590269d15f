//! Ids and texts against Hugging Face's `tokenizers`, for every kind of vocabulary that language models use.

mod support;

use std::sync::Arc;

use izar_tokenizer::{
    Detokenizer, DetokenizerOptions, EncodeOptions, GgufVocab, TokenType, Tokenizer,
};
use serde_json::{Value, json};
use support::{Random, slices};

/// Names and definitions.
fn vocabularies() -> Vec<(&'static str, Value)> {
    let (qwen3, sentencepiece) = (
        support::json("qwen3-small.tokenizer.json"),
        support::json("sentencepiece-small.tokenizer.json"),
    );
    vec![
        (
            "digits and GPT-2's pattern",
            support::json("smollm2-small.tokenizer.json"),
        ),
        ("split pattern and NFC", qwen3.clone()),
        ("Llama 3", llama3(qwen3)),
        ("SentencePiece", sentencepiece.clone()),
        ("Metaspace", metaspace(sentencepiece)),
    ]
}

/// Llama 3's pipeline: no normalisation, up to three digits, whole pieces before merges, a BOS.
fn llama3(mut json: Value) -> Value {
    let bos = json["added_tokens"][0]["id"].clone();
    let pattern = json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        .as_str()
        .unwrap();
    let pattern = pattern.replace(r"\p{N}|", r"\p{N}{1,3}|");
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern.into();
    json["normalizer"] = Value::Null;
    json["model"]["ignore_merges"] = true.into();
    json["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<|b|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|b|>": {"id": "<|b|>", "ids": [bos], "tokens": ["<|b|>"]}}},
    ]});
    json
}

/// The newer SentencePiece pipeline: a space before the first piece only, added by the pre-tokenizer.
fn metaspace(mut json: Value) -> Value {
    json["normalizer"] = Value::Null;
    json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false});
    json
}

/// The texts of added tokens.
fn added(json: &Value) -> Vec<String> {
    json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["content"].as_str().unwrap().to_owned())
        .collect()
}

fn reference(json: &Value) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap()
}

#[test]
fn ids_equal_those_of_the_reference() {
    for (name, json) in vocabularies() {
        let tokenizer = Tokenizer::from_json(json.clone()).unwrap();
        let mut reference = reference(&json);
        for (add_special, parse_special) in [(true, true), (false, true), (false, false)] {
            reference.set_encode_special_tokens(!parse_special);
            for text in slices(1000, &added(&json), &mut Random(7)) {
                let ids = tokenizer
                    .encode(
                        &text,
                        EncodeOptions {
                            add_special,
                            parse_special,
                        },
                    )
                    .unwrap();
                let expected = reference.encode_fast(text.as_str(), add_special).unwrap();
                assert_eq!(ids, expected.get_ids(), "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn fastokens_encodes_what_it_supports() {
    let backends: Vec<_> = vocabularies()
        .into_iter()
        .map(|(name, json)| (name, Tokenizer::from_json(json).unwrap().backend()))
        .collect();
    let expected = [
        ("digits and GPT-2's pattern", "fastokens"),
        ("split pattern and NFC", "fastokens"),
        ("Llama 3", "fastokens"),
        ("SentencePiece", "fastokens"),
        ("Metaspace", "tokenizers"),
    ];
    assert_eq!(backends, expected);
}

#[test]
fn decoded_text_equals_that_of_the_reference() {
    for (name, json) in vocabularies() {
        let tokenizer = Tokenizer::from_json(json.clone()).unwrap();
        let reference = reference(&json);
        for text in slices(600, &added(&json), &mut Random(11)) {
            let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
            for skip_special in [false, true] {
                let expected = reference.decode(&ids, skip_special).unwrap();
                assert_eq!(
                    tokenizer.decode(&ids, skip_special),
                    expected,
                    "{name}: {text:?}"
                );
            }
        }
    }
}

#[test]
fn any_ids_of_a_byte_level_vocabulary_decode_as_in_the_reference() {
    for name in ["smollm2-small.tokenizer.json", "qwen3-small.tokenizer.json"] {
        let json = support::json(name);
        let (tokenizer, reference) = (
            Tokenizer::from_json(json.clone()).unwrap(),
            reference(&json),
        );
        let mut random = Random(3);
        for _ in 0..500 {
            let ids = random_ids(&tokenizer, &mut random);
            assert_eq!(
                tokenizer.decode(&ids, false),
                reference.decode(&ids, false).unwrap(),
                "{ids:?}"
            );
        }
    }
}

/// Ids of single bytes and others in equal parts, some outside the vocabulary.
fn random_ids(tokenizer: &Tokenizer, random: &mut Random) -> Vec<u32> {
    let limits = [300, tokenizer.vocab_size() + 5];
    let len = 1 + random.below(30);
    let mut id = || {
        let limit = limits[random.below(2)];
        random.below(limit) as u32
    };
    (0..len).map(|_| id()).collect()
}

#[test]
fn a_stream_concatenates_to_the_decoded_text() {
    for (name, json) in vocabularies() {
        let tokenizer = Arc::new(Tokenizer::from_json(json).unwrap());
        let mut random = Random(5);
        for _ in 0..500 {
            let ids = random_ids(&tokenizer, &mut random);
            for skip_special in [false, true] {
                let options = DetokenizerOptions {
                    skip_special,
                    continuation: false,
                };
                let mut stream = Detokenizer::new(tokenizer.clone(), options);
                let mut text = String::new();
                for &id in &ids {
                    stream.push(id, &mut text);
                    assert!(stream.pending().len() <= 3);
                }
                stream.finish(&mut text);
                assert_eq!(
                    text,
                    tokenizer.decode(&ids, skip_special),
                    "{name}: {ids:?}"
                );
            }
        }
    }
}

#[test]
fn a_stream_of_valid_text_never_shows_half_a_character() {
    for (name, json) in vocabularies() {
        let tokenizer = Arc::new(Tokenizer::from_json(json).unwrap());
        let (original, plain) = (
            "naïve 你好 👨‍👩‍👧‍👦🇩🇪 𝕳 नमस्ते",
            EncodeOptions {
                add_special: false,
                parse_special: false,
            },
        );
        let ids = tokenizer.encode(original, plain).unwrap();
        let mut stream = Detokenizer::new(tokenizer.clone(), DetokenizerOptions::default());
        let (mut text, mut pieces) = (String::new(), 0);
        for id in ids {
            let before = text.len();
            stream.push(id, &mut text);
            pieces += usize::from(text.len() > before);
            assert!(original.starts_with(&text), "{name}: {text:?}");
        }
        assert_eq!(
            (text.as_str(), stream.pending()),
            (original, &[][..]),
            "{name}"
        );
        assert!(pieces > 10, "{name}: text comes as it is complete");
    }
}

/// The GGUF form of a `tokenizer.json`.
fn as_gguf(json: &Value, pre: &str) -> GgufVocab {
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let size = vocab
        .values()
        .chain(added.iter().map(|t| &t["id"]))
        .map(|id| id.as_u64().unwrap())
        .max()
        .unwrap()
        + 1;
    let mut tokens = vec![String::new(); size as usize];
    let mut token_types = vec![TokenType::Normal; tokens.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    for token in added {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = token["content"].as_str().unwrap().into();
        token_types[id] = if token["special"] == true {
            TokenType::Control
        } else {
            TokenType::UserDefined
        };
    }
    let pair = |merge: &Value| match merge {
        Value::String(merge) => merge.clone(),
        merge => format!(
            "{} {}",
            merge[0].as_str().unwrap(),
            merge[1].as_str().unwrap()
        ),
    };
    let merges = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(pair)
        .collect();
    GgufVocab {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens,
        token_types,
        merges,
        ..GgufVocab::default()
    }
}

#[test]
fn a_byte_level_vocabulary_from_gguf_gives_the_same_ids() {
    for (name, pre) in [
        ("smollm2-small.tokenizer.json", "smollm"),
        ("qwen3-small.tokenizer.json", "qwen2"),
    ] {
        let json = support::json(name);
        let (from_json, from_gguf) = (
            Tokenizer::from_json(json.clone()).unwrap(),
            Tokenizer::from_gguf(&as_gguf(&json, pre)).unwrap(),
        );
        assert_same(name, &from_json, &from_gguf, &added(&json));
    }
}

#[test]
fn a_sentencepiece_vocabulary_from_gguf_gives_the_same_ids() {
    let json = support::json("sentencepiece-small.tokenizer.json");
    let mut vocab = as_gguf(&json, "default");
    // SentencePiece scores a merged token by how early it was merged.
    let mut scores = vec![-1e9; vocab.tokens.len()];
    for (rank, merge) in vocab.merges.iter().enumerate() {
        let merged = merge.replacen(' ', "", 1);
        let id = json["model"]["vocab"][&merged].as_u64().unwrap() as usize;
        if scores[id] == -1e9 {
            scores[id] = -(rank as f32);
        }
    }
    for id in 3..259 {
        vocab.token_types[id] = TokenType::Byte;
    }
    vocab.token_types[0] = TokenType::Unknown;
    let vocab = GgufVocab {
        architecture: "phi3".into(),
        model: "llama".into(),
        pre: None,
        scores,
        merges: Vec::new(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..vocab
    };
    // As the fixture has it: Phi-3's own control tokens swallow white space, those of Llama 2 do not.
    let mut json = json;
    json["added_tokens"][2]["rstrip"] = true.into();
    let from_json = Tokenizer::from_json(json.clone()).unwrap();
    assert_same(
        "SentencePiece",
        &from_json,
        &Tokenizer::from_gguf(&vocab).unwrap(),
        &added(&json),
    );
}

fn assert_same(name: &str, from_json: &Tokenizer, from_gguf: &Tokenizer, added: &[String]) {
    for text in slices(1500, added, &mut Random(13)) {
        for parse_special in [true, false] {
            let options = EncodeOptions {
                add_special: true,
                parse_special,
            };
            let expected = from_json.encode(&text, options).unwrap();
            assert_eq!(
                from_gguf.encode(&text, options).unwrap(),
                expected,
                "{name}: {text:?}"
            );
            assert_eq!(
                from_gguf.decode(&expected, true),
                from_json.decode(&expected, true),
                "{name}: {text:?}"
            );
        }
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let json = support::json("qwen3-small.tokenizer.json");
    let error = Tokenizer::from_gguf(&as_gguf(&json, "mystery-7"))
        .err()
        .expect("must be refused")
        .to_string();
    assert!(
        error.contains("\"mystery-7\"") && error.contains("qwen2"),
        "{error}"
    );
}

#[test]
fn a_contradictory_gguf_vocabulary_is_refused() {
    let good = as_gguf(&support::json("qwen3-small.tokenizer.json"), "qwen2");
    let cases: [(&str, GgufVocab); 5] = [
        (
            "gemma4",
            GgufVocab {
                model: "gemma4".into(),
                ..good.clone()
            },
        ),
        (
            "scores",
            GgufVocab {
                scores: vec![0.0; 3],
                ..good.clone()
            },
        ),
        (
            "eos",
            GgufVocab {
                eos: Some(9_999_999),
                ..good.clone()
            },
        ),
        (
            "merges",
            GgufVocab {
                merges: Vec::new(),
                ..good.clone()
            },
        ),
        (
            "no-such",
            GgufVocab {
                merges: vec!["no-such pair".into()],
                ..good.clone()
            },
        ),
    ];
    for (named, vocab) in cases {
        let error = Tokenizer::from_gguf(&vocab)
            .err()
            .expect("must be refused")
            .to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
}

#[test]
fn a_long_text_gives_the_ids_of_the_reference_too() {
    // Long enough that fastokens spreads it over threads.
    let lines = std::fs::read_to_string(support::data("texts.txt")).unwrap();
    let lines: Vec<&str> = lines.split_inclusive('\n').collect();
    let mut random = Random(23);
    let text: String = (0..4000)
        .map(|_| lines[random.below(lines.len())])
        .collect();
    assert!(text.len() > 200_000);
    for (name, json) in vocabularies() {
        let ids = Tokenizer::from_json(json.clone())
            .unwrap()
            .encode(&text, EncodeOptions::default())
            .unwrap();
        let expected = reference(&json).encode_fast(text.as_str(), true).unwrap();
        assert!(ids == expected.get_ids(), "{name}");
    }
}

//! Model directories: which file says what.

mod support;

use std::path::Path;

use izar_tokenizer::{ChatOptions, EncodeOptions, LoadError, ModelText};
use serde_json::{Value, json};

/// A directory with Qwen3's small vocabulary and `files`.
fn model(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        support::data("qwen3-small.tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn load(dir: &tempfile::TempDir) -> ModelText {
    ModelText::from_dir(dir.path()).unwrap()
}

fn render(model: &ModelText, options: &ChatOptions<'_>) -> String {
    let messages: [Value; 1] = [json!({"role": "user", "content": "x"})];
    model
        .template
        .as_ref()
        .unwrap()
        .render(&messages, options)
        .unwrap()
}

#[test]
fn a_directory_with_only_a_tokenizer_loads_without_a_template() {
    let model = load(&model(&[]));
    assert!(model.template.is_none() && model.eos_ids.is_empty());
    assert_eq!(model.tokenizer.prefix(), &[] as &[u32]);
}

#[test]
fn ids_that_end_a_generation_are_the_union_of_all_files() {
    let model = load(&model(&[
        (
            "tokenizer_config.json",
            r#"{"eos_token": {"content": "<|im_end|>"}}"#,
        ),
        ("generation_config.json", r#"{"eos_token_id": [7, 5]}"#),
        ("config.json", r#"{"eos_token_id": 5}"#),
    ]));
    let im_end = model.tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!(model.eos_ids, [5, 7, im_end]);
    assert_eq!(
        model.special_tokens.eos_token.as_deref(),
        Some("<|im_end|>")
    );
}

#[test]
fn a_template_file_wins_over_the_configuration() {
    let config = r#"{"chat_template": "config", "bos_token": "<|endoftext|>"}"#;
    let by_config = model(&[("tokenizer_config.json", config)]);
    assert_eq!(render(&load(&by_config), &ChatOptions::default()), "config");
    let by_json = model(&[
        ("tokenizer_config.json", config),
        ("chat_template.json", r#"{"chat_template": "json"}"#),
    ]);
    assert_eq!(render(&load(&by_json), &ChatOptions::default()), "json");
    let by_file = model(&[
        ("tokenizer_config.json", config),
        ("chat_template.jinja", "{{ bos_token }} file\n"),
    ]);
    assert_eq!(
        render(&load(&by_file), &ChatOptions::default()),
        "<|endoftext|> file"
    );
}

#[test]
fn named_templates_are_chosen_by_name_or_by_tools() {
    let model = load(&model(&[
        (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}"#,
        ),
        ("additional_chat_templates/rag.jinja", "r"),
    ]));
    let with = |tools, template_name| ChatOptions {
        tools,
        template_name,
        ..ChatOptions::default()
    };
    let tools: &[Value] = &[json!({"name": "f"})];
    assert_eq!(render(&model, &with(None, None)), "d");
    assert_eq!(render(&model, &with(Some(tools), None)), "t");
    assert_eq!(render(&model, &with(Some(tools), Some("rag"))), "r");
    let template = model.template.as_ref().unwrap();
    let unknown = template
        .render(&[json!({})], &with(None, Some("nope")))
        .unwrap_err()
        .to_string();
    assert_eq!(
        unknown,
        r#"there is no chat template "nope": the model has default, rag, tool_use"#
    );
}

#[test]
fn tokens_that_only_the_configuration_declares_are_added() {
    let config = json!({"added_tokens_decoder": {"4000": {
        "content": "<|extra|>", "special": true, "lstrip": false, "rstrip": false, "normalized": false,
        "single_word": false,
    }}});
    let model = load(&model(&[("tokenizer_config.json", &config.to_string())]));
    let ids = model
        .tokenizer
        .encode("a<|extra|>", EncodeOptions::default())
        .unwrap();
    assert_eq!(ids.last(), Some(&4000));
    assert!(model.tokenizer.is_special(4000));
    assert_eq!(model.tokenizer.vocab_size(), 4001);
}

#[test]
fn a_llama_configuration_decides_about_the_bos() {
    for (class, add, expected) in [
        ("LlamaTokenizerFast", true, true),
        ("LlamaTokenizer", false, false),
        ("Qwen2Tokenizer", true, false),
    ] {
        let config =
            json!({"tokenizer_class": class, "add_bos_token": add, "bos_token": "<|endoftext|>"});
        let model = load(&model(&[("tokenizer_config.json", &config.to_string())]));
        assert_eq!(!model.tokenizer.prefix().is_empty(), expected, "{class}");
    }
}

#[test]
fn errors_name_the_file() {
    let missing = ModelText::from_dir(Path::new("/no/such/model"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        missing.contains("/no/such/model/tokenizer.json"),
        "{missing}"
    );
    let broken = model(&[("tokenizer_config.json", "{")]);
    let error = ModelText::from_dir(broken.path()).err().unwrap();
    assert!(
        matches!(error, LoadError::Read { ref path, .. } if path.ends_with("tokenizer_config.json")),
        "{error}"
    );
    let template = model(&[("chat_template.jinja", "line\n{% if %}")]);
    let error = ModelText::from_dir(template.path()).err().unwrap();
    assert!(
        matches!(error, LoadError::Template { .. }) && error.to_string().contains("line 2"),
        "{error}"
    );
    let decoder = model(&[]);
    let mut json = support::json("qwen3-small.tokenizer.json");
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    std::fs::write(decoder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let error = ModelText::from_dir(decoder.path())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("WordPiece"), "{error}");
    json["decoder"] = json!({"type": "ByteLevel"});
    json["model"]["vocab"]["far"] = json!(4_000_000_000_u32);
    std::fs::write(decoder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let error = ModelText::from_dir(decoder.path())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("below 2^24"), "{error}");
}

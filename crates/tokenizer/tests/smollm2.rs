//! SmolLM2-135M-Instruct's GGUF file against the ids that the model's published `tokenizer.json` gives.

mod support;

use std::path::Path;

use izar_tokenizer::{ChatEncoder, ChatOptions, EncodeOptions, GgufVocab, ModelText};
use serde_json::{Value, json};
use support::GgufFile;

fn load() -> ModelText {
    let path = support::smollm2_gguf();
    let vocab = GgufVocab::from_metadata(&GgufFile::open(&path)).unwrap();
    ModelText::from_gguf(&vocab, Path::new(&path)).unwrap()
}

#[test]
fn the_gguf_vocabulary_gives_the_published_ids() {
    let model = load();
    assert_eq!(model.tokenizer.vocab_size(), 49152);
    assert_eq!(model.tokenizer.backend(), "fastokens");
    assert_eq!(model.eos_ids, [0, 2]);
    let cases = support::json("smollm2-ids.json");
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = model
            .tokenizer
            .encode(text, EncodeOptions::default())
            .unwrap();
        assert_eq!(json!(ids), case["ids"], "{text:?}");
    }
}

#[test]
fn a_chat_becomes_the_prompt_the_model_was_trained_on() {
    let model = load();
    let chat = ChatEncoder::new(model.tokenizer.clone(), model.template.unwrap());
    let messages: [Value; 1] = [json!({"role": "user", "content": "Name the capital of France."})];
    let encoded = chat.encode(&messages, &ChatOptions::default()).unwrap();
    let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
        <|im_start|>user\nName the capital of France.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(encoded.text, expected);
    assert_eq!(model.tokenizer.decode(&encoded.ids, false), expected);
    let num_controls = encoded
        .ids
        .iter()
        .filter(|&&id| model.tokenizer.is_special(id))
        .count();
    assert_eq!(num_controls, 5);
}

//! A server over a mock engine, for tests and benches: a vocabulary of the 256 bytes, so that a token is a byte and every text can
//! be written token by token.

use std::sync::Arc;

use izar_ring::RingOptions;
use izar_server::{
    ReasoningFormat, SamplingDefaults, ServedModel, Server, ServerOptions, ToolFormat,
};
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens, Tokenizer};
use izar_transport::client::{ClientOptions, RingClient};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply};
use serde_json::{Map, Value, json};

/// Starts a message.
pub const IM_START: u32 = 256;
/// Ends a message: the end of sequence.
pub const IM_END: u32 = 257;
/// Token ids are below this.
pub const VOCAB_SIZE: u32 = 258;
/// The context of the mock model.
pub const MAX_MODEL_LEN: u32 = 512;

const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'function' %}{{ raise_exception('no functions here') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A mock that answers a prompt by `script`.
pub fn answering(script: impl Fn(&[u32]) -> Reply + Send + Sync + 'static) -> MockOptions {
    let mut options = MockOptions::scripted(move |_, prompt| script(prompt));
    options.vocab_size = VOCAB_SIZE;
    options.max_model_len = MAX_MODEL_LEN;
    options
}

/// The 256 bytes and two control tokens.
pub fn tokenizer() -> Arc<Tokenizer> {
    let vocab: Map<String, Value> = (0..=255_u8)
        .map(|byte| (char_of(byte).to_string(), byte.into()))
        .collect();
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(IM_START, "<|im_start|>"), added(IM_END, "<|im_end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Arc::new(Tokenizer::from_json(definition).expect("a valid definition"))
}

/// GPT-2's printable stand-in for a byte.
fn char_of(byte: u8) -> char {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if stands_for_itself(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&other| !stands_for_itself(other)).count() as u32;
    char::from_u32(256 + before).expect("a letter of Latin Extended-A")
}

/// A server named `mock`, not yet serving.
pub fn server(mock: MockOptions, options: ServerOptions) -> (Server, Arc<RingClient>, MockEngine) {
    let template = ChatTemplate::new(TEMPLATE, SpecialTokens::default()).expect("a template");
    let encoder = ChatEncoder::new(tokenizer(), template);
    server_with(
        encoder,
        vec![IM_END],
        &RingOptions::default(),
        mock,
        options,
    )
}

/// A server named `mock` with a text side and a ring of one's own, not yet serving.
pub fn server_with(
    encoder: ChatEncoder,
    eos_token_ids: Vec<u32>,
    ring: &RingOptions,
    mock: MockOptions,
    options: ServerOptions,
) -> (Server, Arc<RingClient>, MockEngine) {
    let (transport, engine) = MockEngine::in_process(ring, mock).expect("a ring");
    let client =
        Arc::new(RingClient::connect(transport, ClientOptions::default()).expect("a lease"));
    let server = server_over(Arc::clone(&client), encoder, eos_token_ids, options);
    (server, client, engine)
}

/// A server named `mock` over a client of one's own, not yet serving.
pub fn server_over(
    client: Arc<RingClient>,
    encoder: ChatEncoder,
    eos_token_ids: Vec<u32>,
    options: ServerOptions,
) -> Server {
    let templates = || encoder.template().sources();
    let tool_format = templates().find_map(|(_, source)| ToolFormat::detect(source));
    let reasoning_format = templates().find_map(|(_, source)| ReasoningFormat::detect(source));
    let model = ServedModel {
        names: vec!["mock".to_owned(), "other/name".to_owned()],
        root: "mock".to_owned(),
        tokenizer: Arc::clone(encoder.tokenizer()),
        tool_format,
        reasoning_format,
        chat: Some(encoder),
        eos_token_ids,
        defaults: SamplingDefaults::default(),
    };
    Server::new(model, client, options).expect("a server")
}

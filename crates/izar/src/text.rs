//! A model's text side: tokenizer, chat template, end-of-sequence ids, sampling defaults.

use std::path::Path;

use anyhow::{Context, Result};
use izar_model::{Checkpoint, Gguf};
use izar_server::{ReasoningFormat, SamplingDefaults, ToolFormat};
use izar_tokenizer::{ChatEncoder, ChatTemplate, GgufMetadata, GgufVocab, ModelText};

use crate::cli::{ReasoningParser, ServeArgs, ToolCallParser};

/// Loads the text side of `checkpoint`, which was opened from `path`; `template_file` replaces the model's chat template.
pub fn load(
    checkpoint: &Checkpoint,
    path: &Path,
    template_file: Option<&Path>,
) -> Result<ModelText> {
    let mut text = match checkpoint.gguf() {
        Some(gguf) => {
            let vocab = GgufVocab::from_metadata(&Metadata(gguf))
                .with_context(|| path.display().to_string())?;
            ModelText::from_gguf(&vocab, path)?
        }
        None => ModelText::from_dir(path)?,
    };
    if let Some(file) = template_file {
        let source = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read --chat-template {}", file.display()))?;
        let template = ChatTemplate::new(&source, text.special_tokens.clone());
        text.template =
            Some(template.with_context(|| format!("--chat-template {}", file.display()))?);
    }
    text.eos_ids.extend(&checkpoint.config().eos_token_ids);
    text.eos_ids
        .extend(&checkpoint.generation_config().eos_token_ids);
    text.eos_ids.sort_unstable();
    text.eos_ids.dedup();
    Ok(text)
}

/// The chat encoder, if the model has a template.
pub fn chat_encoder(text: &mut ModelText) -> Option<ChatEncoder> {
    let tokenizer = text.tokenizer.clone();
    text.template
        .take()
        .map(|template| ChatEncoder::new(tokenizer, template))
}

/// How the model writes tool calls and reasoning: what the flags say, or the first of its chat templates that tells.
pub fn message_formats(
    args: &ServeArgs,
    text: &ModelText,
) -> (Option<ToolFormat>, Option<ReasoningFormat>) {
    let templates = || text.template.iter().flat_map(ChatTemplate::sources);
    let tools = match args.tool_call_parser {
        ToolCallParser::Auto => templates().find_map(|(_, source)| ToolFormat::detect(source)),
        ToolCallParser::None => None,
        ToolCallParser::Hermes => Some(ToolFormat::Hermes),
        ToolCallParser::Llama3Json => Some(ToolFormat::Llama3Json),
        ToolCallParser::Phi4MiniJson => Some(ToolFormat::Phi4),
    };
    let reasoning = match args.reasoning_parser {
        ReasoningParser::Auto => {
            templates().find_map(|(_, source)| ReasoningFormat::detect(source))
        }
        ReasoningParser::None => None,
        ReasoningParser::Qwen3 => Some(ReasoningFormat::Qwen3),
        ReasoningParser::DeepseekR1 => Some(ReasoningFormat::DeepseekR1),
    };
    tracing::info!("tool calls: {tools:?}, reasoning: {reasoning:?}");
    (tools, reasoning)
}

/// What the model's generation configuration says about sampling, OpenAI's values where it is silent.
pub fn sampling_defaults(checkpoint: &Checkpoint) -> SamplingDefaults {
    let (config, openai) = (checkpoint.generation_config(), SamplingDefaults::default());
    SamplingDefaults {
        temperature: config.temperature.unwrap_or(openai.temperature),
        top_p: config.top_p.unwrap_or(openai.top_p),
        top_k: config.top_k.unwrap_or(openai.top_k),
        min_p: config.min_p.unwrap_or(openai.min_p),
        repetition_penalty: config
            .repetition_penalty
            .unwrap_or(openai.repetition_penalty),
    }
}

/// A GGUF file's metadata as the tokenizer reads it. A value of another type is as good as none.
struct Metadata<'a>(&'a Gguf);

impl GgufMetadata for Metadata<'_> {
    fn string(&self, key: &str) -> Option<String> {
        self.0.str(key).ok().flatten().map(str::to_owned)
    }

    fn unsigned(&self, key: &str) -> Option<u64> {
        self.0.u64(key).ok().flatten()
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        self.0.bool(key).ok().flatten()
    }

    fn strings(&self, key: &str) -> Option<Vec<String>> {
        self.0.strings(key).ok().flatten().map(<[String]>::to_vec)
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.0.f32s(key).ok().flatten().map(<[f32]>::to_vec)
    }

    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.0.ints(key).ok().flatten()
    }
}

//! Everything about text that a model directory or a GGUF file says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::added::AddedToken;
use crate::chat::{ChatTemplate, SpecialTokens, TemplateError};
use crate::definition::Definition;
use crate::error::TokenizerError;
use crate::gguf::GgufVocab;
use crate::tokenizer::Tokenizer;

/// Why a model's text side could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The tokenizer.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong.
        source: TokenizerError,
    },
    /// The chat template.
    #[error("{path}: {source}")]
    Template {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong.
        source: TemplateError,
    },
    /// A file beside the tokenizer is there but cannot be read.
    #[error("cannot read {path}: {message}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// A model's tokenizer, chat template and end-of-generation ids.
pub struct ModelText {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// The special tokens that templates see.
    pub special_tokens: SpecialTokens,
    /// Ids that end a generation: the union of what the tokenizer's and the generation configuration say, sorted.
    pub eos_ids: Vec<u32>,
}

impl ModelText {
    /// Loads a Hugging Face model directory: `tokenizer.json`, and where they exist `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja`, `chat_template.json`, `additional_chat_templates/*.jinja`,
    /// `generation_config.json` and `config.json`.
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        let at = |source| LoadError::Tokenizer {
            path: dir.into(),
            source,
        };
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let path = dir.join("tokenizer.json");
        let json = read_json(&path)?.ok_or_else(|| LoadError::Read {
            path: path.clone(),
            message: "no such file; Izar needs the fast tokenizer's file".into(),
        })?;
        let config = config.unwrap_or(Value::Null);
        let mut definition = Definition::from_json(json).map_err(at)?;
        definition
            .merge_added(configured_tokens(&config))
            .map_err(at)?;
        let special_tokens = special_tokens(&[
            &config,
            &read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default(),
        ]);
        apply_bos_setting(&mut definition, &config, &special_tokens);
        let tokenizer = Tokenizer::from_definition(definition).map_err(at)?;
        let sources = template_sources(dir, &config)?;
        let template = compile(dir, sources, &special_tokens)?;
        let mut eos_ids: Vec<u32> = special_tokens
            .eos_token
            .iter()
            .filter_map(|t| tokenizer.token_to_id(t))
            .collect();
        for file in ["generation_config.json", "config.json"] {
            eos_ids.extend(eos_of(&read_json(&dir.join(file))?.unwrap_or_default()));
        }
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            special_tokens,
            eos_ids: sorted(eos_ids),
        })
    }

    /// Loads from a GGUF file's metadata; `path` is for messages only.
    pub fn from_gguf(vocab: &GgufVocab, path: &Path) -> Result<Self, LoadError> {
        let tokenizer = Tokenizer::from_gguf(vocab).map_err(|source| LoadError::Tokenizer {
            path: path.into(),
            source,
        })?;
        let text = |id| vocab.token(id).map(str::to_owned);
        let special_tokens = SpecialTokens {
            bos_token: text(vocab.bos),
            eos_token: text(vocab.eos),
            unk_token: text(vocab.unknown),
            pad_token: text(vocab.padding),
            ..SpecialTokens::default()
        };
        let template = compile(path, vocab.chat_templates.clone(), &special_tokens)?;
        let eos_ids = vocab.eos_ids();
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            special_tokens,
            eos_ids,
        })
    }
}

fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn compile(
    path: &Path,
    sources: Vec<(String, String)>,
    special_tokens: &SpecialTokens,
) -> Result<Option<ChatTemplate>, LoadError> {
    if sources.is_empty() {
        return Ok(None);
    }
    let template = ChatTemplate::with_names(sources, special_tokens.clone());
    template.map(Some).map_err(|source| LoadError::Template {
        path: path.into(),
        source,
    })
}

/// A file's text; `None` if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(LoadError::Read {
            path: path.into(),
            message: e.to_string(),
        }),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let parse = |text: String| {
        serde_json::from_str(&text).map_err(|e| LoadError::Read {
            path: path.into(),
            message: e.to_string(),
        })
    };
    read_text(path)?.map(parse).transpose()
}

/// Added tokens that `tokenizer_config.json` declares.
fn configured_tokens(config: &Value) -> Vec<AddedToken> {
    let entries = config["added_tokens_decoder"]
        .as_object()
        .into_iter()
        .flatten();
    entries
        .filter_map(|(id, token)| {
            let mut token = token.clone();
            token
                .as_object_mut()?
                .insert("id".into(), id.parse::<u32>().ok()?.into());
            serde_json::from_value(token).ok()
        })
        .collect()
}

/// The special tokens that `configs` name; the first to name one wins. A token is a string or an object with `content`.
fn special_tokens(configs: &[&Value]) -> SpecialTokens {
    let text = |value: &Value| {
        value
            .as_str()
            .or_else(|| value["content"].as_str())
            .map(str::to_owned)
    };
    let find = |name: &str| configs.iter().find_map(|config| text(&config[name]));
    let fields = configs
        .iter()
        .filter_map(|config| config.as_object())
        .flat_map(Map::iter);
    let is_other = |name: &str| {
        name.ends_with("_token")
            && !matches!(name, "bos_token" | "eos_token" | "unk_token" | "pad_token")
    };
    let others = fields
        .filter(|(name, _)| is_other(name))
        .filter_map(|(name, value)| Some((name.clone(), text(value)?)));
    SpecialTokens {
        bos_token: find("bos_token"),
        eos_token: find("eos_token"),
        unk_token: find("unk_token"),
        pad_token: find("pad_token"),
        others: others.collect(),
    }
}

/// Llama tokenizers follow `add_bos_token` of their configuration rather than the file's post-processor.
fn apply_bos_setting(definition: &mut Definition, config: &Value, special_tokens: &SpecialTokens) {
    let is_llama = config["tokenizer_class"]
        .as_str()
        .is_some_and(|class| class.starts_with("Llama"));
    let bos = special_tokens.bos_token.as_deref();
    let bos = bos
        .and_then(|bos| definition.added.iter().find(|t| t.content == bos))
        .map(|t| t.id);
    match (config["add_bos_token"].as_bool().filter(|_| is_llama), bos) {
        (Some(false), Some(bos)) => definition.prefix.retain(|&id| id != bos),
        (Some(true), Some(bos)) if !definition.prefix.contains(&bos) => {
            definition.prefix.insert(0, bos)
        }
        _ => {}
    }
}

/// The model's chat templates by name. A file wins over `tokenizer_config.json`.
fn template_sources(dir: &Path, config: &Value) -> Result<Vec<(String, String)>, LoadError> {
    let mut sources = Vec::new();
    match &config["chat_template"] {
        Value::String(source) => sources.push(("default".to_owned(), source.clone())),
        Value::Array(list) => sources.extend(list.iter().filter_map(|entry| {
            Some((
                entry["name"].as_str()?.to_owned(),
                entry["template"].as_str()?.to_owned(),
            ))
        })),
        _ => {}
    }
    let json = read_json(&dir.join("chat_template.json"))?;
    let from_json = json
        .as_ref()
        .and_then(|json| json["chat_template"].as_str())
        .map(str::to_owned);
    let mut replace = |name: String, source: String| {
        sources.retain(|(n, _)| *n != name);
        sources.push((name, source));
    };
    if let Some(source) = read_text(&dir.join("chat_template.jinja"))?.or(from_json) {
        replace("default".to_owned(), source);
    }
    let more = std::fs::read_dir(dir.join("additional_chat_templates"));
    for entry in more.into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|stem| stem.to_str());
        if let (Some(name), Some("jinja")) = (name, path.extension().and_then(|e| e.to_str()))
            && let Some(source) = read_text(&path)?
        {
            replace(name.to_owned(), source);
        }
    }
    Ok(sources)
}

/// `eos_token_id`: an id or a list of ids.
fn eos_of(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        value => id(value).into_iter().collect(),
    }
}

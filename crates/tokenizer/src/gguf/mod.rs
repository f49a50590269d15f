//! Vocabularies inside GGUF files, turned into the equivalent `tokenizer.json`.
//!
//! A GGUF file keeps tokens, scores or merges, and a *name* for the rest: `tokenizer.ggml.model` says which algorithm
//! (`gpt2`: byte-level BPE, `llama`: SentencePiece BPE) and `tokenizer.ggml.pre` which pre-tokenizer. The result is
//! what the model's own `tokenizer.json` says, so that ids equal those of the original model; where `llama.cpp`
//! simplifies (it skips Qwen's NFC normalisation) the original is followed. An unknown name is an error: guessing
//! gives ids that are almost right.

mod bpe;
mod pre;
mod spm;

use serde_json::{Map, Value, json};

use crate::error::TokenizerError;

/// Read access to a GGUF file's metadata, so that this crate need not know the container format.
pub trait GgufMetadata {
    /// A string value.
    fn string(&self, key: &str) -> Option<String>;
    /// An integer value of any width that is not negative.
    fn unsigned(&self, key: &str) -> Option<u64>;
    /// A boolean value.
    fn boolean(&self, key: &str) -> Option<bool>;
    /// An array of strings.
    fn strings(&self, key: &str) -> Option<Vec<String>>;
    /// An array of floats.
    fn floats(&self, key: &str) -> Option<Vec<f32>>;
    /// An array of integers of any width.
    fn integers(&self, key: &str) -> Option<Vec<i64>>;
}

/// The vocabulary part of a GGUF file's metadata (`tokenizer.ggml.*`).
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `general.architecture`; Phi-3's SentencePiece vocabulary has rules of its own.
    pub architecture: String,
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`; absent in old files, which then mean `default`.
    pub pre: Option<String>,
    /// Every token's text, in id order.
    pub tokens: Vec<String>,
    /// Every token's score (SentencePiece); may be empty for `gpt2`.
    pub scores: Vec<f32>,
    /// Every token's type; empty means all normal.
    pub token_types: Vec<TokenType>,
    /// BPE merges, `left right`, most important first.
    pub merges: Vec<String>,
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn, where it differs from `eos`.
    pub eot: Option<u32>,
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
    /// Put BOS before a text; absent means what `model` and `pre` usually do.
    pub add_bos: Option<bool>,
    /// Put EOS after a text.
    pub add_eos: Option<bool>,
    /// Put a space before a text (SentencePiece); absent means yes.
    pub add_space_prefix: Option<bool>,
    /// Chat templates by name; the unnamed one is `default`.
    pub chat_templates: Vec<(String, String)>,
}

/// Control tokens that end a turn (ChatML, Llama 3, Phi, Gemma) or a text (GPT, DeepSeek).
const ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<｜end▁of▁sentence｜>",
];

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// An ordinary token.
    Normal,
    /// The unknown token.
    Unknown,
    /// A control token.
    Control,
    /// Matched in the text itself, but not a control token.
    UserDefined,
    /// A placeholder that no text gives.
    Unused,
    /// One byte, written `<0x41>`.
    Byte,
}

impl GgufVocab {
    /// Collects the vocabulary from a file's metadata.
    pub fn from_metadata(gguf: &dyn GgufMetadata) -> Result<Self, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let missing = |name: &str| bad(format!("{} is missing", key(name)), "it to be there");
        let id = |name: &str| {
            gguf.unsigned(&key(name))
                .and_then(|id| u32::try_from(id).ok())
        };
        let types = gguf.integers(&key("token_type")).unwrap_or_default();
        Ok(Self {
            architecture: gguf.string("general.architecture").unwrap_or_default(),
            model: gguf.string(&key("model")).ok_or_else(|| missing("model"))?,
            pre: gguf.string(&key("pre")),
            tokens: gguf
                .strings(&key("tokens"))
                .ok_or_else(|| missing("tokens"))?,
            scores: gguf.floats(&key("scores")).unwrap_or_default(),
            token_types: types
                .into_iter()
                .map(TokenType::from_gguf)
                .collect::<Result<_, _>>()?,
            merges: gguf.strings(&key("merges")).unwrap_or_default(),
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            eot: id("eot_token_id"),
            unknown: id("unknown_token_id"),
            padding: id("padding_token_id"),
            add_bos: gguf.boolean(&key("add_bos_token")),
            add_eos: gguf.boolean(&key("add_eos_token")),
            add_space_prefix: gguf.boolean(&key("add_space_prefix")),
            chat_templates: read_templates(gguf),
        })
    }

    /// The equivalent `tokenizer.json`.
    pub fn to_tokenizer_json(&self) -> Result<Value, TokenizerError> {
        self.check()?;
        let mut json = match self.model.as_str() {
            "gpt2" => bpe::definition(self)?,
            "llama" => spm::definition(self)?,
            other => return Err(TokenizerError::UnknownGgufModel(other.into())),
        };
        json["version"] = "1.0".into();
        json["post_processor"] = self.frame();
        Ok(json)
    }

    /// Ids that end a generation: EOS, end of turn, and control tokens that are known by name to end turns or texts
    /// (files have room for two ids only, and chat models often have three). Sorted.
    pub fn eos_ids(&self) -> Vec<u32> {
        let named = self
            .entries()
            .filter(|(_, token, kind)| *kind == TokenType::Control && ENDS.contains(token));
        let mut ids: Vec<u32> = self
            .eos
            .into_iter()
            .chain(self.eot)
            .chain(named.map(|(id, _, _)| id))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The text of a token.
    pub(crate) fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    fn kind(&self, id: usize) -> TokenType {
        self.token_types
            .get(id)
            .copied()
            .unwrap_or(TokenType::Normal)
    }

    /// Ids, texts and types in id order.
    fn entries(&self) -> impl Iterator<Item = (u32, &str, TokenType)> {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (id as u32, token.as_str(), self.kind(id)))
    }

    /// The model's vocabulary. All tokens are in it, so that ids have no holes; a text only gives those that merges or
    /// the added tokens lead to.
    fn model_vocab(&self) -> Result<Map<String, Value>, TokenizerError> {
        let mut vocab = Map::with_capacity(self.tokens.len());
        for (id, token, kind) in self.entries() {
            if let Some(other) = vocab.insert(token.to_owned(), id.into())
                && kind == TokenType::Normal
            {
                return Err(bad(
                    format!("token {token:?} has the ids {other} and {id}"),
                    "one id per token",
                ));
            }
        }
        Ok(vocab)
    }

    fn check(&self) -> Result<(), TokenizerError> {
        let len = self.tokens.len();
        if len == 0 || u32::try_from(len).is_err() {
            return Err(bad(
                format!("{len} tokens"),
                "at least one and fewer than 2^32",
            ));
        }
        let per_token = [
            ("scores", self.scores.len()),
            ("token_type", self.token_types.len()),
        ];
        for (name, have) in per_token {
            if have != 0 && have != len {
                return Err(bad(
                    format!("{have} entries in tokenizer.ggml.{name}"),
                    format!("{len}, one per token"),
                ));
            }
        }
        for (name, id) in [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("unknown", self.unknown),
        ] {
            if id.is_some_and(|id| id as usize >= len) {
                return Err(bad(
                    format!("{name} token id {id:?}"),
                    format!("an id below {len}"),
                ));
            }
        }
        Ok(())
    }

    /// Added tokens: control tokens (special) and user-defined ones.
    fn added_tokens(&self) -> Vec<Value> {
        let rstrip = self.strips_right();
        self.entries()
            .filter(|(_, token, kind)| {
                !token.is_empty()
                    && matches!(
                        kind,
                        TokenType::Control | TokenType::UserDefined | TokenType::Unknown
                    )
            })
            .map(|(id, token, kind)| {
                let special = kind != TokenType::UserDefined;
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false,
                    "rstrip": rstrip(token, special), "normalized": false, "special": special,
                })
            })
            .collect()
    }

    /// Phi-3's control tokens swallow the white space after them, except those it inherits from Llama 2.
    fn strips_right(&self) -> impl Fn(&str, bool) -> bool {
        let is_phi3 = self.architecture == "phi3" && self.model == "llama";
        move |token, special| {
            is_phi3 && special && !matches!(token, "<unk>" | "<s>" | "<|endoftext|>")
        }
    }

    fn frame(&self) -> Value {
        let adds_bos = self.add_bos.unwrap_or_else(|| match self.model.as_str() {
            "llama" => true,
            _ => self.pre.as_deref().is_some_and(pre::adds_bos),
        });
        let bos = self.bos.filter(|_| adds_bos);
        let eos = self.eos.filter(|_| self.add_eos == Some(true));
        if bos.is_none() && eos.is_none() {
            return Value::Null;
        }
        let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
        let mut tokens = Map::new();
        if let Some(id) = bos {
            single.insert(0, special("bos"));
            tokens.insert(
                "bos".into(),
                json!({"id": "bos", "ids": [id], "tokens": [self.token(bos)]}),
            );
        }
        if let Some(id) = eos {
            single.push(special("eos"));
            tokens.insert(
                "eos".into(),
                json!({"id": "eos", "ids": [id], "tokens": [self.token(eos)]}),
            );
        }
        json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens})
    }
}

impl TokenType {
    fn from_gguf(code: i64) -> Result<Self, TokenizerError> {
        Ok(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return Err(bad(format!("token type {code}"), "1 to 6")),
        })
    }
}

fn bad(what: impl Into<String>, expected: impl Into<String>) -> TokenizerError {
    TokenizerError::BadGgufVocab {
        what: what.into(),
        expected: expected.into(),
    }
}

fn read_templates(gguf: &dyn GgufMetadata) -> Vec<(String, String)> {
    let default = gguf
        .string("tokenizer.chat_template")
        .map(|t| ("default".to_owned(), t));
    let names = gguf.strings("tokenizer.chat_templates").unwrap_or_default();
    let named = names.into_iter().filter_map(|name| {
        let source = gguf.string(&format!("tokenizer.chat_template.{name}"))?;
        Some((name, source))
    });
    default.into_iter().chain(named).collect()
}

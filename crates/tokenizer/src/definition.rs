//! What Izar reads out of a `tokenizer.json` itself: added tokens, the ids that frame a text, and how tokens turn
//! back into bytes.
//!
//! The back ends get the same JSON without its post-processor, decoder, truncation and padding: framing and decoding
//! are done here (so that both back ends agree on them by construction), and a server never truncates or pads.

use serde_json::Value;

use crate::added::AddedToken;
use crate::error::TokenizerError;

/// Tables by id have this many entries at most; no vocabulary comes near.
const MAX_IDS: u32 = 1 << 24;

/// A parsed `tokenizer.json`.
pub(crate) struct Definition {
    /// The JSON for the back ends.
    pub json: Value,
    /// The added vocabulary, in file order.
    pub added: Vec<AddedToken>,
    /// Every token of the model's own vocabulary with its id.
    pub vocab: Vec<(u32, String)>,
    /// Ids put before a text when special tokens are asked for.
    pub prefix: Vec<u32>,
    /// Ids put after a text when special tokens are asked for.
    pub suffix: Vec<u32>,
    /// How tokens become bytes.
    pub decoder: DecoderRules,
}

/// How tokens become bytes: the parts of Hugging Face's decoders that language models use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecoderRules {
    /// Token characters stand for bytes (GPT-2's alphabet).
    pub byte_level: bool,
    /// Literal replacements, in order (SentencePiece: `▁` to a space).
    pub replace: Vec<(String, String)>,
    /// `<0x0A>` is the byte 0x0A.
    pub byte_fallback: bool,
    /// What happens at the start of a text.
    pub start: StartRule,
}

/// What is dropped at the start of a decoded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StartRule {
    /// Nothing.
    #[default]
    Keep,
    /// One leading space of the whole text (`Strip` after `Fuse`).
    StripOneSpace,
    /// Every space of the first token (`Metaspace` with a prepend scheme).
    BareFirstToken,
}

impl Definition {
    /// Reads a definition from parsed JSON.
    pub fn from_json(mut json: Value) -> Result<Self, TokenizerError> {
        let added = match &json["added_tokens"] {
            Value::Null => Vec::new(),
            list => serde_json::from_value(list.clone())
                .map_err(|e| malformed(format!("added_tokens: {e}"), "a list of added tokens"))?,
        };
        let vocab = read_vocab(&json["model"])?;
        let ids = vocab
            .iter()
            .map(|(id, _)| *id)
            .chain(added.iter().map(|t: &AddedToken| t.id));
        if ids.max().is_some_and(|id| id >= MAX_IDS) {
            return Err(malformed("a token id", "an id below 2^24"));
        }
        let (prefix, suffix) = read_frame(&json["post_processor"])?;
        let decoder = read_decoder(&json["decoder"])?;
        let Some(object) = json.as_object_mut() else {
            return Err(malformed("the file", "a JSON object"));
        };
        for part in ["post_processor", "decoder", "truncation", "padding"] {
            object.insert(part.into(), Value::Null);
        }
        Ok(Self {
            json,
            added,
            vocab,
            prefix,
            suffix,
            decoder,
        })
    }

    /// Adds tokens that only `tokenizer_config.json` declares, and updates the flags of those both declare.
    pub fn merge_added(&mut self, tokens: Vec<AddedToken>) -> Result<(), TokenizerError> {
        for token in tokens {
            match self.added.iter_mut().find(|t| t.id == token.id) {
                Some(known) => *known = token,
                None => self.added.push(token),
            }
        }
        self.added.sort_by_key(|t| t.id);
        self.json["added_tokens"] = serde_json::to_value(&self.added)?;
        Ok(())
    }

    /// Whether the model's pre-tokenizer puts a space before the first piece of a text only.
    pub fn prepends_first_only(&self) -> bool {
        fn is_first(step: &Value) -> bool {
            let nested = step["pretokenizers"].as_array();
            (step["type"] == "Metaspace" && step["prepend_scheme"] == "first")
                || nested.is_some_and(|steps| steps.iter().any(is_first))
        }
        is_first(&self.json["pre_tokenizer"])
    }
}

pub(crate) fn malformed(what: impl Into<String>, expected: &'static str) -> TokenizerError {
    TokenizerError::Malformed {
        what: what.into(),
        expected,
    }
}

/// BPE, WordPiece and WordLevel keep a map, Unigram a list of `[token, score]`.
fn read_vocab(model: &Value) -> Result<Vec<(u32, String)>, TokenizerError> {
    let id_of = |id: u64| u32::try_from(id).map_err(|_| malformed("model.vocab", "ids below 2^24"));
    match &model["vocab"] {
        Value::Object(map) => map
            .iter()
            .map(|(token, id)| {
                let id = id
                    .as_u64()
                    .ok_or_else(|| malformed(format!("model.vocab[{token:?}]"), "an id"))?;
                Ok((id_of(id)?, token.clone()))
            })
            .collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(id, entry)| {
                let token = entry[0]
                    .as_str()
                    .ok_or_else(|| malformed(format!("model.vocab[{id}]"), "[token, score]"))?;
                Ok((id_of(id as u64)?, token.to_owned()))
            })
            .collect(),
        _ => Err(malformed(
            "model.vocab",
            "a map from token to id, or a list",
        )),
    }
}

/// The ids before and after `$A` that the post-processor adds to a single text.
fn read_frame(step: &Value) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let id = |v: &Value| {
        v.as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| malformed("post_processor", "token ids"))
    };
    match step["type"].as_str() {
        None if step.is_null() => Ok((Vec::new(), Vec::new())),
        Some("ByteLevel") => Ok((Vec::new(), Vec::new())),
        Some("BertProcessing" | "RobertaProcessing") => {
            Ok((vec![id(&step["cls"][1])?], vec![id(&step["sep"][1])?]))
        }
        Some("Sequence") => {
            let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
            for inner in step["processors"].as_array().into_iter().flatten() {
                let (before, after) = read_frame(inner)?;
                prefix.splice(0..0, before);
                suffix.extend(after);
            }
            Ok((prefix, suffix))
        }
        Some("TemplateProcessing") => {
            let (mut prefix, mut suffix, mut seen_text) = (Vec::new(), Vec::new(), false);
            let pieces = step["single"]
                .as_array()
                .ok_or_else(|| malformed("post_processor.single", "a list"))?;
            for piece in pieces {
                if piece.get("Sequence").is_some() {
                    seen_text = true;
                } else if let Some(name) = piece["SpecialToken"]["id"].as_str() {
                    let ids = step["special_tokens"][name]["ids"].as_array();
                    let ids = ids.ok_or_else(|| {
                        malformed(format!("post_processor token {name:?}"), "ids")
                    })?;
                    for value in ids {
                        (if seen_text { &mut suffix } else { &mut prefix }).push(id(value)?);
                    }
                }
            }
            Ok((prefix, suffix))
        }
        other => Err(malformed(
            format!("post_processor type {other:?}"),
            "TemplateProcessing, ByteLevel, Sequence, BertProcessing or RobertaProcessing",
        )),
    }
}

/// Folds the decoder steps into [`DecoderRules`]; a step that does not fit is refused rather than approximated.
fn read_decoder(decoder: &Value) -> Result<DecoderRules, TokenizerError> {
    let mut rules = DecoderRules::default();
    let mut fused = false;
    let single = std::slice::from_ref(decoder);
    let steps = decoder["decoders"].as_array().map_or(single, Vec::as_slice);
    for step in steps {
        let kind = step["type"].as_str().unwrap_or("none");
        match kind {
            "ByteLevel" => {
                rules.byte_level = true;
                fused = true;
            }
            "Replace" if !fused => {
                let (from, to) = (step["pattern"]["String"].as_str(), step["content"].as_str());
                let (Some(from), Some(to)) = (from, to) else {
                    return Err(TokenizerError::UnsupportedDecoder(step.to_string()));
                };
                rules.replace.push((from.into(), to.into()));
            }
            "ByteFallback" if !fused => rules.byte_fallback = true,
            "Fuse" => fused = true,
            "Strip"
                if fused && step["content"] == " " && step["start"] == 1 && step["stop"] == 0 =>
            {
                rules.start = StartRule::StripOneSpace;
            }
            "Metaspace" if !fused => {
                let mark = step["replacement"].as_str().unwrap_or("\u{2581}");
                rules.replace.push((mark.into(), " ".into()));
                let never = step["prepend_scheme"] == "never"
                    || (step["prepend_scheme"].is_null() && step["add_prefix_space"] == false);
                if !never {
                    rules.start = StartRule::BareFirstToken;
                }
            }
            _ => return Err(TokenizerError::UnsupportedDecoder(step.to_string())),
        }
    }
    Ok(rules)
}

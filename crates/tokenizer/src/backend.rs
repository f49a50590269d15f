//! The encoders behind [`crate::Tokenizer`]: `fastokens`, or Hugging Face's `tokenizers`.
//!
//! Both get the same definition and give the model's ids for one piece of text, without framing. `fastokens` is used
//! only if it accepts the definition and gives the reference's ids for the texts of the self-check; otherwise, and if
//! it ever fails on a text, `tokenizers` encodes.

use std::sync::OnceLock;

use fastokens::AddedTokenPolicy;
use tokenizers::{AddedVocabulary, Tokenizer as Reference};

use crate::definition::Definition;
use crate::error::{EncodeError, TokenizerError};

mod selfcheck;

/// Which added tokens are matched in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    All,
    /// All but the special ones, which are text.
    Ordinary,
    /// None: they are all text.
    None,
}

/// Where a piece stands in its text: SentencePiece vocabularies may put a space before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Start,
    Later,
}

/// The encoder in use.
pub(crate) enum Backend {
    Fast(Box<Fast>),
    Reference(Box<ReferenceSet>),
}

/// `fastokens`, with the definition kept so that a text it fails on can go to the reference.
pub(crate) struct Fast {
    tokenizer: fastokens::Tokenizer,
    json: Vec<u8>,
    fallback: OnceLock<Option<ReferenceSet>>,
}

/// `tokenizers` holds which added tokens it matches as a property of the whole tokenizer, so there is one instance per
/// way of encoding, made when first needed.
pub(crate) struct ReferenceSet {
    all: Reference,
    ordinary: OnceLock<Reference>,
    none: OnceLock<Reference>,
    /// `none` for a piece that is not at the start; only where the pre-tokenizer cares.
    later: Option<OnceLock<Reference>>,
}

impl Backend {
    /// Chooses a back end for `definition`; says in the log why it is not the fast one.
    pub fn new(definition: Definition) -> Result<Self, TokenizerError> {
        let json = serde_json::to_vec(&definition.json)?;
        if definition.prepends_first_only() {
            tracing::info!(
                "encoding with `tokenizers`: fastokens does not know a space before the first piece only"
            );
            return Ok(Self::Reference(Box::new(ReferenceSet::from_json(
                &json, true,
            )?)));
        }
        let (fast, reference) = std::thread::scope(|scope| {
            let fast = scope.spawn(|| fastokens::Tokenizer::from_json(definition.json));
            let reference = ReferenceSet::from_json(&json, false);
            (fast.join(), reference)
        });
        let reference = reference?;
        let reason = match fast {
            Ok(Ok(tokenizer)) => {
                let fast = Fast {
                    tokenizer,
                    json,
                    fallback: OnceLock::new(),
                };
                match selfcheck::first_difference(&fast, &reference) {
                    None => return Ok(Self::Fast(Box::new(fast))),
                    Some(text) => format!("fastokens gives other ids for {text:?}"),
                }
            }
            Ok(Err(error)) => format!("fastokens refuses this vocabulary: {error}"),
            Err(_) => "fastokens panicked on this vocabulary".to_owned(),
        };
        tracing::warn!("encoding with `tokenizers`, which is slower: {reason}");
        Ok(Self::Reference(Box::new(reference)))
    }

    /// The name of the crate that encodes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fast(_) => "fastokens",
            Self::Reference(_) => "tokenizers",
        }
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Fast(fast) => fast.tokenizer.token_to_id(token),
            Self::Reference(reference) => reference.all.token_to_id(token),
        }
    }

    /// Appends the ids of `text` to `out`.
    pub fn encode(
        &self,
        text: &str,
        added: Added,
        place: Place,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        match self {
            Self::Fast(fast) => fast.encode(text, added, place, out),
            Self::Reference(reference) => reference.encode(text, added, place, out),
        }
    }
}

impl Fast {
    fn try_encode(&self, text: &str, added: Added) -> Result<Vec<u32>, fastokens::Error> {
        let policy = match added {
            Added::All => AddedTokenPolicy::All,
            Added::Ordinary => AddedTokenPolicy::SkipSpecial,
            Added::None => AddedTokenPolicy::None,
        };
        self.tokenizer.encode_with_policy(text, false, policy)
    }

    fn encode(
        &self,
        text: &str,
        added: Added,
        place: Place,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        match self.try_encode(text, added) {
            Ok(ids) => {
                out.extend_from_slice(&ids);
                Ok(())
            }
            Err(error) => {
                tracing::debug!("fastokens failed on a text, `tokenizers` encodes it: {error}");
                let reference = self
                    .fallback
                    .get_or_init(|| ReferenceSet::from_json(&self.json, false).ok());
                match reference {
                    Some(reference) => reference.encode(text, added, place, out),
                    None => Err(EncodeError(error.to_string())),
                }
            }
        }
    }
}

impl ReferenceSet {
    fn from_json(json: &[u8], first_only: bool) -> Result<Self, TokenizerError> {
        let all =
            Reference::from_bytes(json).map_err(|e| TokenizerError::Refused(e.to_string()))?;
        Ok(Self {
            all,
            ordinary: OnceLock::new(),
            none: OnceLock::new(),
            later: first_only.then(OnceLock::new),
        })
    }

    fn get(&self, added: Added, place: Place) -> &Reference {
        match (added, place, &self.later) {
            (Added::All, _, _) => &self.all,
            (Added::Ordinary, _, _) => self.ordinary.get_or_init(|| {
                let mut ordinary = self.all.clone();
                ordinary.set_encode_special_tokens(true);
                ordinary
            }),
            (Added::None, Place::Later, Some(later)) => later.get_or_init(|| {
                let mut later = self.get(Added::None, Place::Start).clone();
                let step = later.get_pre_tokenizer().cloned().map(without_prepend);
                later.with_pre_tokenizer(step);
                later
            }),
            (Added::None, _, _) => self.none.get_or_init(|| {
                let mut none = self.all.clone();
                none.with_added_vocabulary(AddedVocabulary::new());
                none
            }),
        }
    }

    fn encode(
        &self,
        text: &str,
        added: Added,
        place: Place,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let encoding = self
            .get(added, place)
            .encode_fast(text, false)
            .map_err(|e| EncodeError(e.to_string()))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

fn without_prepend(step: tokenizers::PreTokenizerWrapper) -> tokenizers::PreTokenizerWrapper {
    use tokenizers::PreTokenizerWrapper as Step;
    use tokenizers::pre_tokenizers::metaspace::PrependScheme;
    match step {
        Step::Metaspace(mut metaspace) => {
            metaspace.set_prepend_scheme(PrependScheme::Never);
            Step::Metaspace(metaspace)
        }
        Step::Sequence(sequence) => {
            let steps = sequence
                .as_ref()
                .iter()
                .cloned()
                .map(without_prepend)
                .collect();
            Step::Sequence(tokenizers::pre_tokenizers::sequence::Sequence::new(steps))
        }
        other => other,
    }
}

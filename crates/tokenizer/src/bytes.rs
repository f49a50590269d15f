//! The table of token bytes: what every id stands for, laid end to end.

use crate::added::AddedToken;
use crate::definition::{DecoderRules, StartRule};

/// Bytes and flags of every id below `len()`. Ids that no token has (padding of the embedding matrix) are empty.
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// `bytes[ends[id - 1]..ends[id]]` is the token.
    ends: Vec<u32>,
    special: Vec<bool>,
    pub start: StartRule,
}

impl TokenBytes {
    /// Builds the table for ids `0..=max id` from the model's vocabulary and the added tokens (which win).
    pub fn new(vocab: &[(u32, String)], added: &[AddedToken], rules: &DecoderRules) -> Self {
        let max = vocab
            .iter()
            .map(|(id, _)| *id)
            .chain(added.iter().map(|t| t.id))
            .max();
        let len = max.map_or(0, |id| id as usize + 1);
        let mut tokens: Vec<&str> = vec![""; len];
        let mut special = vec![false; len];
        for (id, token) in vocab {
            tokens[*id as usize] = token;
        }
        for token in added {
            tokens[token.id as usize] = &token.content;
            special[token.id as usize] = token.special;
        }
        let alphabet = byte_alphabet();
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(len),
            special,
            start: rules.start,
        };
        for token in tokens {
            append_token(token, rules, &alphabet, &mut table.bytes);
            table.ends.push(
                u32::try_from(table.bytes.len()).expect("a vocabulary's text is far below 4 GiB"),
            );
        }
        table
    }

    /// Number of ids, used or not.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of `id`; empty for an id outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether `id` is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

fn append_token(
    token: &str,
    rules: &DecoderRules,
    alphabet: &[Option<u8>; 512],
    out: &mut Vec<u8>,
) {
    let byte_of = |c: char| alphabet.get(c as usize).copied().flatten();
    if rules.byte_level {
        // A token with a character outside the alphabet is literal as a whole, as in Hugging Face's decoder.
        if token.chars().all(|c| byte_of(c).is_some()) {
            out.extend(token.chars().filter_map(byte_of));
        } else {
            out.extend_from_slice(token.as_bytes());
        }
        return;
    }
    let mut token = std::borrow::Cow::Borrowed(token);
    for (from, to) in &rules.replace {
        if token.contains(from.as_str()) {
            token = token.replace(from.as_str(), to).into();
        }
    }
    match fallback_byte(&token).filter(|_| rules.byte_fallback) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(token.as_bytes()),
    }
}

/// The byte that `<0x41>` stands for.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// GPT-2's alphabet, inverted: which byte a character stands for. Printable Latin-1 stands for itself, the other
/// bytes are numbered from U+0100 (Radford et al. 2019, `bytes_to_unicode`).
fn byte_alphabet() -> [Option<u8>; 512] {
    let mut byte_of = [None; 512];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let is_itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_itself { usize::from(byte) } else { next };
        next += usize::from(!is_itself);
        byte_of[code] = Some(byte);
    }
    byte_of
}

//! What the tests share: fixtures, and a reader for GGUF metadata.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use izar_tokenizer::GgufMetadata;

/// Metadata of a GGUF file, read in memory. Trusts the file: for tests only.
pub struct GgufFile {
    values: HashMap<String, Meta>,
}

enum Meta {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Meta>),
}

impl GgufFile {
    pub fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut reader = Reader { bytes: &bytes };
        assert_eq!(reader.take(4), b"GGUF", "{}", path.display());
        assert!(reader.u32() >= 2, "{}: GGUF version", path.display());
        let _tensors = reader.u64();
        let num_values = reader.u64();
        let values = (0..num_values).map(|_| {
            let key = reader.text();
            let kind = reader.u32();
            (key, reader.value(kind))
        });
        Self {
            values: values.collect(),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.bytes.split_at(len);
        self.bytes = tail;
        head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8_lossy(self.take(len)).into_owned()
    }

    fn value(&mut self, kind: u32) -> Meta {
        match kind {
            0 => Meta::Int(self.take(1)[0].into()),
            1 => Meta::Int((self.take(1)[0] as i8).into()),
            2 => Meta::Int(u16::from_le_bytes(self.take(2).try_into().unwrap()).into()),
            3 => Meta::Int(i16::from_le_bytes(self.take(2).try_into().unwrap()).into()),
            4 => Meta::Int(self.u32().into()),
            5 => Meta::Int((self.u32() as i32).into()),
            6 => Meta::Float(f32::from_bits(self.u32()).into()),
            7 => Meta::Bool(self.take(1)[0] != 0),
            8 => Meta::Text(self.text()),
            9 => {
                let kind = self.u32();
                let len = self.u64();
                Meta::List((0..len).map(|_| self.value(kind)).collect())
            }
            10 | 11 => Meta::Int(self.u64() as i64),
            12 => Meta::Float(f64::from_bits(self.u64())),
            other => panic!("GGUF value type {other}"),
        }
    }
}

impl GgufMetadata for GgufFile {
    fn string(&self, key: &str) -> Option<String> {
        match self.values.get(key)? {
            Meta::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn unsigned(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Meta::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        match self.values.get(key)? {
            Meta::Bool(b) => Some(*b),
            _ => None,
        }
    }

    fn strings(&self, key: &str) -> Option<Vec<String>> {
        self.list(key, |m| match m {
            Meta::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.list(key, |m| match m {
            Meta::Float(x) => Some(*x as f32),
            _ => None,
        })
    }

    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.list(key, |m| match m {
            Meta::Int(n) => Some(*n),
            _ => None,
        })
    }
}

impl GgufFile {
    fn list<T>(&self, key: &str, item: impl Fn(&Meta) -> Option<T>) -> Option<Vec<T>> {
        match self.values.get(key)? {
            Meta::List(items) => items.iter().map(item).collect(),
            _ => None,
        }
    }
}

/// A file of this crate's `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// SmolLM2-135M-Instruct as GGUF: `IZAR_TEST_MODEL`, or where `scripts/fetch-model` puts it.
pub fn smollm2_gguf() -> PathBuf {
    let default = ".cache/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path =
        std::env::var_os("IZAR_TEST_MODEL").map_or_else(|| root.join(default), PathBuf::from);
    assert!(
        path.is_file(),
        "{} is missing: run scripts/fetch-model, or set IZAR_TEST_MODEL",
        path.display()
    );
    path
}

/// The parsed JSON of a fixture.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

/// A small generator of the same numbers on every run (Steele et al., SplitMix).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// `num` texts: slices of `texts.txt` in every script, some joined, some with one of `tokens` written in them.
pub fn slices(num: usize, tokens: &[String], random: &mut Random) -> Vec<String> {
    let text: Vec<char> = std::fs::read_to_string(data("texts.txt"))
        .unwrap()
        .chars()
        .collect();
    let slice = |random: &mut Random| {
        let longest = [3, 12, 40, 200][random.below(4)];
        let start = random.below(text.len());
        let end = (start + 1 + random.below(longest)).min(text.len());
        text[start..end].iter().collect::<String>()
    };
    let one = |random: &mut Random| {
        let mut out = slice(random);
        if random.below(3) == 0 {
            out.push_str(&slice(random));
        }
        if random.below(3) == 0 && !tokens.is_empty() {
            out.push_str(&tokens[random.below(tokens.len())]);
            out.push_str(&slice(random));
        }
        out
    };
    (0..num).map(|_| one(random)).collect()
}

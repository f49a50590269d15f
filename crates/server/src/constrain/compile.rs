//! From a format to a grammar, once: the vocabulary's tables, the compiler, and what it made lately.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use izar_tokenizer::Tokenizer;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::SimpleVob;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::vocabulary::token_env;
use super::{ConstraintError, Format, MAX_WHITESPACE};

/// Longest text of a format, bytes.
const MAX_FORMAT_BYTES: usize = 256 << 10;
/// Longest compilation. The compiler's own limits on work end it well before on an idle machine.
const MAX_COMPILE_TIME: Duration = Duration::from_secs(10);
/// Grammars are compiled by recursion, as deep as they are nested.
const COMPILE_STACK_BYTES: usize = 64 << 20;
/// Compiled formats that are kept.
const MAX_CACHED: usize = 64;
/// Longest complaint of the compiler that is passed on, bytes.
const MAX_COMPLAINT_BYTES: usize = 400;

/// A compiled format. Cheap to clone; every sequence gets a matcher of its own.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>);

struct Compiled {
    /// A matcher at the start. The lock is held to copy it.
    fresh: Mutex<Matcher>,
    /// What the first token may be, as the grammar compiler lays it out.
    first: SimpleVob,
}

impl Constraint {
    /// A matcher at the start of an answer.
    pub(crate) fn matcher(&self) -> Matcher {
        // A copy leaves the original as it is, even where it panics.
        let fresh = self.0.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.clone()
    }

    /// What the first token of an answer may be: one bit per vocabulary entry, low bit first.
    pub(crate) fn first_mask(&self) -> &[u32] {
        self.0.first.as_slice()
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

/// The compiler of formats for one vocabulary. Its tables are built for the first format that needs them.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: u32,
    eos_token_ids: Vec<u32>,
    factory: OnceLock<Result<Arc<ParserFactory>, ConstraintError>>,
    /// Latest use last.
    cache: Mutex<Vec<(String, Constraint)>>,
}

impl Grammars {
    /// A compiler for `vocab_size` token ids, of which `eos_token_ids` end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: u32, eos_token_ids: Vec<u32>) -> Self {
        Self {
            tokenizer,
            vocab_size,
            eos_token_ids,
            factory: OnceLock::new(),
            cache: Mutex::default(),
        }
    }

    /// Compiles `format`, or finds what it was compiled to lately. Blocks for up to seconds: not for the threads that stream.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub fn compile(&self, format: &Format) -> Result<Constraint, ConstraintError> {
        let key = key_of(format);
        if key.len() > MAX_FORMAT_BYTES {
            return Err(ConstraintError::TooLarge {
                limit_bytes: MAX_FORMAT_BYTES,
            });
        }
        if let Some(constraint) = self.cached(&key) {
            return Ok(constraint);
        }
        let factory = self.factory()?;
        let grammar = grammar_of(format)?;
        let compiled = compile_apart(factory, grammar);
        let constraint = Constraint(Arc::new(compiled.map_err(|why| redacted(why, &key))?));
        self.keep(key, &constraint);
        Ok(constraint)
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, ConstraintError> {
        let made = self.factory.get_or_init(|| {
            let env = token_env(&self.tokenizer, self.vocab_size, &self.eos_token_ids)?;
            let mut factory = ParserFactory::new_simple(&env).map_err(refused)?;
            factory.quiet().limits_mut().verbose_errors = false;
            Ok(Arc::new(factory))
        });
        made.clone()
    }

    fn cached(&self, key: &str) -> Option<Constraint> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(cached, _)| cached == key)?;
        let entry = cache.remove(at);
        let constraint = entry.1.clone();
        cache.push(entry);
        Some(constraint)
    }

    fn keep(&self, key: String, constraint: &Constraint) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.remove(0);
        }
        cache.push((key, constraint.clone()));
    }
}

/// Compiles on a thread with a deep stack, whose panics are refusals. One that takes too long is left to the compiler's limits.
fn compile_apart(
    factory: Arc<ParserFactory>,
    grammar: TopLevelGrammar,
) -> Result<Compiled, ConstraintError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("izar-grammar".into())
        .stack_size(COMPILE_STACK_BYTES)
        .spawn(move || {
            // The receiver is gone where time was up.
            let _ = sender.send(compile(&factory, grammar));
        })
        .map_err(|error| ConstraintError::NoThread(error.to_string()))?;
    match receiver.recv_timeout(MAX_COMPILE_TIME) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(ConstraintError::TooSlow {
            limit_s: MAX_COMPILE_TIME.as_secs(),
        }),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(ConstraintError::Refused(
            "the grammar compiler gave up on it".to_owned(),
        )),
    }
}

fn compile(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Compiled, ConstraintError> {
    let parser = factory.create_parser(grammar).map_err(refused)?;
    let mut fresh = Matcher::new(Ok(parser));
    // Proves that the first mask can be had within the limits, and warms the lexer that all copies share.
    let first = fresh.compute_mask_or_eos().map_err(refused)?;
    if first.is_zero() {
        return Err(ConstraintError::Refused(
            "no text satisfies it in this vocabulary".to_owned(),
        ));
    }
    Ok(Compiled {
        fresh: Mutex::new(fresh),
        first,
    })
}

fn grammar_of(format: &Format) -> Result<TopLevelGrammar, ConstraintError> {
    Ok(match format {
        Format::JsonObject => json_grammar(&json!({"type": "object"}))?,
        Format::JsonSchema(schema) => json_grammar(schema)?,
        Format::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
        Format::Choice(choices) => TopLevelGrammar::from_lark(choice_grammar(choices)),
        Format::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        Format::AfterReasoning {
            is_optional,
            answer,
        } => after_reasoning(*is_optional, grammar_of(answer)?),
    })
}

/// The answer's grammar, referred to by one in front of it that lets the model think first.
fn after_reasoning(is_optional: bool, mut answer: TopLevelGrammar) -> TopLevelGrammar {
    if let Some(grammar) = answer.grammars.first_mut() {
        grammar.name = Some("answer".to_owned());
    }
    let start = match is_optional {
        true => "answer | OPEN thought | BLANK answer",
        false => "thought",
    };
    let lark = format!(
        "start: {start}\nthought: reasoning answer | reasoning BLANK answer\nanswer: @answer\n\
         reasoning[suffix=\"</think>\"]: /(.|\\n)*/\nOPEN: /[ \\n]{{0,4}}<think>/\nBLANK: /[ \\n]{{1,4}}/\n"
    );
    answer.grammars.insert(0, GrammarWithLexer::from_lark(lark));
    answer
}

fn json_grammar(schema: &Value) -> Result<TopLevelGrammar, ConstraintError> {
    let mut schema = match schema {
        Value::Object(members) => members.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        _ => {
            return Err(ConstraintError::Refused(
                "a JSON schema is an object or true".to_owned(),
            ));
        }
    };
    let options =
        json!({"whitespace_pattern": format!("[\\x20\\x0A\\x0D\\x09]{{1,{MAX_WHITESPACE}}}")});
    schema.insert("x-guidance".to_owned(), options);
    Ok(TopLevelGrammar::from_grammar(
        GrammarWithLexer::from_json_schema(Value::Object(schema)),
    ))
}

/// One terminal, so that a choice which begins another is no dead end.
fn choice_grammar(choices: &[String]) -> String {
    let quoted: Vec<String> = choices
        .iter()
        .map(|choice| Value::from(choice.as_str()).to_string())
        .collect();
    format!("start: CHOICE\nCHOICE: {}\n", quoted.join(" | "))
}

fn key_of(format: &Format) -> String {
    match format {
        Format::JsonObject => "object".to_owned(),
        Format::JsonSchema(schema) => format!("schema {schema}"),
        Format::Regex(pattern) => format!("regex {pattern}"),
        Format::Choice(choices) => format!("choice {}", json!(choices)),
        Format::AfterReasoning {
            is_optional,
            answer,
        } => format!("reasoned {is_optional} {}", key_of(answer)),
        Format::Lark(grammar) => format!("lark {grammar}"),
    }
}

/// The compiler's complaint, in one line and without what it would repeat of the request at length.
fn refused(error: impl std::fmt::Display) -> ConstraintError {
    let complaint = error.to_string();
    let complaint = complaint.split("\n<").next().unwrap_or_default();
    let mut line = complaint.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > MAX_COMPLAINT_BYTES {
        let cut = (0..=MAX_COMPLAINT_BYTES)
            .rev()
            .find(|&at| line.is_char_boundary(at));
        line.truncate(cut.unwrap_or(0));
        line.push('…');
    }
    ConstraintError::Refused(line)
}

/// Words of JSON Schema that a complaint may name although the request wrote them.
const KEYWORDS: &str = " additionalItems additionalProperties allOf anyOf array boolean const contains dependentRequired dependentSchemas \
    else enum exclusiveMaximum exclusiveMinimum format if integer items json maxContains maxItems maxLength maxProperties maximum \
    minContains minItems minLength minProperties minimum multipleOf not null number object oneOf pattern patternProperties \
    prefixItems properties propertyNames ref regex required rule schema start string then type uniqueItems ";

/// The complaint without words that only the request can have brought in: an error must not hold what a client sent.
fn redacted(error: ConstraintError, request: &str) -> ConstraintError {
    let ConstraintError::Refused(complaint) = error else {
        return error;
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut clean = String::with_capacity(complaint.len());
    for word in complaint.split_inclusive(|c| !is_word(c)) {
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        let (word, rest) = word.split_at(end);
        let is_theirs = word.len() > 1 && request.contains(word);
        let is_ours = KEYWORDS.contains(&format!(" {word} "));
        clean.push_str(if is_theirs && !is_ours { "…" } else { word });
        clean.push_str(rest);
    }
    ConstraintError::Refused(clean)
}

#[cfg(test)]
mod tests;

//! Compiled chat templates.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};

use super::python;
use super::render::{ChatOptions, RenderError};
use super::source::adapted;

/// Why a template could not be compiled.
#[derive(Debug, thiserror::Error)]
#[error("chat template {name:?}: {message}")]
pub struct TemplateError {
    name: String,
    message: String,
}

/// The texts of special tokens, which templates see as `bos_token`, `eos_token`, ….
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of text.
    pub bos_token: Option<String>,
    /// End of text or of turn.
    pub eos_token: Option<String>,
    /// Unknown token.
    pub unk_token: Option<String>,
    /// Padding.
    pub pad_token: Option<String>,
    /// Any others, under their full names (`sep_token`, `image_token`, …).
    pub others: BTreeMap<String, String>,
}

impl SpecialTokens {
    /// Names and texts of the tokens that exist.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("pad_token", &self.pad_token),
        ];
        let named = named
            .into_iter()
            .filter_map(|(name, token)| Some((name, token.as_deref()?)));
        named.chain(
            self.others
                .iter()
                .map(|(name, token)| (name.as_str(), token.as_str())),
        )
    }
}

/// A model's chat template, or several under names (`default`, `tool_use`, …).
///
/// Rendering is Hugging Face's: Jinja with `trim_blocks` and `lstrip_blocks`, loop controls, `raise_exception`,
/// `strftime_now`, `tojson` without HTML escaping, Python's string and dictionary methods, and
/// `{% generation %}` blocks, which mark the assistant's words for training and render as what they enclose.
/// A render has a budget of instructions, so that a template cannot run for ever.
pub struct ChatTemplate {
    pub(super) env: Environment<'static>,
    pub(super) special_tokens: SpecialTokens,
    sources: BTreeMap<String, String>,
}

/// Instructions and bytes that one render may take: far above what a chat of a million tokens needs.
const FUEL: u64 = 40_000_000;

impl ChatTemplate {
    /// Compiles one template.
    pub fn new(source: &str, special_tokens: SpecialTokens) -> Result<Self, TemplateError> {
        Self::with_names([("default".to_owned(), source.to_owned())], special_tokens)
    }

    /// Compiles several templates under their names.
    pub fn with_names(
        sources: impl IntoIterator<Item = (String, String)>,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_syntax(syntax());
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(FUEL));
        python::install(&mut env);
        let sources: BTreeMap<_, _> = sources.into_iter().collect();
        for (name, source) in &sources {
            env.add_template_owned(name.clone(), adapted(source))
                .map_err(|e| TemplateError {
                    name: name.clone(),
                    message: describe(&e),
                })?;
        }
        Ok(Self {
            env,
            special_tokens,
            sources,
        })
    }

    /// The names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// Names and sources, as the model gave them.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources
            .iter()
            .map(|(name, source)| (name.as_str(), source.as_str()))
    }

    /// The special tokens the template sees.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// The template that a request gets: the named one; else `tool_use` if it exists and there are tools; else
    /// `default`, or the only one.
    pub(super) fn choose(&self, options: &ChatOptions<'_>) -> Result<(&str, &str), RenderError> {
        let (name, has_tools) = (options.template_name, options.tools.is_some());
        let names = match name {
            Some(name) => vec![name],
            None if has_tools => vec!["tool_use", "default"],
            None => vec!["default"],
        };
        let found = names
            .iter()
            .find_map(|name| self.sources.get_key_value(*name));
        let only = || {
            self.sources
                .iter()
                .next()
                .filter(|_| name.is_none() && self.sources.len() == 1)
        };
        let found = found
            .or_else(only)
            .map(|(name, source)| (name.as_str(), source.as_str()));
        found.ok_or_else(|| RenderError::UnknownTemplate {
            name: name.unwrap_or("default").to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })
    }
}

fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    syntax.build().expect("Jinja's own delimiters")
}

/// What went wrong, on one line.
pub(super) fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |d| format!("{}: {d}", error.kind()),
    );
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

//! Rendering: what a template is given and what comes out.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::Value as TemplateValue;
use serde_json::{Map, Value};

use super::guard::Marks;
use super::python::Raised;
use super::template::{ChatTemplate, describe};

/// Names of values that are for the functions of the environment; a template cannot spell them.
pub(super) const NOW: &str = "now (unix seconds)";
pub(super) const MARKS: &str = "marks of the guard";

/// Why a template did not render.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The template refused its input by `raise_exception`; this is its message, meant for the person asking.
    #[error("{0}")]
    Raised(String),
    /// The template failed: it read something that is not there, or ran too long.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// There is no such template.
    #[error("there is no chat template {name:?}: the model has {known}")]
    UnknownTemplate {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// There are no messages.
    #[error("messages must not be empty")]
    NoMessages,
    /// A message is not an object.
    #[error("messages[{0}] must be an object")]
    NotAnObject(usize),
    /// The final message cannot be continued.
    #[error("continue_final_message: {0}")]
    CannotContinue(&'static str),
}

/// What a request says beside its messages.
#[derive(Clone, Debug)]
pub struct ChatOptions<'a> {
    /// Tool definitions, as in OpenAI's API; `None` and an empty list are different to some templates.
    pub tools: Option<&'a [Value]>,
    /// Documents (`title`, `text`) for templates that take them.
    pub documents: Option<&'a [Value]>,
    /// End the prompt with the opening of an assistant message.
    pub add_generation_prompt: bool,
    /// End the prompt inside the last message, for the model to go on with it. Excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Which of the model's templates to use.
    pub template_name: Option<&'a str>,
    /// Further variables for the template (`enable_thinking`, …).
    pub kwargs: Option<&'a Map<String, Value>>,
    /// The time that `strftime_now` sees, shown in UTC; `None` is the clock, in local time.
    pub now: Option<SystemTime>,
}

impl Default for ChatOptions<'_> {
    /// A generation prompt and nothing else.
    fn default() -> Self {
        Self {
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            template_name: None,
            kwargs: None,
            now: None,
        }
    }
}

/// The parts of a request that a template reads, as it reads them.
#[derive(Clone)]
pub(super) struct Inputs {
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub documents: Option<Vec<Value>>,
    pub kwargs: Map<String, Value>,
}

/// Names under which a message's reasoning is passed, the standard one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Inputs {
    /// Copies the inputs in the form that Hugging Face gives templates: a message has no fields that are null, and its
    /// reasoning under every name that templates read.
    pub fn new(messages: &[Value], options: &ChatOptions<'_>) -> Result<Self, RenderError> {
        if messages.is_empty() {
            return Err(RenderError::NoMessages);
        }
        let messages = messages.iter().enumerate().map(|(i, message)| {
            let fields = message.as_object().ok_or(RenderError::NotAnObject(i))?;
            let fields = fields
                .iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k.clone(), v.clone()));
            Ok(Value::Object(with_reasoning(fields.collect())))
        });
        Ok(Self {
            messages: messages.collect::<Result<_, _>>()?,
            tools: options.tools.map(<[Value]>::to_vec),
            documents: options.documents.map(<[Value]>::to_vec),
            kwargs: options.kwargs.cloned().unwrap_or_default(),
        })
    }
}

fn with_reasoning(mut message: Map<String, Value>) -> Map<String, Value> {
    if let Some(reasoning) = REASONING
        .iter()
        .find_map(|name| message.get(*name))
        .cloned()
    {
        message
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".into(), reasoning);
    }
    message
}

/// Stands at the end of the message to be continued while the template renders.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatTemplate {
    /// Renders `messages` (objects with `role` and `content`).
    pub fn render(
        &self,
        messages: &[Value],
        options: &ChatOptions<'_>,
    ) -> Result<String, RenderError> {
        self.render_inputs(Inputs::new(messages, options)?, options, None)
    }

    pub(super) fn render_inputs(
        &self,
        mut inputs: Inputs,
        options: &ChatOptions<'_>,
        marks: Option<Marks>,
    ) -> Result<String, RenderError> {
        let (name, source) = self.choose(options)?;
        let continued = options
            .continue_final_message
            .then(|| tag_final_message(&mut inputs, options, source));
        let continued = continued.transpose()?;
        let template = self.env.get_template(name).map_err(|e| failure(&e))?;
        let rendered = template
            .render(self.context(&inputs, options, marks))
            .map_err(|e| failure(&e))?;
        match continued {
            Some(message) => cut_at_tag(&rendered, &message),
            None => Ok(rendered),
        }
    }

    fn context(
        &self,
        inputs: &Inputs,
        options: &ChatOptions<'_>,
        marks: Option<Marks>,
    ) -> TemplateValue {
        let text = |s: &str| TemplateValue::from(s);
        let list = |items: &Vec<Value>| items.iter().map(template_value).collect::<TemplateValue>();
        let mut context: Vec<(&str, TemplateValue)> = self
            .special_tokens
            .entries()
            .map(|(name, token)| (name, text(token)))
            .collect();
        context.extend(
            inputs
                .kwargs
                .iter()
                .map(|(k, v)| (k.as_str(), template_value(v))),
        );
        context.extend([
            ("messages", list(&inputs.messages)),
            (
                "tools",
                inputs.tools.as_ref().map_or(TemplateValue::from(()), list),
            ),
            (
                "documents",
                inputs
                    .documents
                    .as_ref()
                    .map_or(TemplateValue::from(()), list),
            ),
            (
                "add_generation_prompt",
                TemplateValue::from(options.add_generation_prompt),
            ),
        ]);
        if let Some(now) = options.now {
            let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            context.push((NOW, TemplateValue::from(seconds)));
        }
        if let Some(marks) = marks {
            context.push((MARKS, text(&marks.both())));
        }
        TemplateValue::from_pairs(context)
    }
}

/// JSON as a template sees it.
fn template_value(value: &Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(b) => TemplateValue::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => TemplateValue::from(n),
            (None, Some(n)) => TemplateValue::from(n),
            (None, None) => TemplateValue::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => TemplateValue::from(text.as_str()),
        Value::Array(items) => items.iter().map(template_value).collect(),
        Value::Object(fields) => {
            TemplateValue::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), template_value(v))))
        }
    }
}

/// Appends [`CONTINUE_TAG`] to the last message's text and returns the text without it.
fn tag_final_message(
    inputs: &mut Inputs,
    options: &ChatOptions<'_>,
    source: &str,
) -> Result<String, RenderError> {
    use RenderError::CannotContinue;
    if options.add_generation_prompt {
        return Err(CannotContinue("it excludes add_generation_prompt"));
    }
    if !source.contains("content") {
        return Err(CannotContinue(
            "the chat template does not read the messages' content",
        ));
    }
    let content = inputs
        .messages
        .last_mut()
        .and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => {
            parts
                .iter_mut()
                .rev()
                .find_map(|part| match part.get_mut("text") {
                    Some(Value::String(text)) => Some(text),
                    _ => None,
                })
        }
        _ => None,
    };
    let text = text.ok_or(CannotContinue("the final message has no text to continue"))?;
    let message = text.clone();
    text.push_str(CONTINUE_TAG);
    Ok(message)
}

/// Ends the prompt where the tag stands.
fn cut_at_tag(rendered: &str, message: &str) -> Result<String, RenderError> {
    let tag = rendered
        .rfind(CONTINUE_TAG.trim_end())
        .filter(|_| rendered.contains(message.trim()));
    let tag = tag.ok_or(RenderError::CannotContinue(
        "the chat template does not show the final message as it is written",
    ))?;
    // A template that strips messages took the tag's space, and any that the message ends with.
    let is_stripped = !rendered[tag..].starts_with(CONTINUE_TAG);
    let text = &rendered[..tag];
    Ok(if is_stripped { text.trim_end() } else { text }.to_owned())
}

fn failure(error: &minijinja::Error) -> RenderError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return RenderError::Raised(raised.0.clone());
        }
        source = cause.source();
    }
    RenderError::Failed(describe(error))
}

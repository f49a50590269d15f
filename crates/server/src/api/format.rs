//! What an answer is to look like: OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_…` fields.

use serde_json::Value;

use crate::constrain::{Format, FormatRequest};
use crate::error::ApiError;
use crate::fields::Fields;

/// Most choices of a `choice`.
const MAX_CHOICES: usize = 10_000;

/// Takes the one format a request asks for; none is any text.
///
/// # Errors
/// [`ApiError::InvalidField`], also where a request asks for several. Whether a schema or grammar is any good is not known here.
pub fn take_format(fields: &mut Fields) -> Result<Option<FormatRequest>, ApiError> {
    let mut asked = Vec::new();
    asked.extend(take_response_format(fields)?);
    asked.extend(take_structured_outputs(fields)?);
    for (name, member) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
    ] {
        if let Some(value) = fields.take(name) {
            asked.push(request(fields, name, format_of(member, value))?);
        }
    }
    for harmless in ["guided_decoding_backend", "guided_whitespace_pattern"] {
        // Chooses how, not what.
        fields.take(harmless);
    }
    match asked.len() {
        0 | 1 => Ok(asked.pop()),
        _ => Err(ApiError::field(
            asked.swap_remove(1).param,
            "is one format too many: a request may ask for one",
        )),
    }
}

fn take_response_format(fields: &mut Fields) -> Result<Option<FormatRequest>, ApiError> {
    let Some(value) = fields.take("response_format") else {
        return Ok(None);
    };
    let path = fields.path_of("response_format");
    let mut format = Fields::nested(value, path.clone())?;
    let kind = format.take_string("type")?;
    let format = match kind.as_deref() {
        Some("text") => return Ok(None),
        Some("json_object") => Format::JsonObject,
        Some("json_schema") => {
            let Some(schema) = format.take("json_schema") else {
                return Err(format.error("json_schema", "is missing"));
            };
            let mut named = Fields::nested(schema, format.path_of("json_schema"))?;
            named.take_string("name")?;
            named.take_bool("strict")?;
            match named.take("schema") {
                Some(schema) => {
                    return Ok(Some(FormatRequest {
                        param: named.path_of("schema"),
                        format: Format::JsonSchema(schema),
                    }));
                }
                None => return Err(named.error("schema", "is missing")),
            }
        }
        _ => {
            return Err(format.error("type", "must be `text`, `json_object` or `json_schema`"));
        }
    };
    Ok(Some(FormatRequest {
        format,
        param: path,
    }))
}

/// `{"json": …}`, `{"regex": …}`, `{"choice": […]}`, `{"grammar": …}` or `{"json_object": true}`.
fn take_structured_outputs(fields: &mut Fields) -> Result<Option<FormatRequest>, ApiError> {
    let Some(value) = fields.take("structured_outputs") else {
        return Ok(None);
    };
    let mut members = Fields::nested(value, fields.path_of("structured_outputs"))?;
    let mut asked = Vec::new();
    for name in ["json", "regex", "choice", "grammar"] {
        if let Some(value) = members.take(name) {
            asked.push(request(&members, name, format_of(name, value))?);
        }
    }
    if members.take_bool("json_object")?.unwrap_or(false) {
        asked.push(request(&members, "json_object", Ok(Format::JsonObject))?);
    }
    if members.take("structural_tag").is_some() {
        return Err(members.error("structural_tag", "is not served"));
    }
    match asked.len() {
        1 => Ok(asked.pop()),
        _ => Err(fields.error(
            "structured_outputs",
            "must hold one of `json`, `regex`, `choice`, `grammar` and `json_object`",
        )),
    }
}

fn request(
    fields: &Fields,
    name: &str,
    format: Result<Format, &'static str>,
) -> Result<FormatRequest, ApiError> {
    match format {
        Ok(format) => Ok(FormatRequest {
            format,
            param: fields.path_of(name),
        }),
        Err(problem) => Err(fields.error(name, problem)),
    }
}

/// The format that a member called `kind` asks for; the error is a predicate about it.
fn format_of(kind: &str, value: Value) -> Result<Format, &'static str> {
    match (kind, value) {
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Format::JsonSchema(schema)),
            Err(_) => Err("must be a JSON schema, as an object or as its text"),
        },
        ("json", schema) => Ok(Format::JsonSchema(schema)),
        ("regex", Value::String(pattern)) => Ok(Format::Regex(pattern)),
        ("grammar", Value::String(grammar)) => Ok(Format::Lark(grammar)),
        ("choice", Value::Array(choices)) => choices_of(choices),
        ("choice", _) => Err("must be a list of strings"),
        _ => Err("must be a string"),
    }
}

fn choices_of(choices: Vec<Value>) -> Result<Format, &'static str> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err("must hold from 1 to 10000 strings");
    }
    let text = |choice| match choice {
        Value::String(text) if !text.is_empty() => Ok(text),
        _ => Err("must be a list of strings, none of them empty"),
    };
    choices
        .into_iter()
        .map(text)
        .collect::<Result<_, _>>()
        .map(Format::Choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Option<FormatRequest>, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        take_format(&mut fields)
    }

    #[test]
    fn every_way_to_ask_is_understood() {
        let schema = json!({"type": "object"});
        let json_schema = |param: &str| FormatRequest {
            format: Format::JsonSchema(schema.clone()),
            param: param.to_owned(),
        };
        let openai = json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}});
        for (body, want) in [
            (
                json!({"response_format": openai}),
                json_schema("response_format.json_schema.schema"),
            ),
            (json!({"guided_json": schema}), json_schema("guided_json")),
            (
                json!({"guided_json": schema.to_string()}),
                json_schema("guided_json"),
            ),
            (
                json!({"structured_outputs": {"json": schema}}),
                json_schema("structured_outputs.json"),
            ),
        ] {
            assert_eq!(take(body), Ok(Some(want)));
        }
        let kind = |body| take(body).expect("valid").map(|request| request.format);
        assert_eq!(kind(json!({"response_format": {"type": "text"}})), None);
        assert_eq!(
            kind(json!({"response_format": {"type": "json_object"}})),
            Some(Format::JsonObject)
        );
        let choice = Format::Choice(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            kind(json!({"guided_choice": ["a", "b"]})),
            Some(choice.clone())
        );
        assert_eq!(
            kind(json!({"structured_outputs": {"choice": ["a", "b"], "json": null}})),
            Some(choice)
        );
        let regex = Format::Regex("a+".to_owned());
        assert_eq!(kind(json!({"guided_regex": "a+"})), Some(regex));
        assert_eq!(kind(json!({"response_format": null})), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_regex": 3}), "guided_regex"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": ["a", 1]}), "guided_choice"),
            (json!({"guided_choice": [""]}), "guided_choice"),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (
                json!({"structured_outputs": {"json": {}, "regex": "a"}}),
                "structured_outputs",
            ),
            (
                json!({"guided_regex": "a", "guided_choice": ["a"]}),
                "guided_choice",
            ),
        ] {
            match take(body.clone()) {
                Err(ApiError::InvalidField { param: got, .. }) => assert_eq!(got, param, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
    }
}

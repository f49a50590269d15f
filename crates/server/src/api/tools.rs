//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

const MAX_NAME_BYTES: usize = 256;

/// Whether and what the model shall call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Nothing: the answer is text.
    #[default]
    None,
    /// What it likes.
    Auto,
    /// One tool at least.
    Required,
    /// This tool.
    Named(String),
}

/// The tools of a chat, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolsRequest {
    /// Definitions as OpenAI's chat API has them, for the template: `{"type":"function","function":{"name","parameters",…}}`.
    pub tools: Vec<Value>,
    /// What the model shall call; never another choice than none where there are no tools.
    pub choice: ToolChoice,
    /// Whether it may call several tools, or one several times.
    pub parallel: bool,
}

impl ToolsRequest {
    /// Takes the three members.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`], also for the older `functions` and `function_call`.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if fields.take(old).is_some() {
                return Err(fields.error(old, format!("is no longer served: use `{new}`")));
            }
        }
        let tools = take_definitions(fields)?;
        let choice = fields.take("tool_choice");
        let parallel = fields.take_bool("parallel_tool_calls")?.unwrap_or(true);
        let choice = choose(fields, choice, &tools)?;
        Ok(Self {
            tools,
            choice,
            parallel,
        })
    }

    /// Names of the tools, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(name_of)
    }

    /// The schema of the arguments of tool `name`: what it says of them, or any object.
    pub fn parameters_of(&self, name: &str) -> Value {
        let tool = self.tools.iter().find(|tool| name_of(tool) == Some(name));
        tool.map_or_else(any_object, parameters)
    }

    /// The schema of a list of calls of any of the tools.
    pub fn schema_of_calls(&self) -> Value {
        let calls: Vec<Value> = self
            .tools
            .iter()
            .enumerate()
            .map(|(idx, tool)| {
                let mut parameters = parameters(tool);
                // What a tool's schema calls its root is now further down.
                let root = format!("#/items/anyOf/{idx}/properties/parameters");
                move_references(&mut parameters, &root);
                serde_json::json!({
                    "type": "object",
                    "properties": {"name": {"const": name_of(tool)}, "parameters": parameters},
                    "required": ["name", "parameters"],
                    "additionalProperties": false,
                })
            })
            .collect();
        let mut schema =
            serde_json::json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}});
        if !self.parallel {
            schema["maxItems"] = 1.into();
        }
        schema
    }
}

fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

fn parameters(tool: &Value) -> Value {
    match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => any_object(),
    }
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

/// Makes local references (`#/$defs/x`) start at `root`.
fn move_references(schema: &mut Value, root: &str) {
    match schema {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(target) if name == "$ref" && target.starts_with('#') => {
                        *target = format!("{root}{}", &target[1..]);
                    }
                    member => move_references(member, root),
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| move_references(item, root)),
        _ => {}
    }
}

fn take_definitions(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    match fields.take("tools") {
        None => Ok(Vec::new()),
        Some(Value::Array(tools)) if tools.iter().all(Value::is_object) => {
            for (idx, tool) in tools.iter().enumerate() {
                check_definition(tool, fields.path_of(&format!("tools[{idx}]")))?;
            }
            Ok(tools)
        }
        Some(_) => Err(fields.error("tools", "must be a list of objects")),
    }
}

fn check_definition(tool: &Value, path: String) -> Result<(), ApiError> {
    if tool["type"] != "function" {
        return Err(ApiError::field(
            format!("{path}.type"),
            "must be `function`",
        ));
    }
    if name_of(tool).is_none_or(|name| name.is_empty() || name.len() > MAX_NAME_BYTES) {
        return Err(ApiError::field(
            format!("{path}.function.name"),
            format!("must be a string of 1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    if !matches!(
        tool["function"]["parameters"],
        Value::Null | Value::Object(_)
    ) {
        return Err(ApiError::field(
            format!("{path}.function.parameters"),
            "must be an object: a JSON schema",
        ));
    }
    Ok(())
}

fn choose(fields: &Fields, choice: Option<Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let name = |choice: &Value| {
        let function = choice.get("function").unwrap_or(choice);
        function["name"].as_str().map(str::to_owned)
    };
    let choice = match choice {
        None if tools.is_empty() => ToolChoice::None,
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" if tools.is_empty() => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return Err(fields.error("tool_choice", CHOICES)),
        },
        Some(object) if object["type"] == "function" => {
            let name = name(&object).ok_or_else(|| fields.error("tool_choice", CHOICES))?;
            if !tools.iter().any(|tool| name_of(tool) == Some(&name)) {
                return Err(fields.error("tool_choice", "must name one of `tools`"));
            }
            ToolChoice::Named(name)
        }
        Some(_) => return Err(fields.error("tool_choice", CHOICES)),
    };
    if choice == ToolChoice::Required && tools.is_empty() {
        return Err(fields.error("tool_choice", "is only allowed where there are `tools`"));
    }
    Ok(choice)
}

const CHOICES: &str = "must be \"none\", \"auto\", \"required\" or an object with `type` \"function\" and the function's name";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<ToolsRequest, ApiError> {
        ToolsRequest::take(&mut Fields::parse(body.to_string().as_bytes()).expect("JSON"))
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}})
    }

    #[test]
    fn choice_is_auto_where_there_are_tools_and_none_elsewhere() {
        for (body, want) in [
            (json!({}), ToolChoice::None),
            (
                json!({"tools": [], "tool_choice": "auto"}),
                ToolChoice::None,
            ),
            (json!({"tools": [tool("f")]}), ToolChoice::Auto),
            (
                json!({"tools": [tool("f")], "tool_choice": null}),
                ToolChoice::Auto,
            ),
            (
                json!({"tools": [tool("f")], "tool_choice": "none"}),
                ToolChoice::None,
            ),
            (
                json!({"tools": [tool("f")], "tool_choice": "required"}),
                ToolChoice::Required,
            ),
            (
                json!({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
                ToolChoice::Named("f".to_owned()),
            ),
        ] {
            assert_eq!(take(body.clone()).expect("valid").choice, want, "{body}");
        }
    }

    #[test]
    fn refusals_point_at_the_member() {
        for (body, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [3]}), "tools"),
            (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
            (
                json!({"tools": [tool("f"), {"type": "function"}]}),
                "tools[1].function.name",
            ),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
                "tools[0].function.parameters",
            ),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": [tool("f")], "tool_choice": "maybe"}),
                "tool_choice",
            ),
            (
                json!({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
                "tool_choice",
            ),
            (
                json!({"tools": [tool("f")], "parallel_tool_calls": 1}),
                "parallel_tool_calls",
            ),
            (json!({"functions": []}), "functions"),
        ] {
            match take(body) {
                Err(ApiError::InvalidField { param: got, .. }) => assert_eq!(got, param),
                other => panic!("{param}: {other:?}"),
            }
        }
    }

    #[test]
    fn schema_of_calls_keeps_each_tools_references() {
        let request = take(json!({"tools": [tool("f"), {"type": "function", "function": {"name": "g"}}], "parallel_tool_calls": false}))
            .expect("valid");
        let schema = request.schema_of_calls();
        assert_eq!(
            schema["items"]["anyOf"][0]["properties"]["parameters"]["properties"]["a"]["$ref"],
            "#/items/anyOf/0/properties/parameters/$defs/a"
        );
        assert_eq!(
            schema["items"]["anyOf"][1]["properties"],
            json!({"name": {"const": "g"}, "parameters": {"type": "object"}})
        );
        assert_eq!(schema["maxItems"], 1);
    }
}

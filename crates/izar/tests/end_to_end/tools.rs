//! Calls that a request demands, with a real model: whatever the model would rather say, what it says is a call.

use serde_json::{Value, json};

use crate::server::Server;

fn tools() -> Value {
    let city = json!({"enum": ["Paris", "Oslo"]});
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": {
            "type": "object", "properties": {"city": city, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "get_time", "parameters": {
            "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"], "additionalProperties": false,
            "$defs": {"city": city}}}},
    ])
}

/// Whether `call` is of one of the tools, with arguments as its schema has them.
fn fits(call: &Value) -> bool {
    let Some(Ok(arguments)) = call["function"]["arguments"]
        .as_str()
        .map(serde_json::from_str::<Value>)
    else {
        return false;
    };
    let is_city = arguments["city"] == "Paris" || arguments["city"] == "Oslo";
    let num_members = arguments.as_object().map_or(0, serde_json::Map::len);
    let days = arguments["days"].as_u64().unwrap_or(0);
    is_city
        && match call["function"]["name"].as_str() {
            Some("get_weather") => num_members == 2 && (1..=9).contains(&days),
            Some("get_time") => num_members == 1,
            _ => false,
        }
}

fn ask(server: &Server, choice: &Value, temperature: f64) -> Value {
    let body = json!({"messages": [{"role": "user", "content": "What is the weather like in Paris?"}], "tools": tools(),
        "tool_choice": choice, "parallel_tool_calls": false, "temperature": temperature, "seed": 3, "max_tokens": 200});
    let answer = server.post("/v1/chat/completions", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["choices"][0].clone()
}

#[test]
fn calls_that_are_demanded_fit_the_schemas_of_the_tools() {
    let server = Server::start(&[]);
    let named = json!({"type": "function", "function": {"name": "get_time"}});
    for temperature in [0.0, 1.5] {
        let choice = ask(&server, &json!("required"), temperature);
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        assert!(calls.len() == 1 && fits(&calls[0]), "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null);

        let choice = ask(&server, &named, temperature);
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let call = &choice["message"]["tool_calls"][0];
        assert!(
            call["function"]["name"] == "get_time" && fits(call),
            "{choice}"
        );
    }
    server.until_idle();
}

#[test]
fn schema_of_a_tool_that_makes_no_sense_is_refused_before_generation() {
    let server = Server::start(&[]);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "no such type"}}}}});
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": "required"});
    let answer = server.post("/v1/chat/completions", body.to_string());
    let message = answer.error(400);
    assert!(message.starts_with("`tools`"), "{message}");
}

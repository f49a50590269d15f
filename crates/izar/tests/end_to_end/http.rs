//! Answers, whole and streamed.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderMap, Response};

/// A client whose answers of any status are answers.
pub fn agent(timeout: Duration) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout));
    config.build().new_agent()
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    #[track_caller]
    pub fn read(response: Result<Response<ureq::Body>, ureq::Error>) -> Self {
        let response = response.expect("an answer");
        let (parts, mut body) = response.into_parts();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: body.read_to_string().expect("a whole body of text"),
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The error's message, after checking that the status is `status` and the body an error in OpenAI's shape.
    #[track_caller]
    pub fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        let body = self.json();
        assert!(body["error"]["type"].is_string(), "{body}");
        let message = body["error"]["message"].as_str().expect("a message");
        message.to_owned()
    }

    /// What `Retry-After` says, in seconds.
    #[track_caller]
    pub fn retry_after_s(&self) -> u32 {
        let value = self.headers.get("retry-after").expect("Retry-After");
        value.to_str().expect("text").parse().expect("seconds")
    }
}

/// Server-sent events as they come: an iterator over the chunks before `[DONE]`. Dropping it closes the connection.
pub struct Stream {
    lines: std::io::Lines<BufReader<ureq::BodyReader<'static>>>,
    is_done: bool,
    so_far: Streamed,
}

/// What a stream of one completion said.
#[derive(Debug, Default)]
pub struct Streamed {
    pub ids: Vec<u32>,
    pub finish_reason: String,
    completion_tokens: Option<u64>,
}

impl Stream {
    #[track_caller]
    pub fn start(url: &str, body: &Value, timeout: Duration) -> Self {
        // An agent of its own: a connection that is dropped must not come back for another request.
        let request = agent(timeout)
            .post(url)
            .header("content-type", "application/json");
        let response = request.send(body.to_string()).expect("an answer");
        assert_eq!(response.status(), 200);
        Self {
            lines: BufReader::new(response.into_body().into_reader()).lines(),
            is_done: false,
            so_far: Streamed::default(),
        }
    }

    /// Reads on to the end, and checks that it is a proper one: a reason, the usage, `[DONE]`, and nothing after it.
    #[track_caller]
    pub fn finish(mut self) -> Streamed {
        self.by_ref().for_each(drop);
        let streamed = self.so_far;
        assert!(self.is_done, "the stream was cut off: {streamed:?}");
        assert!(self.lines.all(|line| line.expect("a line").is_empty()));
        assert_ne!(streamed.finish_reason, "", "{streamed:?}");
        assert_eq!(
            streamed.completion_tokens,
            Some(streamed.ids.len() as u64),
            "{streamed:?}"
        );
        streamed
    }
}

impl Streamed {
    fn add(&mut self, chunk: &Value) {
        assert!(chunk["error"].is_null(), "{chunk}");
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.completion_tokens = Some(tokens);
        }
        let choice = &chunk["choices"][0];
        for id in choice["token_ids"].as_array().into_iter().flatten() {
            self.ids.push(id.as_u64().expect("an id") as u32);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert_eq!(self.finish_reason, "", "one reason: {chunk}");
            self.finish_reason = reason.to_owned();
        }
    }
}

impl Iterator for Stream {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        while !self.is_done {
            let line = self.lines.next()?.expect("a line");
            if line.is_empty() {
                continue;
            }
            let data = line.strip_prefix("data: ").expect("an event is data");
            if data == "[DONE]" {
                self.is_done = true;
            } else {
                let chunk: Value = serde_json::from_str(data).expect("a chunk is JSON");
                self.so_far.add(&chunk);
                return Some(chunk);
            }
        }
        None
    }
}

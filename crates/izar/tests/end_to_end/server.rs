//! A running `izar serve` and what is asked of it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use crate::http::{self, Answer, Stream};

/// Longest that anything here may take on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// SmolLM2-135M-Instruct as GGUF: `IZAR_TEST_MODEL`, or where `scripts/fetch-model` puts it.
pub fn model_path() -> PathBuf {
    let default = "../../.cache/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = std::env::var_os("IZAR_TEST_MODEL").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(default),
        PathBuf::from,
    );
    assert!(
        path.exists(),
        "{} is missing: run scripts/fetch-model, or set IZAR_TEST_MODEL",
        path.display()
    );
    path
}

/// The binary under test.
pub fn izar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_izar"));
    command.env_remove("IZAR_LOG").env_remove("IZAR_API_KEY");
    command
}

/// Polls `holds` until it is true.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server, killed when dropped.
pub struct Server {
    process: Child,
    /// `127.0.0.1:PORT`.
    pub address: String,
    agent: Agent,
    log: Arc<Mutex<Vec<String>>>,
}

/// A completed sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    pub ids: Vec<u32>,
    pub text: String,
    pub finish_reason: String,
    pub num_cached_tokens: u64,
}

impl Server {
    /// Serves the test model, and waits until it is healthy.
    pub fn start(flags: &[&str]) -> Self {
        let mut process = izar()
            .arg("serve")
            .arg(model_path())
            .args(["--port", "0"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .expect("izar starts");
        let stderr = BufReader::new(process.stderr.take().expect("piped"));
        let (address, addresses) = mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("izar: {line}");
                if let Some((_, rest)) = line.split_once("http://") {
                    let end = rest.find('/').unwrap_or(rest.len());
                    // The test may be over already.
                    let _ = address.send(rest[..end].to_owned());
                }
                lines.lock().expect("unpoisoned").push(line);
            }
        });
        let address = addresses
            .recv_timeout(PATIENCE)
            .expect("the log says where it serves");
        let server = Self {
            process,
            address,
            agent: http::agent(PATIENCE),
            log,
        };
        wait_until("/health", || server.get("/health").status == 200);
        server
    }

    /// The log so far, a string a line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("unpoisoned").clone()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        Answer::read(self.agent.get(self.url(path)).call())
    }

    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.post_with(path, &[], body)
    }

    pub fn post_with(
        &self,
        path: &str,
        headers: &[(&str, String)],
        body: impl AsRef<[u8]>,
    ) -> Answer {
        let request = self.agent.post(self.url(path));
        let request = request.header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, value)
        });
        Answer::read(request.send(body.as_ref()))
    }

    /// `/v1/completions`, whatever it answers.
    pub fn try_complete(&self, body: &Value) -> Answer {
        self.post("/v1/completions", body.to_string())
    }

    /// `/v1/completions` of one sequence, with its token ids.
    #[track_caller]
    pub fn complete(&self, body: &Value) -> Completion {
        let mut body = body.clone();
        body["return_token_ids"] = true.into();
        let answer = self.try_complete(&body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let choice = &answer["choices"][0];
        let ids: Vec<u32> =
            serde_json::from_value(choice["token_ids"].clone()).expect("token ids in the answer");
        assert_eq!(answer["usage"]["completion_tokens"], ids.len());
        Completion {
            ids,
            text: choice["text"].as_str().expect("a text").to_owned(),
            finish_reason: choice["finish_reason"]
                .as_str()
                .expect("a reason")
                .to_owned(),
            num_cached_tokens: answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .expect("the cached tokens"),
        }
    }

    /// Starts a streaming completion; returns once its head is there.
    #[track_caller]
    pub fn stream(&self, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        body["return_token_ids"] = true.into();
        Stream::start(&self.url("/v1/completions"), &body, PATIENCE)
    }

    /// The answer to one user message at temperature 0.
    #[track_caller]
    pub fn chat(&self, question: &str) -> String {
        let body = json!({"messages": [{"role": "user", "content": question}], "temperature": 0});
        let answer = self.post("/v1/chat/completions", body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text);
        let content = &answer.json()["choices"][0]["message"]["content"];
        content.as_str().expect("a text").to_owned()
    }

    /// Every sample of `/metrics`, by its name and summed over labels, and by its name with each label (`NAME{KEY="VALUE"}`).
    pub fn metrics(&self) -> HashMap<String, f64> {
        let page = self.get("/metrics");
        assert_eq!(page.status, 200);
        let mut samples = HashMap::new();
        for line in page.text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let value: f64 = value.parse().expect("a number");
            *samples.entry(name.to_owned()).or_insert(0.0) += value;
            for label in labels.trim_end_matches('}').split(',') {
                *samples.entry(format!("{name}{{{label}}}")).or_insert(0.0) += value;
            }
        }
        samples
    }

    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.metrics();
        *metrics
            .get(name)
            .unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Waits until nothing runs or waits, and checks that nothing is held: no KV block, no ring slot, no request.
    #[track_caller]
    pub fn until_idle(&self) {
        const GAUGES: [&str; 5] = [
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "izar:ring_slots_in_use",
            "izar:http_requests_in_flight",
        ];
        let mut last = [f64::NAN; 5];
        wait_until(&format!("{GAUGES:?} all 0"), || {
            let metrics = self.metrics();
            last = GAUGES.map(|name| metrics[name]);
            last == [0.0; 5]
        });
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.pid());
        let status = Command::new("sh").args(["-c", &kill]).status();
        assert!(status.expect("a shell").success());
    }

    /// Waits for the process to leave.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server leaves", || {
            status = self.process.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it left")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either fails only where it has left already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

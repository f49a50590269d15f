//! What the log says, and what it does not.

use serde_json::{Value, json};

use crate::server::{Server, wait_until};

#[test]
fn every_request_is_one_json_line_and_neither_prompts_nor_keys_are_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "secret-key\n").expect("written");
    let server = Server::start(&[
        "--log-json",
        "--log",
        "debug",
        "--max-model-len",
        "64",
        "--api-key-file",
        keys.to_str().expect("UTF-8"),
    ]);
    let send = |key: &str, id: &str, stream: bool| {
        let body = json!({"prompt": "a secret-prompt", "max_tokens": 3, "ignore_eos": true, "stream": stream});
        let headers = [
            ("authorization", format!("Bearer {key}")),
            ("x-request-id", id.to_owned()),
        ];
        server.post_with("/v1/completions", &headers, body.to_string())
    };
    assert_eq!(send("secret-key", "whole-1", false).status, 200);
    assert_eq!(send("secret-key", "stream-2", true).status, 200);
    assert_eq!(send("wrong-secret", "refused-3", false).status, 401);
    let lines = || -> Vec<Value> {
        let log = server.log();
        let lines = log.iter().map(|line| serde_json::from_str(line));
        let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON lines");
        lines
            .into_iter()
            .filter(|line| line["target"] == "izar_server::access" && line["level"] == "INFO")
            .collect()
    };
    wait_until("three lines", || lines().len() == 3);
    let lines = lines();
    let fields = |id: &str| {
        let line = lines.iter().find(|line| line["fields"]["id"] == id);
        &line.expect("a line for each request")["fields"]
    };
    for id in ["whole-1", "stream-2"] {
        let fields = fields(id);
        assert_eq!(fields["path"], "/v1/completions");
        assert_eq!(
            (&fields["status"], &fields["whole"]),
            (&json!(200), &json!(true))
        );
        assert_eq!(fields["completion_tokens"], 3);
        assert!(fields["prompt_tokens"].as_u64() > Some(1));
        assert!(fields["duration_ms"].as_f64() >= fields["ttft_ms"].as_f64());
    }
    assert_eq!(fields("refused-3")["status"], 401);
    let log = server.log().join("\n");
    for secret in ["secret-key", "wrong-secret", "secret-prompt"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

//! `izar generate`, `izar doctor` and `--help`.

use crate::server::{Server, izar, model_path};

/// Standard output of a command that must succeed.
#[track_caller]
fn stdout(args: &[&str]) -> String {
    let model = model_path();
    let args = args.iter().map(|&arg| match arg {
        "MODEL" => model.as_os_str(),
        arg => arg.as_ref(),
    });
    let output = izar().args(args).output().expect("izar runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn generate_prints_a_continuation_and_nothing_else() {
    let raw = |dtype, max_tokens| {
        let prompt = "The capital of France is";
        let args = [
            "generate",
            "MODEL",
            "--raw",
            "--prompt",
            prompt,
            "--dtype",
            dtype,
            "--max-tokens",
            max_tokens,
        ];
        stdout(&args)
    };
    // The fp32 reference's first tokens.
    assert_eq!(raw("float32", "2"), " Paris.\n");
    assert_eq!(raw("auto", "2"), " Paris.\n");
    let answer = stdout(&[
        "generate",
        "MODEL",
        "--prompt",
        "The capital of France is",
        "--max-tokens",
        "24",
    ]);
    assert!(
        answer.trim().len() > 10 && answer.ends_with('\n'),
        "{answer}"
    );
}

#[test]
fn generate_and_the_server_answer_a_chat_as_fp32_does() {
    let (question, answer) = (
        "Name the capital of France.",
        "The capital of France is Paris.",
    );
    for dtype in ["auto", "float32"] {
        assert_eq!(
            stdout(&["generate", "MODEL", "--prompt", question, "--dtype", dtype]).trim_end(),
            answer
        );
        assert_eq!(
            Server::start(&["--dtype", dtype, "--max-model-len", "512"]).chat(question),
            answer
        );
    }
}

#[test]
fn doctor_reports_the_machine() {
    let report = stdout(&["doctor"]);
    assert!(
        report.lines().count() > 3 && report.contains("cores"),
        "{report}"
    );
}

#[test]
fn help_names_every_command_and_flag() {
    let help = stdout(&["--help"]);
    for command in ["serve", "generate", "doctor"] {
        assert!(help.contains(command), "{help}");
    }
    let help = stdout(&["serve", "--help"]);
    let flags = "--host --port --api-key --served-model-name --max-model-len --max-num-seqs --max-num-batched-tokens \
        --block-size --num-kv-blocks --seed --dtype --load-format --enable-prefix-caching --chat-template --scheduler";
    for flag in flags.split_whitespace() {
        assert!(help.contains(flag), "{flag} is not in: {help}");
    }
}

//! What cannot be answered is refused with what would be possible, and costs nothing.

use serde_json::json;

use crate::server::Server;

#[test]
fn prompts_that_never_fit_are_400_with_both_lengths() {
    // 8 blocks of 16, and the last token's KV is never written.
    const CONTEXT: usize = 129;
    let server = Server::start(&["--num-kv-blocks", "8"]);
    assert_eq!(
        server.get("/v1/models").json()["data"][0]["max_model_len"],
        CONTEXT
    );
    for (num_prompt_tokens, max_tokens) in [(200, 1), (CONTEXT, 1), (100, CONTEXT - 99), (9000, 1)]
    {
        let answer = server
            .try_complete(&json!({"prompt": vec![1; num_prompt_tokens], "max_tokens": max_tokens}));
        let message = answer.error(400);
        assert!(
            message.contains(&num_prompt_tokens.to_string()),
            "{message}"
        );
        assert!(message.contains(&CONTEXT.to_string()), "{message}");
    }
    let long = "all work and no play ".repeat(100);
    let chat = json!({"messages": [{"role": "user", "content": long}]});
    let message = server
        .post("/v1/chat/completions", chat.to_string())
        .error(400);
    assert!(message.contains(&CONTEXT.to_string()), "{message}");

    let full = server.complete(
        &json!({"prompt": vec![1; 100], "max_tokens": CONTEXT - 100, "ignore_eos": true}),
    );
    assert_eq!(full.ids.len(), CONTEXT - 100, "the whole pool can be used");
    server.until_idle();
}

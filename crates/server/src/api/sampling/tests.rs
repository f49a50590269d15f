use super::*;

fn limits() -> Limits {
    Limits {
        vocab_size: 100,
        max_model_len: 64,
        max_sequences: 128,
        defaults: SamplingDefaults::default(),
    }
}

fn parse(text: &str) -> Result<SamplingRequest, ApiError> {
    SamplingRequest::take(
        &mut Fields::parse(text.as_bytes()).expect("JSON"),
        &limits(),
    )
}

fn refused(text: &str) -> String {
    match parse(text) {
        Err(ApiError::InvalidField { param, .. }) => param,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn absence_and_null_give_openais_defaults() {
    let nulls = parse(
        r#"{"temperature":null,"top_p":null,"n":null,"seed":null,"stop":null,"logit_bias":null,"response_format":null}"#,
    );
    assert_eq!(nulls, parse("{}"));
    let request = parse("{}").expect("defaults");
    assert_eq!(
        (request.n, request.temperature, request.top_p, request.top_k),
        (1, 1.0, 1.0, 0)
    );
    assert!(request.skip_special_tokens && request.stop.is_empty());
}

#[test]
fn what_is_out_of_range_or_of_another_type_names_its_field() {
    for (text, param) in [
        (r#"{"temperature":999999}"#, "temperature"),
        (r#"{"temperature":"0.5"}"#, "temperature"),
        (r#"{"top_p":-1}"#, "top_p"),
        (r#"{"top_k":-2}"#, "top_k"),
        (r#"{"min_p":1.5}"#, "min_p"),
        (r#"{"repetition_penalty":0}"#, "repetition_penalty"),
        (r#"{"presence_penalty":2.1}"#, "presence_penalty"),
        (r#"{"logit_bias":{"100":1}}"#, "logit_bias"),
        (r#"{"logit_bias":{"1":101}}"#, "logit_bias"),
        (r#"{"logit_bias":[1]}"#, "logit_bias"),
        (r#"{"stop_token_ids":[100]}"#, "stop_token_ids"),
        (r#"{"allowed_token_ids":[]}"#, "allowed_token_ids"),
        (r#"{"seed":18446744073709551616}"#, "seed"),
        (r#"{"n":1000000}"#, "n"),
        (r#"{"n":0}"#, "n"),
        (r#"{"n":true}"#, "n"),
        (r#"{"stop":[1]}"#, "stop"),
        (r#"{"stop":{}}"#, "stop"),
        (r#"{"min_tokens":-1}"#, "min_tokens"),
        (r#"{"bad_words":[""]}"#, "bad_words"),
        (r#"{"ignore_eos":1}"#, "ignore_eos"),
        (
            r#"{"response_format":{"type":"xml"}}"#,
            "response_format.type",
        ),
        (r#"{"prompt_logprobs":-1}"#, "prompt_logprobs"),
        (r#"{"prompt_logprobs":21}"#, "prompt_logprobs"),
    ] {
        assert_eq!(refused(text), param, "{text}");
    }
}

#[test]
fn stop_takes_every_form_and_empty_ones_vanish() {
    for (text, want) in [
        (r#"{"stop":""}"#, vec![]),
        (r#"{"stop":[]}"#, vec![]),
        (r#"{"stop":["","a"]}"#, vec!["a"]),
        (r#"{"stop":"a"}"#, vec!["a"]),
    ] {
        assert_eq!(parse(text).expect(text).stop, want);
    }
}

#[test]
fn tiny_temperature_is_greedy_and_tiny_top_p_stays_above_zero() {
    assert_eq!(
        parse(r#"{"temperature":1e-9}"#).expect("valid").temperature,
        0.0
    );
    assert!(parse(r#"{"top_p":0}"#).expect("valid").top_p > 0.0);
    assert_eq!(parse(r#"{"top_k":-1}"#).expect("valid").top_k, 0);
}

#[test]
fn stream_options_without_a_stream_are_refused() {
    let take = |text: &str| StreamRequest::take(&mut Fields::parse(text.as_bytes()).expect("JSON"));
    assert!(take(r#"{"stream_options":{"include_usage":true}}"#).is_err());
    assert!(
        take(r#"{"stream":true,"stream_options":{"include_usage":true}}"#)
            .expect("valid")
            .include_usage
    );
    assert_eq!(
        take(r#"{"stream":null,"stream_options":null}"#),
        Ok(StreamRequest::default())
    );
}

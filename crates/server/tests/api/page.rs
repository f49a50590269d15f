//! The page at `/`: what a browser is given, and what it is told not to do with it.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use izar_server::ServerOptions;
use tower::ServiceExt;

use crate::common::{Answer, Harness, saying};

async fn get_with(harness: &Harness, path: &str, name: &str, value: &str) -> Answer {
    let request = Request::get(path).header(name, value).body(Body::empty());
    harness.send(request.expect("a request")).await
}

#[tokio::test]
async fn page_is_served_with_a_policy_that_allows_its_own_files_alone() {
    let harness = Harness::new(saying("ok"));
    for path in ["/", "/ui/index.html"] {
        let page = harness.get(path).await;
        assert_eq!(page.status, StatusCode::OK);
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
        assert!(page.text.starts_with("<!doctype html>"), "{}", page.text);
        let policy = page.headers["content-security-policy"]
            .to_str()
            .expect("ASCII");
        let directives: Vec<&str> = policy.split(';').map(str::trim).collect();
        assert_eq!(
            directives,
            [
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "connect-src 'self'",
                "img-src 'self'",
                "frame-ancestors 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            ]
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
            ("vary", "accept-encoding"),
        ] {
            assert_eq!(page.headers[name], value);
        }
    }
}

#[tokio::test]
async fn page_needs_no_key_and_what_it_asks_for_does() {
    let options = ServerOptions {
        api_keys: vec!["secret".to_owned()],
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    assert_eq!(harness.get("/").await.status, StatusCode::OK);
    assert_eq!(
        harness.get("/v1/models").await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn operator_can_do_without_the_page() {
    let options = ServerOptions {
        page: false,
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    for path in ["/", "/ui/index.html"] {
        let answer = harness.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(answer.error("code"), "unknown_url");
    }
    assert_eq!(
        harness.chat(serde_json::json!({})).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn file_that_is_not_there_is_404_wherever_it_would_lead() {
    let harness = Harness::new(saying("ok"));
    for path in [
        "/ui/nothing.js",
        "/ui/",
        "/ui/../Cargo.toml",
        "/ui/..%2f..%2fCargo.toml",
        "/ui//etc/passwd",
        "/ui/%00",
        "/index.html",
    ] {
        let answer = harness.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.error("code"), "unknown_url");
    }
}

#[tokio::test]
async fn head_says_what_get_would_and_sends_nothing() {
    let harness = Harness::new(saying("ok"));
    let page = harness.get("/").await;
    let request = Request::builder().method(Method::HEAD).uri("/");
    let head = harness
        .send(request.body(Body::empty()).expect("a request"))
        .await;
    assert_eq!((head.status, head.text.as_str()), (StatusCode::OK, ""));
    for name in ["etag", "content-type", "content-security-policy"] {
        assert_eq!(head.headers[name], page.headers[name]);
    }
    let length = head.headers["content-length"].to_str().expect("ASCII");
    assert_eq!(length, page.text.len().to_string());
}

#[tokio::test]
async fn browser_that_has_the_page_is_not_sent_it_again() {
    let harness = Harness::new(saying("ok"));
    let page = harness.get("/").await;
    let etag = page.headers["etag"].to_str().expect("ASCII");
    let again = get_with(&harness, "/", "if-none-match", etag).await;
    assert_eq!(
        (again.status, again.text.as_str()),
        (StatusCode::NOT_MODIFIED, "")
    );
    assert_eq!(again.headers["etag"], page.headers["etag"]);
    assert!(again.headers.contains_key("content-security-policy"));
    let other = get_with(&harness, "/", "if-none-match", "\"other\"").await;
    assert_eq!((other.status, other.text), (StatusCode::OK, page.text));
}

#[tokio::test]
async fn file_worth_compressing_is_smaller_on_the_wire_and_the_same_behind_it() {
    let harness = Harness::new(saying("ok"));
    let plain = harness.get("/").await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let request = Request::get("/").header("accept-encoding", "gzip");
    let response = harness
        .router
        .clone()
        .oneshot(request.body(Body::empty()).expect("a request"))
        .await
        .expect("infallible");
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_ne!(response.headers()["etag"], plain.headers["etag"]);
    let body = axum::body::to_bytes(response.into_body(), 1 << 24).await;
    let body = body.expect("a body");
    assert!(body.len() < plain.text.len());
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(&body[..]);
    std::io::Read::read_to_string(&mut decoder, &mut text).expect("gzip");
    assert_eq!(text, plain.text);
}

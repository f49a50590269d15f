//! Real sockets: Unix, TLS, shutting down while clients read, and traces that leave for a collector.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use izar_server::{
    Listener, ServerOptions, TlsError, TlsIdentity, TraceOptions, refuse_while_loading,
};
use izar_transport::client::RingClient;
use izar_transport::mock_engine::{MockEngine, MockOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};

use crate::common::{chat_body, saying, server};
use crate::operations::hanging;

/// A server that serves until told to stop.
struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    client: Arc<RingClient>,
    _engine: MockEngine,
}

impl Serving {
    fn start(mock: MockOptions, options: ServerOptions, listener: impl Into<Listener>) -> Self {
        let (server, client, engine) = server(mock, options);
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = listener.into();
        let task = tokio::spawn(async move {
            server
                .serve(listener, async {
                    let _ = stopped.await;
                })
                .await;
        });
        Self {
            stop,
            task,
            client,
            _engine: engine,
        }
    }

    async fn stop(self) {
        self.stop.send(()).expect("serving");
        in_time(self.task).await.expect("no panic");
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, work).await.expect("in time")
}

async fn tcp() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn chat_request(headers: &str, extra: Value) -> String {
    let body = chat_body(extra);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and reads until `end` has come.
async fn exchange(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
    end: &str,
) -> String {
    socket.write_all(request.as_bytes()).await.expect("sent");
    read_until(socket, end).await
}

async fn read_until(socket: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if text.contains(end) {
            return text;
        }
        let num_bytes = in_time(socket.read_buf(&mut answer)).await;
        assert!(num_bytes.expect("readable") > 0, "{text}");
    }
}

#[tokio::test]
async fn unix_socket_serves_as_a_port_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("izar.sock");
    let listener = UnixListener::bind(&path).expect("bound");
    let serving = Serving::start(saying("over a socket"), ServerOptions::default(), listener);
    let mut socket = UnixStream::connect(&path).await.expect("connected");
    let whole = exchange(&mut socket, &chat_request("", json!({})), "usage").await;
    assert!(whole.starts_with("HTTP/1.1 200") && whole.contains("over a socket"));
    // The same connection, streamed.
    let request = chat_request("", json!({"stream": true}));
    assert!(
        exchange(&mut socket, &request, "[DONE]")
            .await
            .contains("chat.completion.chunk")
    );
    serving.stop().await;
}

/// A certificate for `localhost` in files, and a client that trusts it.
fn identity(folder: &std::path::Path) -> (TlsIdentity, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (
        TlsIdentity::from_files(&certificate, &key).expect("an identity"),
        TlsConnector::from(Arc::new(config)),
    )
}

#[tokio::test]
async fn tls_serves_and_a_client_that_dawdles_over_the_handshake_holds_up_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let (identity, connector) = identity(folder.path());
    let (listener, address) = tcp().await;
    let listener = Listener::from(listener).with_tls(&identity);
    let serving = Serving::start(saying("in secret"), ServerOptions::default(), listener);
    let _dawdler = TcpStream::connect(address).await.expect("connected");
    let connect = async || {
        let socket = TcpStream::connect(address).await.expect("connected");
        let name = "localhost".try_into().expect("a name");
        connector.connect(name, socket).await.expect("a handshake")
    };
    let mut socket = connect().await;
    let request = chat_request("", json!({"stream": true}));
    let answer = exchange(&mut socket, &request, "[DONE]").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Plain HTTP is not understood, and the next client is served all the same.
    let mut plain = TcpStream::connect(address).await.expect("connected");
    plain.write_all(request.as_bytes()).await.expect("sent");
    let mut rest = Vec::new();
    let _ = in_time(plain.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP"));
    exchange(&mut connect().await, &request, "[DONE]").await;
    serving.stop().await;
}

#[tokio::test]
async fn early_answers_are_under_tls_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (identity, connector) = identity(folder.path());
    let (listener, address) = tcp().await;
    let listener = Listener::from(listener).with_tls(&identity);
    let (_load, loaded) = oneshot::channel::<()>();
    tokio::spawn(refuse_while_loading(listener, async {
        let _ = loaded.await;
    }));
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = "localhost".try_into().expect("a name");
    let mut socket = connector.connect(name, socket).await.expect("a handshake");
    let request = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = exchange(&mut socket, request, "loading").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[test]
fn unusable_certificates_are_refused_by_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    identity(folder.path());
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    std::fs::write(path("junk.pem"), "junk").expect("written");
    let (junk, missing) = (path("junk.pem"), path("missing.pem"));
    let error = |cert, key| TlsIdentity::from_files(cert, key).expect_err("unusable");
    assert!(matches!(error(&missing, &key), TlsError::File { path, .. } if path == missing));
    assert!(matches!(error(&junk, &key), TlsError::Pem { path, .. } if path == junk));
    assert!(matches!(error(&cert, &junk), TlsError::Pem { path, .. } if path == junk));
    let other = rcgen::generate_simple_self_signed(["x".to_owned()]).expect("a certificate");
    std::fs::write(path("other.pem"), other.signing_key.serialize_pem()).expect("written");
    let mismatch = TlsIdentity::from_files(&cert, &path("other.pem"));
    assert!(matches!(mismatch, Err(TlsError::Pair(_))));
}

#[tokio::test]
async fn streams_that_outlive_the_shutdown_timeout_end_with_an_error_event() {
    let (listener, address) = tcp().await;
    let options = ServerOptions {
        shutdown_timeout: Duration::from_millis(100),
        ..ServerOptions::default()
    };
    let serving = Serving::start(hanging("ab"), options, listener);
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = chat_request("", json!({"stream": true}));
    exchange(&mut stream, &request, "content\":\"").await;
    let mut whole = TcpStream::connect(address).await.expect("connected");
    let request = chat_request("", json!({}));
    whole.write_all(request.as_bytes()).await.expect("sent");
    while serving.client.stats().slots_in_use < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stopping = tokio::spawn(serving.stop());
    let mut rest = String::new();
    in_time(stream.read_to_string(&mut rest))
        .await
        .expect("a proper end");
    assert!(rest.contains("data: {\"error\":"), "{rest}");
    assert!(
        !rest.contains("[DONE]") && rest.ends_with("0\r\n\r\n"),
        "{rest}"
    );
    let refused = read_until(&mut whole, "\"error\"").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    in_time(stopping).await.expect("no panic");
}

/// A collector that takes one export and passes its body on.
fn collect(listener: TcpListener) -> JoinHandle<(String, Value)> {
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        let head = read_until(&mut socket, "}]}]}").await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        socket.write_all(answer).await.expect("answered");
        let (head, body) = head.split_once("\r\n\r\n").expect("head and body");
        (head.to_owned(), serde_json::from_str(body).expect("JSON"))
    })
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|one| one["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"]
}

#[tokio::test]
async fn traces_reach_the_collector_under_the_callers_span() {
    let (collector, collector_address) = tcp().await;
    let collected = collect(collector);
    let (listener, address) = tcp().await;
    let options = ServerOptions {
        traces: Some(TraceOptions {
            collector: format!("http://{collector_address}")
                .parse()
                .expect("a URL"),
            service_name: "tested".to_owned(),
        }),
        ..ServerOptions::default()
    };
    let serving = Serving::start(saying("abc"), options, listener);
    let mut socket = TcpStream::connect(address).await.expect("connected");
    let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    for (flags, id) in [("00", "unsampled"), ("01", "sampled")] {
        let headers = format!("traceparent: 00-{ids}-{flags}\r\nx-request-id: {id}\r\n");
        let request = chat_request(&headers, json!({"stream": true}));
        exchange(&mut socket, &request, "[DONE]").await;
    }
    // Stopping flushes.
    serving.stop().await;
    let (head, body) = in_time(collected).await.expect("no panic");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    let resource = &body["resourceSpans"][0];
    assert_eq!(
        attribute(&resource["resource"], "service.name")["stringValue"],
        "tested"
    );
    let spans = resource["scopeSpans"][0]["spans"].as_array();
    let [span] = spans.expect("spans").as_slice() else {
        panic!("the unsampled request is not traced, the other one is: {body}");
    };
    assert_eq!(span["traceId"], ids[..32]);
    assert_eq!(span["parentSpanId"], ids[33..]);
    assert_eq!(span["spanId"].as_str().map(str::len), Some(16));
    assert_eq!(
        attribute(span, "gen_ai.request.id")["stringValue"],
        "sampled"
    );
    assert_eq!(
        attribute(span, "http.response.status_code")["intValue"],
        "200"
    );
    assert_eq!(
        attribute(span, "gen_ai.usage.completion_tokens")["intValue"],
        "4"
    );
    assert!(attribute(span, "gen_ai.latency.time_to_first_token")["doubleValue"].is_f64());
    assert_eq!(span["status"], json!({}));
}

#[tokio::test]
async fn collector_that_is_not_there_costs_nothing_but_the_traces() {
    let (collector, collector_address) = tcp().await;
    drop(collector);
    let (listener, address) = tcp().await;
    let options = ServerOptions {
        traces: Some(TraceOptions {
            collector: format!("http://{collector_address}")
                .parse()
                .expect("a URL"),
            service_name: "tested".to_owned(),
        }),
        ..ServerOptions::default()
    };
    let serving = Serving::start(saying("abc"), options, listener);
    let mut socket = TcpStream::connect(address).await.expect("connected");
    for _ in 0..3 {
        let request = chat_request("", json!({}));
        exchange(&mut socket, &request, "usage").await;
    }
    serving.stop().await;
}

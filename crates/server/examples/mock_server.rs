//! The whole front end over an engine that computes nothing: for developing and testing clients without a model.
//!
//! ```text
//! cargo run -p izar-server --example mock_server -- PORT [KEY]
//! ```
//!
//! It calls itself `mock`, knows the 256 bytes as its tokens, and answers everything with the same sentence.

#[allow(dead_code)]
#[path = "../tests/api/support.rs"]
mod support;

use izar_server::ServerOptions;
use izar_transport::mock_engine::Reply;
use tokio::net::TcpListener;

const ANSWER: &str = "An engine that computes nothing has said so.";

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok());
    let Some(port) = port else {
        eprintln!("usage: mock_server PORT [KEY]");
        std::process::exit(2);
    };
    let mock = support::answering(|_| {
        let text = ANSWER.bytes().map(u32::from);
        Reply::tokens(text.chain([support::IM_END]).collect::<Vec<_>>())
    });
    let options = ServerOptions {
        api_keys: arguments.collect(),
        ..ServerOptions::default()
    };
    let (server, _client, _engine) = support::server(mock, options);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    // Until it is killed: there is nothing to save.
    server.serve(listener, std::future::pending()).await;
    Ok(())
}

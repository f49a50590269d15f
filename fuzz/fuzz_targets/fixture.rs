//! A server over a mock engine, started once for a whole run of a target.

use std::sync::OnceLock;

use izar_server::{Server, ServerOptions};
use izar_transport::client::RingClient;
use izar_transport::mock_engine::{MockEngine, Reply};

#[allow(dead_code)]
#[path = "../../crates/server/tests/api/support.rs"]
pub mod support;

struct Fixture {
    server: Server,
    _client: std::sync::Arc<RingClient>,
    _engine: MockEngine,
}

/// The server of this process.
pub fn server() -> &'static Server {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| {
        let mock = support::answering(|_| Reply::tokens([support::IM_END]));
        let (server, _client, _engine) = support::server(mock, ServerOptions::default());
        Fixture {
            server,
            _client,
            _engine,
        }
    });
    &fixture.server
}

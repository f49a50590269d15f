//! The OpenAI-compatible front end.
//!
//! One request: the body is parsed and checked (`api`), its text becomes token ids, its sequences go into the ring (`answer`), and
//! tokens come back as text (`output`) in one body or as server-sent events. The front end never sees weights and the engine never
//! sees text: all that this crate knows of the engine is a [`RingClient`](izar_transport::client::RingClient) and what the ring's header says.
//!
//! State: [`Server`] owns everything that requests share, all of it immutable or atomic. What belongs to one request is owned by that request's
//! future or body and goes with it, so a client that leaves takes its sequences along.
#![forbid(unsafe_code)]

mod admission;
mod answer;
mod api;
mod app;
mod auth;
pub mod constrain;
mod cors;
mod deadline;
mod drain;
mod error;
mod exchange;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ids;
mod listener;
mod message;
mod metrics;
mod output;
mod page;
mod process;
mod routes;
mod server;
mod stats;
mod trace;

pub use api::SamplingDefaults;
pub use app::ServedModel;
pub use cors::{Cors, CorsError};
pub use listener::{Listener, TlsError, TlsIdentity};
pub use message::{ReasoningFormat, ToolFormat};
pub use server::{Server, ServerOptions, refuse_while_loading};
pub use trace::{CollectorUrl, CollectorUrlError, TraceOptions};

//! The built `izar` binary with a real model, through HTTP and the terminal.
//!
//! Every test starts a server of its own on a port that the system chooses and stops it at the end. The model is the one that
//! `scripts/fetch-model` fetches; `IZAR_TEST_MODEL` names another place for it.

mod http;
mod isolation;
mod leaving;
mod lifecycle;
mod load;
mod logs;
mod malformed;
mod prompts;
mod reference;
mod refusals;
mod resources;
mod server;
mod startup;
mod structured;
mod terminal;
mod tools;
mod wild;

//! The izar command line: `serve`, `generate`, `bench`, `doctor`.
//!
//! It reads flags, wires the engine, the ring and the front end together ([`backend`]), and reports failures in one line with what
//! to do next. All work is done in the crates below it.

mod backend;
mod bench;
mod cli;
mod doctor;
mod generate;
mod listen;
mod logging;
mod memory;
mod progress;
mod serve;
mod text;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(&cli.logging);
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor => doctor::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("izar: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! Logs on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::LoggingArgs;

/// Starts logging. A filter that cannot be read is replaced by `info`, with a warning.
pub fn start(args: &LoggingArgs) {
    let (filter, unreadable) = match args.log.parse::<EnvFilter>() {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if args.log_json {
        builder.json().init();
    } else {
        builder.with_target(false).init();
    }
    if let Some(error) = unreadable {
        tracing::warn!(%error, "--log cannot be read; logging at level info");
    }
}

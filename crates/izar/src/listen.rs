//! The socket that `izar serve` listens on, and the keys and certificates it is given in files.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use izar_server::{Listener, TlsIdentity};
use tokio::net::{TcpListener, UnixListener};

use crate::cli::ServeArgs;

/// A bound socket. It can be handed from one user to the next without a moment in which clients are turned away.
pub struct Bound {
    socket: Socket,
    tls: Option<TlsIdentity>,
}

enum Socket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, PathBuf),
}

impl Bound {
    /// Binds what the flags ask for. Needs a runtime.
    pub async fn bind(args: &ServeArgs) -> Result<Self> {
        let tls = match (&args.ssl_certfile, &args.ssl_keyfile) {
            (Some(certificate), Some(key)) => Some(TlsIdentity::from_files(certificate, key)?),
            _ => None,
        };
        let socket = match &args.uds {
            Some(path) => Socket::Unix(bind_unix(path)?.into_std()?, path.clone()),
            None => Socket::Tcp(bind_tcp(args).await?.into_std()?),
        };
        Ok(Self { socket, tls })
    }

    /// Another handle of the same socket. Needs a runtime.
    pub fn listener(&self) -> std::io::Result<Listener> {
        let listener = match &self.socket {
            Socket::Tcp(socket) => Listener::from(TcpListener::from_std(socket.try_clone()?)?),
            Socket::Unix(socket, _) => Listener::from(UnixListener::from_std(socket.try_clone()?)?),
        };
        Ok(match &self.tls {
            Some(tls) => listener.with_tls(tls),
            None => listener,
        })
    }

    /// Where clients find the API.
    pub fn url(&self) -> Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(match &self.socket {
            Socket::Tcp(socket) => format!("{scheme}://{}/v1", socket.local_addr()?),
            Socket::Unix(_, path) => format!("unix:{} ({scheme})", path.display()),
        })
    }

    /// Whether other machines can reach it.
    pub fn is_public(&self) -> bool {
        match &self.socket {
            Socket::Tcp(socket) => socket
                .local_addr()
                .is_ok_and(|address| !address.ip().is_loopback()),
            Socket::Unix(..) => false,
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn bind_tcp(args: &ServeArgs) -> Result<TcpListener> {
    let listener = TcpListener::bind((args.host, args.port)).await;
    listener.with_context(|| {
        format!(
            "cannot listen on {}:{}: choose another --host or --port",
            args.host, args.port
        )
    })
}

/// Binds `path`, taking the place of a socket that nobody answers on any more.
fn bind_unix(path: &Path) -> Result<UnixListener> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket {
        ensure!(
            std::os::unix::net::UnixStream::connect(path).is_err(),
            "another server listens on {}: choose another --uds",
            path.display()
        );
        std::fs::remove_file(path)
            .with_context(|| format!("cannot replace the stale socket {}", path.display()))?;
    }
    UnixListener::bind(path)
        .with_context(|| format!("cannot listen on {}: choose another --uds", path.display()))
}

/// All keys: those of flags and those of files, which hold one a line.
///
/// # Errors
/// Where a file cannot be read, and where keys were meant but none is there: the API would be open.
pub fn api_keys(args: &ServeArgs) -> Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    for path in &args.api_key_file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the keys in {}", path.display()))?;
        let before = keys.len();
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(str::to_owned),
        );
        ensure!(
            keys.len() > before,
            "there is no key in {}: write one a line",
            path.display()
        );
    }
    if keys.iter().any(String::is_empty) {
        bail!("an API key is empty: leave --api-key and IZAR_API_KEY out for an open API");
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(flags: &[&str]) -> ServeArgs {
        match Cli::parse_from([&["izar", "serve", "m.gguf"], flags].concat()).command {
            Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_come_from_flags_and_files_and_an_empty_one_is_refused() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        write!(file, "# clients\n one \n\ntwo\n").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let keys = api_keys(&args(&["--api-key", "zero", "--api-key-file", path]));
        assert_eq!(keys.expect("keys"), ["zero", "one", "two"]);
        assert!(api_keys(&args(&["--api-key", ""])).is_err());
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let path = empty.path().to_str().expect("UTF-8");
        assert!(api_keys(&args(&["--api-key-file", path])).is_err());
        assert!(api_keys(&args(&["--api-key-file", "/nowhere"])).is_err());
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("izar.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let flags = ["--uds", path.to_str().expect("UTF-8")];
        let bound = Bound::bind(&args(&flags)).await.expect("replaced");
        let _listener = bound.listener().expect("another handle");
        assert!(Bound::bind(&args(&flags)).await.is_err());
        assert!(!bound.is_public() && bound.url().expect("a name").starts_with("unix:"));
        drop(bound);
        assert!(!path.exists());
        std::fs::write(&path, "not a socket").expect("written");
        assert!(Bound::bind(&args(&flags)).await.is_err());
    }
}

//! Where the server listens: a TCP port or a Unix socket, in the clear or under TLS.
//!
//! Accepting is one thing and opening a connection another: the TLS handshake belongs to the connection's own task, so that a client that
//! dawdles over it holds up nobody.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A socket that clients connect to, and how they are spoken to.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self {
            socket: Socket::Tcp(socket),
            tls: None,
        }
    }
}

impl From<UnixListener> for Listener {
    fn from(socket: UnixListener) -> Self {
        Self {
            socket: Socket::Unix(socket),
            tls: None,
        }
    }
}

impl Listener {
    /// Speaks TLS as `identity` says.
    #[must_use]
    pub fn with_tls(self, identity: &TlsIdentity) -> Self {
        Self {
            tls: Some(TlsAcceptor::from(Arc::clone(&identity.0))),
            ..self
        }
    }

    /// The next connection, not yet opened.
    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        let stream = match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection keeps Nagle's algorithm: its tokens may come late");
                }
                Stream::Tcp(stream)
            }
            Socket::Unix(socket) => Stream::Unix(socket.accept().await?.0),
        };
        Ok(Connection {
            stream,
            tls: self.tls.clone(),
        })
    }
}

/// A connection that was accepted.
pub(crate) struct Connection {
    stream: Stream,
    tls: Option<TlsAcceptor>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Both directions of an open connection.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Connection {
    /// Makes the connection ready for HTTP: the handshake, under TLS.
    pub(crate) async fn open(self) -> io::Result<Box<dyn Io>> {
        Ok(match (self.stream, self.tls) {
            (Stream::Tcp(stream), None) => Box::new(stream),
            (Stream::Unix(stream), None) => Box::new(stream),
            (Stream::Tcp(stream), Some(tls)) => Box::new(tls.accept(stream).await?),
            (Stream::Unix(stream), Some(tls)) => Box::new(tls.accept(stream).await?),
        })
    }
}

/// A certificate chain and its key. Cheap to clone.
#[derive(Clone)]
pub struct TlsIdentity(Arc<ServerConfig>);

/// Why a [`TlsIdentity`] could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        reason: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} holds no usable {what}: {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What was found.
        reason: pem::Error,
    },
    /// Key and certificate do not go together.
    #[error("the certificate and the key cannot be used together: {0}")]
    Pair(#[from] rustls::Error),
}

impl TlsIdentity {
    /// Reads a PEM file with a certificate chain, the server's own first, and a PEM file with its key.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let pem = |path: &Path, what, reason| TlsError::Pem {
            path: path.to_owned(),
            what,
            reason,
        };
        let chain = CertificateDer::pem_reader_iter(open(certificate)?)
            .collect::<Result<Vec<_>, _>>()
            .and_then(|chain| match chain.as_slice() {
                [] => Err(pem::Error::NoItemsFound),
                _ => Ok(chain),
            })
            .map_err(|reason| pem(certificate, "certificate", reason))?;
        let key = PrivateKeyDer::from_pem_reader(open(key)?)
            .map_err(|reason| pem(key, "private key", reason))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity")
    }
}

fn open(path: &Path) -> Result<File, TlsError> {
    File::open(path).map_err(|reason| TlsError::File {
        path: path.to_owned(),
        reason,
    })
}

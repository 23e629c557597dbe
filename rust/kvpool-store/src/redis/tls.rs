//! `Tls`: the certificates of client and server, for TLS 1.2 and 1.3.
//!
//! Owns: the certificates, which are read once, when the back end is opened. Unreadable files, or an
//! empty list of authorities, are errors at that time. If a server has a certificate that is not
//! trusted, each connection to it fails. The client never falls back to a connection without TLS.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Settings of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of the trusted certificate authorities. `None` means the authorities of this system.
    pub authorities: Option<PathBuf>,
    /// PEM files of the client's certificate and key, for servers that require them.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Name in the server's certificate, if it differs from the host name.
    pub server_name: Option<String>,
}

/// The contents of the certificate files.
#[derive(Clone)]
pub(super) struct Ready {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// Does not print the client's private key.
impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.server_name)
    }
}

fn invalid(what: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_string())
}

/// Returns a function that converts the error of a certificate file into an I/O error with the path of
/// this file.
fn of<E: fmt::Display>(path: &Path) -> impl Fn(E) -> io::Error {
    move |error| invalid(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(of(path))?;
    if found.is_empty() { Err(of(path)("no certificate in it")) } else { Ok(found) }
}

impl Tls {
    /// Reads the certificate files, and prepares the TLS settings for connections to `host`.
    pub(super) fn ready(&self, host: &str) -> io::Result<Ready> {
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(of(path))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(invalid(
                "this system has no certificates of authorities: set a file with certificates",
            ));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(invalid)?.with_root_certificates(roots);
        let config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let own = PrivateKeyDer::from_pem_file(key).map_err(of(key))?;
                builder.with_client_auth_cert(certificates(certificate)?, own).map_err(of(key))?
            }
        };
        let name = self.server_name.as_deref().unwrap_or(host);
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| invalid(format!("{name:?} is not the name of a server")))?;
        Ok(Ready { config: Arc::new(config), server_name })
    }
}

impl Ready {
    pub(super) fn connection(&self) -> io::Result<ClientConnection> {
        ClientConnection::new(Arc::clone(&self.config), self.server_name.clone()).map_err(io::Error::other)
    }
}

//! `Stream`: a connection over TCP, with TLS or without, or a Unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "tls")]
use rustls::{ClientConnection, StreamOwned};

#[cfg(feature = "tls")]
use super::tls::{Ready, Tls};

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host, by name or number, and a port.
    Tcp(String, u16),
    /// The same, over TLS.
    #[cfg(feature = "tls")]
    Tls(String, u16, Tls),
    /// A socket in the file system of this machine.
    Unix(PathBuf),
}

impl Address {
    /// Reads the certificates that it names.
    pub(super) fn ready(&self) -> io::Result<Place> {
        Ok(match self {
            Self::Tcp(host, port) => Place::Tcp(host.clone(), *port),
            #[cfg(feature = "tls")]
            Self::Tls(host, port, tls) => Place::Tls(host.clone(), *port, tls.ready(host)?),
            Self::Unix(path) => Place::Unix(path.clone()),
        })
    }
}

/// An address, and all that it takes to connect.
#[derive(Debug)]
pub(super) enum Place {
    Tcp(String, u16),
    #[cfg(feature = "tls")]
    Tls(String, u16, Ready),
    Unix(PathBuf),
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Connects. From then on nothing takes longer than `timeout` without a byte.
    pub(super) fn connect(place: &Place, timeout: Duration) -> io::Result<Self> {
        match place {
            Place::Tcp(host, port) => tcp(host, *port, timeout).map(Self::Tcp),
            #[cfg(feature = "tls")]
            Place::Tls(host, port, tls) => {
                let mut stream = StreamOwned::new(tls.connection()?, tcp(host, *port, timeout)?);
                // Now, and not with the first command: a password goes to nobody else.
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                Ok(Self::Tls(Box::new(stream)))
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                Ok(Self::Unix(stream))
            }
        }
    }
}

fn tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("no address of {host}"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(parts),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_vectored(parts),
            Self::Unix(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }
}

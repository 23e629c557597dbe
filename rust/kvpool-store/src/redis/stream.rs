//! `Stream`: a connection over TCP (with or without TLS) or over a Unix socket.
//!
//! Owns: the time limits. Each system call ends after the timeout, and every call ends at the deadline.
//! The deadline is implemented below TLS, because TLS reads repeatedly until a record is complete.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
#[cfg(feature = "tls")]
use rustls::{ClientConnection, StreamOwned};

#[cfg(feature = "tls")]
use super::tls::{Ready, Tls};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port, without TLS.
    Tcp(String, u16),
    /// Host name or IP address, and port, with TLS.
    #[cfg(feature = "tls")]
    Tls(String, u16, Tls),
    /// Path of a Unix socket on this machine.
    Unix(PathBuf),
}

impl Address {
    /// Returns what is needed to connect. For TLS, this reads the certificate files that the address
    /// names.
    pub(super) fn ready(&self) -> io::Result<Place> {
        Ok(match self {
            Self::Tcp(host, port) => Place::Tcp(host.clone(), *port),
            #[cfg(feature = "tls")]
            Self::Tls(host, port, tls) => Place::Tls(host.clone(), *port, tls.ready(host)?),
            Self::Unix(path) => Place::Unix(path.clone()),
        })
    }
}

/// An address of a server. For TLS, it includes the contents of the certificate files.
#[derive(Debug)]
pub(super) enum Place {
    Tcp(String, u16),
    #[cfg(feature = "tls")]
    Tls(String, u16, Ready),
    Unix(PathBuf),
}

/// Time limits for the system calls on a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longest time that one system call waits for a byte.
    pub(super) timeout: Duration,
    /// Time at which every call fails, even if bytes still arrive. `None` means no
    /// deadline.
    pub(super) until: Option<Instant>,
}

impl Limits {
    /// Returns how long the next system call may wait. Fails if the deadline has passed.
    fn next(&self) -> io::Result<Duration> {
        let left = self.until.map_or(self.timeout, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server is too slow"));
        }
        Ok(left.min(self.timeout))
    }
}

/// A socket with time limits. Every call ends at the deadline, even if a few bytes arrive again and
/// again.
#[derive(Debug)]
pub(super) struct Timed<S> {
    socket: S,
    limits: Limits,
}

/// Sets the timeouts of a socket for its next read or write.
pub(super) trait Timeouts {
    fn read_within(&self, timeout: Duration) -> io::Result<()>;
    fn write_within(&self, timeout: Duration) -> io::Result<()>;
}

macro_rules! timeouts {
    ($($socket:ty),*) => {$(
        impl Timeouts for $socket {
            fn read_within(&self, timeout: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(timeout))
            }

            fn write_within(&self, timeout: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(timeout))
            }
        }
    )*};
}
timeouts!(TcpStream, UnixStream);

impl<S: Read + Timeouts> Read for Timed<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.read_within(self.limits.next()?)?;
        self.socket.read(into)
    }
}

impl<S: Write + Timeouts> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write_within(self.limits.next()?)?;
        self.socket.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.write_within(self.limits.next()?)?;
        self.socket.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(Timed<TcpStream>),
    #[cfg(feature = "tls")]
    Tls(Box<StreamOwned<ClientConnection, Timed<TcpStream>>>),
    Unix(Timed<UnixStream>),
}

impl Stream {
    /// Connects within the time limits, including the TLS handshake. The lookup of the host name is not
    /// limited.
    pub(super) fn connect(place: &Place, limits: Limits) -> io::Result<Self> {
        match place {
            Place::Tcp(host, port) => tcp(host, *port, limits).map(Self::Tcp),
            #[cfg(feature = "tls")]
            Place::Tls(host, port, tls) => {
                let mut stream = StreamOwned::new(tls.connection()?, tcp(host, *port, limits)?);
                // Complete the handshake before the first command, so that no other server receives the
                // password.
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                Ok(Self::Tls(Box::new(stream)))
            }
            Place::Unix(path) => Ok(Self::Unix(Timed { socket: unix(path, limits.next()?)?, limits })),
        }
    }

    /// Sets the time limits for the system calls of the next command.
    pub(super) fn limit(&mut self, limits: Limits) {
        match self {
            Self::Tcp(stream) => stream.limits = limits,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.sock.limits = limits,
            Self::Unix(stream) => stream.limits = limits,
        }
    }
}

fn tcp(host: &str, port: u16, limits: Limits) -> io::Result<Timed<TcpStream>> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("no address of {host}"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limits.next()?) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(Timed { socket, limits });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a Unix socket. Waits at most `timeout` if the server accepts no connections.
fn unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
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

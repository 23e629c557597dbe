//! Tests a server that sends data without end, one byte at a time, or too much. Calls end in time, and
//! memory use remains small.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::{AGES, LEN, always, at, get, key, namespace, put, settle};
use kvpool_store::redis::{Address, Inspector, RedisBackend, RedisConfig};
use kvpool_store::{Arena, Get, Store, StoreConfig, Why};

/// How the server responds to a command; `HONEST` means correctly.
const HONEST: u8 = 0;
const PUSHES: u8 = 1;
const ATTRIBUTES: u8 = 2;
const ITEMS: u8 = 3;
const DRIPS: u8 = 4;
const CLAIMS: u8 = 5;
const KEYS: u8 = 6;

/// A server for one test. It has a port of its own and one value.
struct Hostile {
    port: u16,
    how: Arc<AtomicU8>,
}

impl Hostile {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, how) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU8::new(HONEST)));
        let (shared, value) = (how.clone(), Arc::new(Mutex::default()));
        thread::spawn(move || {
            for peer in listener.incoming() {
                let (how, value) = (shared.clone(), value.clone());
                // The thread ends when its connection ends.
                thread::spawn(move || drop(serve(&peer.unwrap(), &how, &value)));
            }
        });
        Self { port, how }
    }

    fn config(&self) -> RedisConfig {
        let address = Address::Tcp("127.0.0.1".into(), self.port);
        RedisConfig { timeout: Duration::from_secs(1), ..RedisConfig::new(address, 1 << 20, LEN) }
    }
}

fn command(from: &mut impl BufRead) -> std::io::Result<Vec<Vec<u8>>> {
    let number = |from: &mut dyn BufRead| -> std::io::Result<usize> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        line.get(1..)
            .and_then(|text| text.trim().parse().ok())
            .ok_or(std::io::ErrorKind::UnexpectedEof.into())
    };
    let count = number(from)?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; number(from)? + 2];
            from.read_exact(&mut word)?;
            word.truncate(word.len() - 2);
            Ok(word)
        })
        .collect()
}

fn serve(peer: &TcpStream, how: &AtomicU8, value: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    let (mut reader, mut peer) = (BufReader::new(peer.try_clone()?), peer);
    loop {
        let words = command(&mut reader)?;
        match (words[0].as_slice(), how.load(Ordering::Relaxed)) {
            (b"GET" | b"SCAN", PUSHES) => loop {
                peer.write_all(&b">1\r\n:1\r\n".repeat(500))?;
            },
            (b"GET" | b"SCAN", ATTRIBUTES) => loop {
                peer.write_all(&b"|1\r\n:1\r\n:2\r\n".repeat(500))?;
            },
            (b"GET" | b"SCAN", ITEMS) => {
                peer.write_all(b"*4611686018427387904\r\n")?;
                loop {
                    peer.write_all(&b":1\r\n".repeat(500))?;
                }
            }
            (b"GET" | b"SCAN", DRIPS) => {
                peer.write_all(b"$4000\r\n")?;
                // Waits for a short time for a byte from the client, and then sends one. This time is
                // much shorter than the client's timeout.
                peer.set_read_timeout(Some(Duration::from_millis(20)))?;
                loop {
                    peer.write_all(b"x")?;
                    if reader.fill_buf().is_ok() {
                        return Ok(()); // the client has disconnected
                    }
                }
            }
            (b"GET" | b"SCAN", CLAIMS) => peer.write_all(b"$9223372036854775807\r\nabc")?,
            (b"SCAN", KEYS) => {
                peer.write_all(b"*2\r\n$1\r\n0\r\n*60000\r\n")?;
                loop {
                    peer.write_all(&[b"$60000\r\n".to_vec(), vec![b'k'; 60_000], b"\r\n".to_vec()].concat())?;
                }
            }
            (b"SET", _) if words[1].ends_with(b"-0") => {
                value.lock().unwrap().clone_from(&words[2]);
                peer.write_all(b"+OK\r\n")?;
            }
            (b"GET", _) if words[1].ends_with(b"-0") => {
                let value = value.lock().unwrap().clone();
                peer.write_all(format!("${}\r\n", value.len()).as_bytes())?;
                peer.write_all(&value)?;
                peer.write_all(b"\r\n")?;
            }
            (b"GET", _) => peer.write_all(b"$-1\r\n")?,
            _ => peer.write_all(b"+OK\r\n")?,
        }
    }
}

/// Runs `work` on another thread, and fails if it does not end in time, because the test would
/// otherwise hang.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    thread::spawn(move || send.send(work()));
    done.recv_timeout(AGES).unwrap_or_else(|error| panic!("it does not end: {error}"))
}

#[test]
fn a_worker_comes_back_from_a_reply_without_end_and_its_slot_is_free() {
    for how in [PUSHES, ATTRIBUTES, ITEMS, DRIPS, CLAIMS] {
        let server = Hostile::start();
        ends(move || {
            let arena = Arena::new(4, LEN).unwrap();
            let backend = RedisBackend::open(server.config()).unwrap();
            let config = StoreConfig { workers: 1, ..always() };
            let mut store = Store::open(backend, arena.clone(), &namespace(1), config).unwrap();
            put(&mut store, &arena, 1, at(0)).unwrap();
            server.how.store(how, Ordering::Relaxed);
            store.get(&[Get { key: key(1), len: LEN, slot: 1 }], at(0)).unwrap();
            let objects = settle(&mut store, at(0)).pop().unwrap().objects;
            assert_eq!(objects, [Err(Why::Failed)], "{how}: {:?}", store.stats().last_error);
            assert_eq!(store.stats().quarantined, 0);
            // The next calls use a new connection, on which no bytes of the old one can arrive.
            server.how.store(HONEST, Ordering::Relaxed);
            put(&mut store, &arena, 1, at(20)).unwrap();
            assert_eq!(get(&mut store, &arena, 1, at(20)), Ok(()));
        });
    }
}

#[test]
fn a_look_from_outside_ends_whatever_a_server_lists() {
    for how in [PUSHES, ATTRIBUTES, ITEMS, DRIPS, CLAIMS, KEYS] {
        let server = Hostile::start();
        let inspector = Inspector::open(server.config()).unwrap();
        server.how.store(how, Ordering::Relaxed);
        let error = ends(move || inspector.scan(0, false).unwrap_err());
        assert!(error.to_string().starts_with("listing keys failed"), "{error}");
    }
}

/// The system's queue for new connections is full, so a client has to wait for its connection.
#[test]
fn a_server_that_accepts_nothing_is_waited_for_no_longer_than_the_timeout() {
    let folder = Folder::in_folder(std::env::temp_dir());
    let path = folder.path().join("redis");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    let error = ends(move || {
        loop {
            let config = RedisConfig {
                timeout: Duration::from_millis(50),
                ..RedisConfig::new(Address::Unix(path.clone()), 1 << 20, LEN)
            };
            let began = Instant::now();
            let error = RedisBackend::open(config).unwrap_err().to_string();
            assert!(began.elapsed() < AGES);
            // The server's system has accepted some clients. They have sent a command and received no reply.
            if waiting.len() > 4 {
                return error;
            }
            waiting.push(error);
        }
    });
    assert!(error.starts_with("asking the server failed"), "{error}");
    drop(listener);
}

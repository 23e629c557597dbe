//! `Resp`: sends commands to a Redis or Valkey server, and reads its replies, in RESP2 and RESP3.
//!
//! Owns: the bytes that were received but not read yet, and the number of bytes that may still arrive
//! for a command. A bulk string is received directly into its destination. Only the bytes that arrived
//! together with the preceding line are copied once. Any input leads to a reply or to an error. After
//! an error, the connection cannot be used any more.

use std::io::{self, IoSlice, Read, Write};

/// A reply of the server, except for the bytes of a bulk string. These follow in the stream, and the
/// caller has to read them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`, or another value that only signals success.
    Done,
    Integer(i64),
    Bulk(usize),
    Null,
    /// The error message of the server.
    Error(String),
}

/// The reason why a command failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection is broken, and the client has to open a new one.
    Broken(io::Error),
    /// The server refused the command. The connection is still usable.
    Refused(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Largest number of bytes in a line. A line contains an error or a length.
const LINE: usize = 4096;
/// Largest depth of nested replies.
const DEPTH: u32 = 8;

/// The client's side of a connection.
#[derive(Debug)]
pub(super) struct Resp<S> {
    stream: S,
    received: Box<[u8]>,
    from: usize,
    to: usize,
    /// Number of bytes that the replies to the current command may still have.
    allowed: u64,
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply of Redis: {what}"))
}

/// Encodes a command from its name and its arguments.
pub(super) fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    arguments.iter().for_each(|argument| append(&mut bytes, argument));
    bytes
}

pub(super) fn append(command: &mut Vec<u8>, argument: &[u8]) {
    command.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
    command.extend_from_slice(argument);
    command.extend_from_slice(b"\r\n");
}

impl<S: Read + Write> Resp<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, received: vec![0; 4 * LINE].into(), from: 0, to: 0, allowed: 0 }
    }

    /// Begins a command whose replies may have at most `bytes` bytes. Returns the stream.
    pub(super) const fn begin(&mut self, bytes: u64) -> &mut S {
        self.allowed = bytes;
        &mut self.stream
    }

    pub(super) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0); // skips empty parts
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut left, sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.stream.flush()
    }

    /// Reads the next reply. Skips messages that the server pushes.
    pub(super) fn reply(&mut self) -> io::Result<Reply> {
        loop {
            let line = self.line()?;
            let (&kind, rest) = line.split_first().ok_or_else(|| nonsense("an empty line"))?;
            let text = || String::from_utf8_lossy(rest).into_owned();
            match kind {
                b'+' | b'#' | b',' | b'(' => return Ok(Reply::Done),
                b'-' => return Ok(Reply::Error(text())),
                b':' => return Ok(Reply::Integer(number(rest)?)),
                b'_' => return Ok(Reply::Null),
                b'$' | b'=' => {
                    return Ok(length(rest)?.map_or(Reply::Null, Reply::Bulk));
                }
                b'!' => {
                    let len = length(rest)?.ok_or_else(|| nonsense("an error without a length"))?;
                    return self.text(len).map(Reply::Error);
                }
                b'*' | b'~' | b'%' => {
                    let Some(items) = length(rest)? else { return Ok(Reply::Null) };
                    self.pass(items.saturating_mul(if kind == b'%' { 2 } else { 1 }), DEPTH)?;
                    return Ok(Reply::Done);
                }
                b'>' => {
                    let items = length(rest)?.unwrap_or(0);
                    self.pass(items, DEPTH)?;
                }
                b'|' => {
                    let items = length(rest)?.unwrap_or(0);
                    self.pass(items.saturating_mul(2), DEPTH)?;
                }
                _ => return Err(nonsense(&text())),
            }
        }
    }

    /// Reads the next reply, which must be an array, and returns its number of items. The caller reads
    /// the items one by one. A reply of another type is returned as the inner error.
    pub(super) fn array(&mut self) -> io::Result<Result<usize, Reply>> {
        while self.from == self.to {
            self.receive()?;
        }
        if !matches!(self.received[self.from], b'*' | b'~') {
            return self.reply().map(Err);
        }
        let line = self.line()?;
        let items = length(line.get(1..).unwrap_or_default())?;
        items.map(Ok).ok_or_else(|| nonsense("null where an array was expected"))
    }

    /// Reads the next bytes of a bulk string into `into`.
    pub(super) fn take(&mut self, into: &mut [u8]) -> io::Result<()> {
        let copied = into.len().min(self.to - self.from);
        into[..copied].copy_from_slice(&self.received[self.from..self.from + copied]);
        self.from += copied;
        self.spend((into.len() - copied) as u64)?;
        self.stream.read_exact(&mut into[copied..])
    }

    /// Subtracts received bytes from the limit of the command. Fails if they exceed it.
    fn spend(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.allowed.checked_sub(bytes);
        self.allowed = left.ok_or_else(|| nonsense("it has more bytes than were requested"))?;
        Ok(())
    }

    /// Skips the rest of a bulk string and the line end after it.
    pub(super) fn finish(&mut self, mut rest: usize) -> io::Result<()> {
        if rest.saturating_sub(self.to - self.from) as u64 > self.allowed {
            self.spend(u64::MAX)?; // fails at once, before any of its bytes are read
        }
        while rest > 0 {
            if self.from == self.to {
                self.receive()?;
            }
            let passed = rest.min(self.to - self.from);
            self.from += passed;
            rest -= passed;
        }
        let mut end = [0; 2];
        self.take(&mut end)?;
        if end == *b"\r\n" { Ok(()) } else { Err(nonsense("a string without an end")) }
    }

    /// Skips the given number of array items.
    fn pass(&mut self, items: usize, depth: u32) -> io::Result<()> {
        let depth = depth.checked_sub(1).ok_or_else(|| nonsense("arrays in arrays"))?;
        for _ in 0..items {
            let line = self.line()?;
            let (&kind, rest) = line.split_first().ok_or_else(|| nonsense("an empty line"))?;
            match (kind, length(rest)) {
                (b'$' | b'=' | b'!', Ok(Some(len))) => self.finish(len)?,
                (b'*' | b'~' | b'>', Ok(Some(items))) => self.pass(items, depth)?,
                (b'%' | b'|', Ok(Some(items))) => self.pass(items.saturating_mul(2), depth)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn text(&mut self, len: usize) -> io::Result<String> {
        let mut text = vec![0; len.min(LINE)];
        self.take(&mut text)?;
        self.finish(len - text.len())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Reads the next line, without its line end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let there = &self.received[self.from..self.to];
            let end = there.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(there.len(), |at| at + 1);
            line.extend_from_slice(&there[..taken]);
            self.from += taken;
            if end.is_some() {
                let text = line
                    .strip_suffix(b"\r\n")
                    .ok_or_else(|| nonsense("a line that does not end in CR LF"))?;
                return Ok(text.to_vec());
            }
            if line.len() > LINE {
                return Err(nonsense("a line without an end"));
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            match self.stream.read(&mut self.received) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    (self.from, self.to) = (0, len);
                    return self.spend(len as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn number(text: &[u8]) -> io::Result<i64> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| nonsense("a number"))
}

/// Parses a length. Returns `None` for -1, which means null.
fn length(text: &[u8]) -> io::Result<Option<usize>> {
    match number(text)? {
        -1 => Ok(None),
        len => usize::try_from(len).map(Some).map_err(|_| nonsense("a length below 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream for tests. A read or a write moves at most `piece` bytes. It records the bytes that are
    /// written to it.
    #[derive(Debug, Default)]
    struct Script {
        bytes: Vec<u8>,
        piece: usize,
        written: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let len = self.piece.min(into.len()).min(self.bytes.len());
            into[..len].copy_from_slice(&self.bytes[..len]);
            self.bytes.drain(..len);
            Ok(len)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = self.piece.min(bytes.len());
            self.written.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn resp(bytes: &[u8], piece: usize) -> Resp<Script> {
        let mut resp = Resp::new(Script { bytes: bytes.to_vec(), piece, written: Vec::new() });
        resp.begin(1 << 20);
        resp
    }

    #[test]
    fn replies_of_both_protocols_in_pieces_of_any_size() {
        let bytes =
            b"+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n_\r\n>2\r\n$1\r\na\r\n:1\r\n$3\r\nabc\r\n!5\r\nOOM a\r\n\
            %1\r\n$1\r\nk\r\n*2\r\n:1\r\n$-1\r\n|1\r\n+a\r\n+b\r\n*-1\r\n#t\r\n";
        for piece in 1..bytes.len() + 1 {
            let mut resp = resp(bytes, piece);
            let mut next = || resp.reply().unwrap();
            assert_eq!(next(), Reply::Done);
            assert_eq!(next(), Reply::Error("ERR no".into()));
            assert_eq!(next(), Reply::Integer(-7));
            assert_eq!([next(), next()], [Reply::Null, Reply::Null]);
            assert_eq!(next(), Reply::Bulk(3));
            let mut two = [0; 2];
            resp.take(&mut two).unwrap();
            resp.finish(1).unwrap();
            assert_eq!(&two, b"ab");
            let mut next = || resp.reply().unwrap();
            assert_eq!(next(), Reply::Error("OOM a".into()));
            assert_eq!([next(), next(), next()], [Reply::Done, Reply::Null, Reply::Done]);
            assert_eq!(resp.reply().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn commands_are_sent_whole() {
        let head = command(&[b"GET", b"a key"]);
        for piece in 1..40 {
            let mut resp = resp(b"", piece);
            resp.send(&[&head, b"", b"payload"]).unwrap();
            assert_eq!(resp.stream.written, b"*2\r\n$3\r\nGET\r\n$5\r\na key\r\npayload");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_a_reply_or_an_error(
            bytes: Vec<u8>,
            kind in "[+\\-:$_=!*~%>|#,(]",
            piece in 1_usize..9,
        ) {
            let mut resp = resp(&[kind.as_bytes(), &bytes].concat(), piece);
            while let Ok(reply) = resp.reply() {
                if let Reply::Bulk(len) = reply && resp.finish(len).is_err() {
                    break;
                }
            }
        }
    }

    /// All bytes count towards the limit: pushed messages, array items, strings, lines, and bytes that
    /// arrive together with the preceding line.
    #[test]
    fn a_reply_is_limited_in_bytes() {
        for bytes in [&b">1\r\n:1\r\n".repeat(100)[..], &b":1\r\n".repeat(300), &[b'+'; 1000], &[b'x'; 1000]]
        {
            for (front, piece) in [("", 7), ("", 4096), ("*400\r\n", 64), ("$900\r\n", 64), ("!900\r\n", 64)]
            {
                let mut resp = resp(&[front.as_bytes(), bytes].concat(), piece);
                resp.begin(500);
                let mut replies = 0;
                let error = loop {
                    match resp.reply() {
                        Ok(Reply::Bulk(len)) => match resp.finish(len) {
                            Ok(()) => {}
                            Err(error) => break error,
                        },
                        Ok(_) => replies += 1,
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{front:?} {piece}: {error}");
                assert!(replies <= 125, "{replies}");
            }
        }
        // A string that is longer than the limit is refused before any of its bytes are read.
        let mut long = resp(b"$501\r\n", 64);
        long.begin(500);
        assert_eq!(long.reply().unwrap(), Reply::Bulk(501));
        assert_eq!(long.finish(501).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn nesting_and_lines_are_bounded() {
        assert!(resp(&b"*1\r\n".repeat(100), 64).reply().is_err());
        assert!(resp(&[b'+'; 100_000], 512).reply().is_err());
        assert!(resp(b"*9223372036854775807\r\n", 64).reply().is_err());
        assert!(resp(b"$-2\r\n", 64).reply().is_err());
    }
}

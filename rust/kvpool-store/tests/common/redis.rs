//! Starts a Redis server for one test, on a Unix socket in a temporary folder.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use kvpool_store::redis::{Address, RedisConfig};

use super::folder::Folder;
use super::{AGES, LEN};

#[expect(clippy::print_stderr, reason = "a test that is not run says so")]
fn not_tested() {
    eprintln!(
        "NOT TESTED: Redis: there is no redis-server; make .venv/.test brings one, apt-get install \
         redis-server another"
    );
}

#[derive(Debug)]
pub(crate) struct Server {
    folder: Folder,
    binary: PathBuf,
    settings: Vec<String>,
    process: Option<Child>,
}

/// Finds the program `redis-server`. Tries `KVPOOL_REDIS_SERVER` first, then the program in the tests'
/// environment, then the search path.
fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("KVPOOL_REDIS_SERVER").map(PathBuf::from);
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/redis-server");
    let names = [named, Some(venv), Some("redis-server".into()), Some("valkey-server".into())];
    let works = |binary: &PathBuf| {
        let version =
            Command::new(binary).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    names.into_iter().flatten().find(works)
}

impl Server {
    /// Starts a server. If `redis-server` is not installed, returns `None` and prints a message, or
    /// panics if `CI` is set.
    pub(crate) fn start(settings: &[&str]) -> Option<Self> {
        let Some(binary) = binary() else {
            assert!(std::env::var_os("CI").is_none(), "no redis-server");
            not_tested();
            return None;
        };
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut server =
            Self { folder: Folder::in_folder(std::env::temp_dir()), binary, settings, process: None };
        server.restart();
        Some(server)
    }

    /// Starts the server without data, and waits until it responds.
    pub(crate) fn restart(&mut self) {
        let process = Command::new(&self.binary)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .args(&self.settings)
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
        let began = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{} {:?} ended: {ended:?}", self.binary.display(), self.settings);
            assert!(began.elapsed() < AGES, "{} does not answer", self.binary.display());
            std::thread::yield_now();
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis")
    }

    pub(crate) fn config(&self, places: u64) -> RedisConfig {
        RedisConfig::new(Address::Unix(self.socket()), places * (u64::from(LEN) + 112 + 400), LEN)
    }

    /// Kills the server, which loses its data.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Suspends the server's process, or resumes it.
    pub(crate) fn stop(&self, stopped: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_child(self.process.as_ref().unwrap());
        kill_process(pid, if stopped { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    /// Sends a command on a separate connection. Returns the bytes of the reply: a number, a status or
    /// a short string.
    pub(crate) fn ask(&self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            command.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            command.extend_from_slice(argument);
            command.extend_from_slice(b"\r\n");
        }
        stream.write_all(&command).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_at(1) {
            ("$", len) => {
                let mut value = vec![0; len.parse().unwrap()];
                reader.read_exact(&mut value).unwrap();
                value
            }
            (_, rest) => rest.as_bytes().to_vec(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

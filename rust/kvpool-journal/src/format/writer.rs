//! The thread that writes: frames are handed over to it, so that no operation waits for a disk.
//!
//! Owns: the writer, the frames that wait for it, and why it stopped.
//!
//! Invariants:
//! - Frames are written in their order, and none behind one that was not written whole.
//! - No more than [`QUEUE_BYTES`] wait, or a single frame that is larger.
//! - Whoever forks takes the queue along and not the thread: a fork hands nothing over, waits for
//!   nothing, and ends nothing. So the file stays the parent's, which writes the same operations
//!   itself.
//!
//! Costs: one message per frame and one back, which brings memory for a next frame; and the system call
//! that tells a fork from its parent.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use crate::JournalError;

/// Bytes that may wait to be written. A journal whose writer is further behind stops, or waits: see
/// [`crate::Journal::waiting`].
pub const QUEUE_BYTES: usize = 64 << 20;

/// Written frames whose memory is kept for the next ones.
const SPARES: usize = 4;

enum Message {
    Frame(Vec<u8>),
    /// Answered when all frames before it are written and flushed.
    Flush(Sender<()>),
}

/// What the thread and those who hand over both know.
#[derive(Default)]
struct Progress {
    waiting: AtomicUsize,
    written: AtomicU64,
    failed: OnceLock<String>,
}

/// Everything that a journal has recorded is on its way to the writer.
#[derive(Debug)]
#[must_use = "nothing is known to be written before it is waited for"]
pub struct Flush(Option<Receiver<()>>);

impl Flush {
    /// Nothing to wait for.
    pub(crate) const DONE: Self = Self(None);

    /// Waits until it is written. Whether it was, [`crate::Journal::error`] says.
    pub fn wait(self) {
        if let Some(reached) = self.0 {
            let _gone = reached.recv();
        }
    }
}

struct Thread {
    frames: Sender<Message>,
    /// Empty, with the memory of what was written.
    spares: Receiver<Vec<u8>>,
    handle: JoinHandle<()>,
}

/// A writer with a thread of its own.
pub(crate) struct Background {
    /// The process that has the thread.
    process: u32,
    progress: Arc<Progress>,
    /// Nothing only while it is dropped.
    thread: Option<Thread>,
    /// Why nothing is handed over any more.
    stopped: Option<String>,
    pub(crate) waits: bool,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(writer: Box<dyn Write + Send>) -> Result<Self, JournalError> {
        let progress = Arc::new(Progress::default());
        let (frames, messages) = channel();
        let (written, spares) = sync_channel(SPARES);
        let told = Arc::clone(&progress);
        let handle = Builder::new()
            .name("kvpool-journal".into())
            .spawn(move || write(writer, &messages, &written, &told))
            .map_err(|error| JournalError::Io(format!("no thread to write the journal: {error}")))?;
        let (process, thread) = (std::process::id(), Some(Thread { frames, spares, handle }));
        Ok(Self { process, progress, thread, stopped: None, waits: false })
    }

    /// Hands bytes over, unless it has stopped, and leaves none of them.
    pub(crate) fn write(&mut self, bytes: &mut Vec<u8>) {
        if self.is_open() {
            // The next frame will be as long.
            let spare = self.thread.as_ref().and_then(|thread| thread.spares.try_recv().ok());
            let next = spare.unwrap_or_else(|| Vec::with_capacity(bytes.len()));
            self.hand_over(std::mem::replace(bytes, next));
        } else {
            bytes.clear();
        }
    }

    fn hand_over(&mut self, bytes: Vec<u8>) {
        let behind = self.progress.waiting.load(Ordering::Acquire);
        if behind > 0 && behind.saturating_add(bytes.len()) > QUEUE_BYTES {
            if !self.waits {
                self.stopped = Some(format!("the writer is {behind} bytes behind: no step waits for a disk"));
                return;
            }
            self.flush().wait();
        }
        self.progress.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        self.send(Message::Frame(bytes));
    }

    /// Has everything written that was handed over, also if it has stopped since.
    pub(crate) fn flush(&mut self) -> Flush {
        if self.is_fork() {
            self.is_open();
            return Flush::DONE;
        }
        let (done, reached) = channel();
        self.send(Message::Flush(done));
        Flush(Some(reached))
    }

    /// Bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.progress.written.load(Ordering::Acquire)
    }

    /// Why it has stopped.
    pub(crate) fn error(&self) -> Option<&str> {
        self.stopped.as_deref().or_else(|| self.progress.failed.get().map(String::as_str))
    }

    fn is_fork(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whether bytes can be handed over. A fork stops here.
    fn is_open(&mut self) -> bool {
        if self.error().is_none() && self.is_fork() {
            let (this, owner) = (std::process::id(), self.process);
            self.stopped = Some(format!(
                "process {this} is a fork of process {owner}, whose file this is: make a pool with a journal of its own"
            ));
        }
        self.error().is_none()
    }

    fn send(&self, message: Message) {
        if let Some(thread) = &self.thread {
            // A thread that is gone has said why.
            let _gone = thread.frames.send(message);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.is_fork() {
            // The thread that would let go of the queues' locks does not exist here.
            std::mem::forget(thread);
            return;
        }
        drop(thread.frames);
        // It has said why, if it panicked.
        let _panic = thread.handle.join();
    }
}

/// Says so if the thread ends by a panic.
struct Panicked<'a>(&'a Progress);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.get_or_init(|| "the thread that writes it is gone: its writer panicked".into());
        }
    }
}

/// Writes what comes, until nobody can hand anything over any more.
fn write(
    mut writer: Box<dyn Write + Send>,
    messages: &Receiver<Message>,
    spares: &SyncSender<Vec<u8>>,
    progress: &Progress,
) {
    let _told = Panicked(progress);
    for message in messages {
        let is_well = progress.failed.get().is_none();
        let done = match &message {
            Message::Frame(bytes) if is_well => writer.write_all(bytes),
            Message::Flush(_) if is_well => writer.flush(),
            _ => Ok(()),
        };
        if let Err(error) = &done {
            progress.failed.get_or_init(|| error.to_string());
        }
        match message {
            Message::Frame(mut bytes) => {
                if is_well && done.is_ok() {
                    progress.written.fetch_add(bytes.len() as u64, Ordering::AcqRel);
                }
                progress.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                bytes.clear();
                // Enough are kept, or nobody writes any more.
                let _kept = spares.try_send(bytes);
            }
            // Whoever waited may have gone.
            Message::Flush(reached) => drop(reached.send(())),
        }
    }
}

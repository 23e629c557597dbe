//! The thread that writes frames, so that no operation waits for a disk.
//!
//! Owns: the writer, the queue of frames, and the reason why the thread stopped.
//!
//! Invariants:
//! - Frames are written in order. After a frame that was only partly written, no frame is written.
//! - The queue has at most [`QUEUE_BYTES`], or a single frame that is larger.
//! - A forked child process has a copy of the queue but no thread. Therefore a child passes no frames,
//!   waits for nothing, and stops nothing. The file belongs to the parent process, which writes the
//!   same operations itself.
//!
//! Costs: one message per frame, one message back that returns memory for the next frame, and the
//! system call that detects a fork.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use crate::JournalError;

/// Largest number of bytes that may be waiting to be written. Above it, a journal stops, or waits if
/// [`crate::Journal::waiting`] was called.
pub const QUEUE_BYTES: usize = 64 << 20;

/// Number of written frames whose memory is kept for later frames.
const SPARES: usize = 4;

enum Message {
    Frame(Vec<u8>),
    /// A message that asks the thread to reply once all earlier frames are written and flushed.
    Flush(Sender<()>),
}

/// State that the thread that writes shares with the journal.
#[derive(Default)]
struct Progress {
    waiting: AtomicUsize,
    written: AtomicU64,
    failed: OnceLock<String>,
}

/// Waits until everything that a journal has recorded so far is written.
#[derive(Debug)]
#[must_use = "nothing is known to be written before it is waited for"]
pub struct Flush(Option<Receiver<()>>);

impl Flush {
    /// Returns a flush that is already complete. A journal in memory uses it.
    pub(crate) const DONE: Self = Self(None);

    /// Waits until everything is written or writing has failed. After a failure,
    /// [`crate::Journal::error`] returns the reason.
    pub fn wait(self) {
        if let Some(reached) = self.0 {
            let _gone = reached.recv();
        }
    }
}

struct Thread {
    frames: Sender<Message>,
    /// The channel that returns the memory of written frames, as empty buffers.
    spares: Receiver<Vec<u8>>,
    handle: JoinHandle<()>,
}

/// A writer that runs on a separate thread.
pub(crate) struct Background {
    /// Id of the process in which the thread runs.
    process: u32,
    progress: Arc<Progress>,
    /// The thread. `None` only while this value is being dropped.
    thread: Option<Thread>,
    /// The reason why the journal passes no more frames to the thread.
    stopped: Option<String>,
    pub(crate) waits: bool,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(writer: Box<dyn Write + Send>) -> Result<Self, JournalError> {
        let progress = Arc::new(Progress::default());
        let (frames, messages) = channel();
        let (written, spares) = sync_channel(SPARES);
        let thread_progress = Arc::clone(&progress);
        let handle = Builder::new()
            .name("kvpool-journal".into())
            .spawn(move || write(writer, &messages, &written, &thread_progress))
            .map_err(|error| JournalError::Io(format!("no thread to write the journal: {error}")))?;
        let (process, thread) = (std::process::id(), Some(Thread { frames, spares, handle }));
        Ok(Self { process, progress, thread, stopped: None, waits: false })
    }

    /// Passes bytes to the thread, unless the journal has stopped, and empties the buffer.
    pub(crate) fn write(&mut self, bytes: &mut Vec<u8>) {
        if self.is_open() {
            // Reuse the memory of a written frame, because the next frame will have about the same
            // length.
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
                self.stopped = Some(format!(
                    "{behind} bytes wait to be written, and no step waits for a disk: the journal has stopped"
                ));
                return;
            }
            self.flush().wait();
        }
        self.progress.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        self.send(Message::Frame(bytes));
    }

    /// Starts to write everything that was passed to the thread. This also works after the journal has
    /// stopped.
    pub(crate) fn flush(&mut self) -> Flush {
        if self.is_fork() {
            self.is_open();
            return Flush::DONE;
        }
        let (done, reached) = channel();
        self.send(Message::Flush(done));
        Flush(Some(reached))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.progress.written.load(Ordering::Acquire)
    }

    /// Returns the reason if the thread has stopped to write.
    pub(crate) fn error(&self) -> Option<&str> {
        self.stopped.as_deref().or_else(|| self.progress.failed.get().map(String::as_str))
    }

    fn is_fork(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whether bytes can be passed to the thread. In a forked child process, this stops the journal.
    fn is_open(&mut self) -> bool {
        if self.error().is_none() && self.is_fork() {
            let (this, owner) = (std::process::id(), self.process);
            self.stopped = Some(format!(
                "process {this} is a fork of process {owner}, whose file this is: make a pool \
                 with a journal of its own"
            ));
        }
        self.error().is_none()
    }

    fn send(&self, message: Message) {
        if let Some(thread) = &self.thread {
            // Ignore the error: if the thread has ended, it has already recorded the reason.
            let _gone = thread.frames.send(message);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.is_fork() {
            // A forked child must not drop the channel and the thread handle. The thread does not exist
            // in the child, and the drop could wait forever for a lock that the thread held.
            std::mem::forget(thread);
            return;
        }
        drop(thread.frames);
        // Ignore the error: if the thread panicked, it has already recorded the reason.
        let _panic = thread.handle.join();
    }
}

/// Records an error if the thread ends because of a panic.
struct Panicked<'a>(&'a Progress);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.get_or_init(|| "the thread that writes it is gone: its writer panicked".into());
        }
    }
}

/// Writes the frames that it receives, until the journal closes the channel.
fn write(
    mut writer: Box<dyn Write + Send>,
    messages: &Receiver<Message>,
    spares: &SyncSender<Vec<u8>>,
    progress: &Progress,
) {
    let _panicked = Panicked(progress);
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
                // Ignore the error, which means that enough buffers are kept or that the journal was
                // dropped.
                let _kept = spares.try_send(bytes);
            }
            // Ignore the error, because the caller may no longer wait for the reply.
            Message::Flush(reached) => drop(reached.send(())),
        }
    }
}

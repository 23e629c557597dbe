//! Writers that are slow, block, or panic: no operation waits for them, and the bytes that were written
//! form a valid journal.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use kvpool::{BlockId, BlockPool, PoolConfig};
use kvpool_journal::{
    Journal, JournalConfig, JournalReader, Journaled, Options, PoolCalls, QUEUE_BYTES, Tail, replay,
};

/// A writer that reports when a write begins, and then waits for a message. If the sender of messages
/// was dropped, it does not wait.
struct Gate {
    begun: Sender<()>,
    words: Receiver<()>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.begun.send(());
        let _ = self.words.recv();
        self.written.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A journal whose header is already written. Every later write waits until the test sends a message on
/// the channel `words`.
struct Gated {
    journal: Journal,
    begun: Receiver<()>,
    words: Sender<()>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Gated {
    fn new() -> Self {
        let ((begins, begun), (words, heard)) = (channel(), channel());
        let written = Arc::default();
        let gate = Gate { begun: begins, words: heard, written: Arc::clone(&written) };
        let config = JournalConfig { digest_every: 0, frame_bytes: 64 };
        let journal = Journal::to_writer(Box::new(gate), config).unwrap();
        words.send(()).unwrap(); // for the header
        Self { journal, begun, words, written }
    }
}

fn pool(journal: Journal) -> Journaled<BlockPool> {
    Journaled::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, journal).unwrap()
}

fn turn(pool: &mut Journaled<BlockPool>) {
    let blocks = pool.allocate(3).unwrap();
    pool.release(&blocks).unwrap();
}

/// Makes an operation whose record has 4 MiB. The pool refuses the operation.
fn large(pool: &mut Journaled<BlockPool>) {
    pool.acquire(&vec![BlockId::new(99); 1 << 20]).unwrap_err();
}

fn operations(written: &Mutex<Vec<u8>>) -> u64 {
    let written = written.lock().unwrap();
    assert_eq!(JournalReader::new(&*written).unwrap().tail(), Tail::Complete);
    let report = replay(&*written, Options::default(), &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
    report.operations
}

#[test]
fn a_blocked_writer_stops_no_operation_and_a_flush_waits_for_it() {
    let Gated { journal, begun, words, written } = Gated::new();
    let mut pool = pool(journal);
    begun.recv().unwrap();
    let header = written.lock().unwrap().len() as u64;
    // Many frames are waiting, because the write of the first one never ends.
    (0..100).for_each(|_| turn(&mut pool));
    begun.recv().unwrap();
    let journal = pool.journal().unwrap();
    assert_eq!((journal.operations(), journal.bytes(), journal.error()), (200, header, None));
    // While a caller waits for a flush of the journal, other calls can use the pool.
    let flush = pool.start_flush().unwrap();
    (0..100).for_each(|_| turn(&mut pool));
    drop(words);
    flush.wait();
    assert!(operations(&written) >= 200);
    pool.flush_journal();
    assert_eq!(pool.journal().unwrap().bytes(), written.lock().unwrap().len() as u64);
    assert_eq!(operations(&written), 400);
}

#[test]
fn a_journal_that_is_too_slow_stops_with_an_error() {
    let Gated { journal, begun, words, written } = Gated::new();
    let mut pool = pool(journal);
    begun.recv().unwrap();
    let mut recorded = 0;
    while pool.journal().unwrap().error().is_none() {
        large(&mut pool);
        recorded += 1;
        assert!(recorded * (4 << 20) <= QUEUE_BYTES + (8 << 20), "more waits than may");
    }
    let error = pool.journal().unwrap().error().unwrap().to_owned();
    assert!(error.contains("bytes wait to be written, and no step waits for a disk"), "{error}");
    turn(&mut pool);
    assert_eq!(pool.journal().unwrap().operations(), recorded as u64);
    // The frames that were passed to the writer are written, and form a valid journal. The operation
    // that exceeded the limit is missing.
    drop(words);
    pool.flush_journal();
    assert_eq!(pool.journal().unwrap().error(), Some(&*error));
    assert_eq!(operations(&written), recorded as u64 - 1);
}

#[test]
fn a_journal_that_waits_loses_nothing() {
    let Gated { journal, begun, words, written } = Gated::new();
    let mut pool = pool(journal.waiting());
    begun.recv().unwrap();
    let most = QUEUE_BYTES / (4 << 20) + 4;
    std::thread::scope(|scope| {
        let recorded = scope.spawn(|| (0..most).for_each(|_| large(&mut pool)));
        // The write that blocks has let the queue of frames become full.
        begun.recv().unwrap();
        drop(words);
        recorded.join().unwrap();
    });
    assert_eq!(pool.journal().unwrap().error(), None);
    drop(pool);
    assert_eq!(operations(&written), most as u64);
}

#[test]
fn a_dropped_journal_writes_its_last_frame() {
    let Gated { journal, words, written, .. } = Gated::new();
    let mut pool = pool(journal);
    drop(words);
    turn(&mut pool);
    drop(pool);
    assert_eq!(operations(&written), 2);
    // Dropping the journal has also dropped the writer.
    assert_eq!(Arc::strong_count(&written), 1);
}

/// A writer that panics from its second write on. The field counts the writes.
struct Broken(usize);

impl Write for Broken {
    #[expect(clippy::panic, reason = "what is tested")]
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += 1;
        if self.0 > 1 {
            panic!("a writer of the caller's own");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_panics_stops_the_journal_and_not_the_pool() {
    let config = JournalConfig { digest_every: 0, frame_bytes: 64 };
    let mut pool = pool(Journal::to_writer(Box::new(Broken(0)), config).unwrap());
    (0..10).for_each(|_| turn(&mut pool));
    pool.flush_journal();
    assert_eq!(
        pool.journal().unwrap().error(),
        Some("the thread that writes it is gone: its writer panicked")
    );
    let before = pool.journal().unwrap().operations();
    turn(&mut pool);
    assert_eq!(pool.journal().unwrap().operations(), before);
    assert_eq!(pool.num_available(), 8);
}

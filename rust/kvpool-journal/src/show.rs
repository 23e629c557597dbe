//! Displays a journal to people: a summary, and its operations as text.
//!
//! No call is replayed. Therefore a journal that cannot be replayed, such as a ring that has dropped
//! its beginning, can still be displayed. If a request was recorded by slot, its slot is displayed.
//!
//! Costs: O(bytes of the journal). Only one frame of a file and the requested operations are in memory.

use std::collections::{BTreeMap, VecDeque};

use crate::{Entry, JournalHeader, JournalReader, JournalSource, Tail};
use serde::de::DeserializeOwned;

use crate::calls::Words;
use crate::error::ReplayError;
use crate::replay::of_kind;
use crate::subject::Subject;

/// Summary of a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The header, which contains the kind and the settings of the recorded pool or manager.
    pub header: JournalHeader,
    /// Number of bytes, including those of an incomplete last frame.
    pub bytes: usize,
    /// Number of the first operation that the journal contains.
    pub first_operation: u64,
    /// Number of the operation after the last one of the journal.
    pub operations: u64,
    /// Number of digests of the state that the journal contains.
    pub digests: u64,
    /// Number of recorded operations, by the name of the call.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Whether the last frame of the journal is complete.
    pub tail: Tail,
}

/// A line of the output: an operation or a digest as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number of the operation. If the line is a digest, the number of operations before it.
    pub number: u64,
    /// Name of the called method, or `"digest"` for a digest.
    pub call: &'static str,
    /// The arguments as text, such as requests, lengths and blocks.
    pub words: String,
}

/// Returns a summary of a journal, and `count` of its operations with the digests between them. These
/// are the operations beginning at `from`, or the last operations if `from` is `None`.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_journal::{Journal, JournalConfig, Journaled, PoolCalls};
/// let config = PoolConfig { num_blocks: 8, ..PoolConfig::default() };
/// let journal = Journal::ring(1 << 20, JournalConfig::default())?;
/// let mut pool = Journaled::<BlockPool>::with_journal(config, journal)?;
/// let blocks = pool.allocate(3)?;
/// pool.release(&blocks)?;
/// let image = pool.journal_image().unwrap_or_default();
///
/// let (summary, lines) = kvpool_journal::show(&image, None, 20)?;
/// assert_eq!((summary.operations, summary.kinds["allocate"]), (2, 1));
/// assert_eq!((lines[1].call, lines[1].words.as_str()), ("release", "3 blocks: 1 2 3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ReplayError::Journal`] if the input is not a journal, or has a record that this version cannot
/// read.
pub fn show<'a>(
    journal: impl Into<JournalSource<'a>>,
    from: Option<u64>,
    count: usize,
) -> Result<(Summary, Vec<Line>), ReplayError> {
    over(journal.into(), from, count)
}

/// Implements [`show`] without type parameters, so that the compiler does not repeat it for each kind
/// of journal.
fn over(
    journal: JournalSource<'_>,
    from: Option<u64>,
    count: usize,
) -> Result<(Summary, Vec<Line>), ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => read::<<S as Subject>::Call>(&reader, from, count))
}

fn read<O: DeserializeOwned + Words>(
    reader: &JournalReader<'_>,
    from: Option<u64>,
    count: usize,
) -> Result<(Summary, Vec<Line>), ReplayError> {
    let mut summary = Summary {
        header: reader.header().clone(),
        bytes: reader.bytes(),
        first_operation: reader.first_operation(),
        operations: reader.operations(),
        digests: 0,
        kinds: BTreeMap::new(),
        tail: reader.tail(),
    };
    let mut kept: VecDeque<(u64, Entry<O>)> = VecDeque::new();
    let mut operations = 0;
    for record in reader.records::<O>() {
        let (number, entry) = record?;
        let is_operation = match &entry {
            Entry::Operation(operation, _) => {
                *summary.kinds.entry(operation.call()).or_default() += 1;
                true
            }
            Entry::Digest(_) => {
                summary.digests += 1;
                false
            }
        };
        let wanted = from.is_none_or(|from| {
            // A digest directly after the last of the requested operations is also returned.
            let end = from.saturating_add(count as u64);
            number >= from && (number < end || number == end && !is_operation)
        });
        if count == 0 || !wanted {
            continue;
        }
        kept.push_back((number, entry));
        operations += usize::from(is_operation);
        while from.is_none() && operations > count {
            let Some((_, oldest)) = kept.pop_front() else { break };
            operations -= usize::from(matches!(oldest, Entry::Operation(..)));
        }
    }
    let lines = kept.into_iter().map(|(number, entry)| match entry {
        Entry::Operation(operation, _) => Line { number, call: operation.call(), words: operation.words() },
        Entry::Digest(digest) => Line { number, call: "digest", words: format!("{digest:016x}") },
    });
    Ok((summary, lines.collect()))
}

//! Tests the reader and the replay of journals. Any bytes give records or an error, and two replays of
//! a journal are equal.
//!
//! The first byte selects how the other bytes are used: as an unchanged file, or as a file whose frames
//! get new checksums, so that changed records are decoded. Journals of pools that would need much
//! memory are read but not replayed.

use kvpool_journal::{Entry, JournalReader, Kind, MAGIC, ManagerCall, Options, Planned, PoolCall, replay};
use xxhash_rust::xxh3::xxh3_64;

use kvpool_lab::failure::{Failure, guarded, same};

/// Maximum number of blocks of a pool that is replayed.
const MOST_BLOCKS: usize = 1 << 12;
/// Maximum number of tokens that one operation appends, because a replay creates all of them.
const MOST_TOKENS: usize = 1 << 20;
/// Maximum number of operations of a journal that is replayed.
const MOST_OPERATIONS: u64 = 300;

/// Corrects the lengths and checksums of all frames in a file. A frame that is longer than the
/// remaining bytes ends with the file.
fn sealed(file: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let mut rest = file.get(MAGIC.len()..).unwrap_or_default();
    while let Some((head, more)) = rest.split_first_chunk::<12>() {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (payload, behind) = more.split_at(length.min(more.len()));
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&xxh3_64(payload).to_le_bytes());
        out.extend_from_slice(payload);
        rest = behind;
    }
    out
}

/// Returns whether a replay of this operation takes little memory.
fn is_operation_small(operation: &ManagerCall) -> bool {
    let tokens = match operation {
        ManagerCall::Resize { num_blocks } => return *num_blocks <= MOST_BLOCKS,
        ManagerCall::Append { append } => append.tokens,
        ManagerCall::AppendTokens { turn } => turn.tokens,
        ManagerCall::CommitStep { plan } => {
            let tokens = |part: &Planned| if let Planned::Append { tokens, .. } = part { *tokens } else { 0 };
            plan.planned.iter().map(tokens).max().unwrap_or(0)
        }
        _ => 0,
    };
    tokens <= MOST_TOKENS
}

/// Returns whether a replay of the journal takes little memory.
fn is_small(reader: &JournalReader<'_>) -> bool {
    let header = reader.header();
    let Ok(config) = header.manager_config(kvpool_policies::ALL) else { return false };
    let Ok(watch) = header.watch_config(kvpool_policies::ALL) else { return false };
    let small = config.num_blocks.max(config.host_blocks).max(watch.event_capacity) <= MOST_BLOCKS
        && config.block_size <= MOST_BLOCKS
        && watch.advisor.is_none();
    small
        && match header.subject {
            Kind::Pool => reader.records::<PoolCall>().flatten().all(|(_, entry)| {
                !matches!(entry, Entry::Operation(
                    PoolCall::Resize { num_blocks }, ..) if num_blocks > MOST_BLOCKS)
            }),
            Kind::Manager => reader.records::<ManagerCall>().flatten().all(|(_, entry)| {
                if let Entry::Operation(operation, ..) = entry {
                    is_operation_small(&operation)
                } else {
                    true
                }
            }),
            Kind::VllmPool => true,
        }
}

/// Reads the bytes, and replays them if they are a journal.
///
/// # Errors
/// A panic, or two replays that differ.
pub fn run(data: &[u8]) -> Result<(), Failure> {
    let (&first, file) = data.split_first().unwrap_or((&0, data));
    let bytes = if first & 1 == 0 { sealed(file) } else { file.to_vec() };
    guarded(|| {
        let Ok(reader) = JournalReader::new(&bytes) else { return Ok(()) };
        let _pools = reader.records::<PoolCall>().take_while(Result::is_ok).count();
        let _managers = reader.records::<ManagerCall>().take_while(Result::is_ok).count();
        if !is_small(&reader) {
            return Ok(());
        }
        let options = Options { until: Some(MOST_OPERATIONS), check_every: 1 };
        let once = replay(&bytes, options, &mut |_| true).map_err(|error| error.to_string());
        let twice = replay(&bytes, options, &mut |_| true).map_err(|error| error.to_string());
        same("two replays", &once, &twice)
    })
}

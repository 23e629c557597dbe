//! The reader and the replay of journals: any bytes give records or an error, and what can be replayed
//! is replayed alike twice.
//!
//! The first byte says what the rest is: a file as it is, or one whose frames are sealed anew, so that
//! changed records are read and not stopped at their checksum. Journals of pools that would take much
//! memory are read and not replayed.

use kvpool_journal::{Entry, JournalReader, Kind, MAGIC, ManagerCall, Options, Planned, PoolCall, replay};
use xxhash_rust::xxh3::xxh3_64;

use kvpool_lab::failure::{Failure, guarded, same};

/// Blocks of a pool that is replayed, at most.
const MOST_BLOCKS: usize = 1 << 12;
/// Tokens that one operation appends, at most: a replay spells them out.
const MOST_TOKENS: usize = 1 << 20;
/// Operations of a replay.
const MOST_OPERATIONS: u64 = 300;

/// The same frames with lengths and checksums that fit: a frame that is longer than the rest is the rest.
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

/// Whether an operation takes little memory.
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

/// Whether a replay takes little memory.
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
                !matches!(entry, Entry::Operation(PoolCall::Resize { num_blocks }, ..) if num_blocks > MOST_BLOCKS)
            }),
            Kind::Manager => reader.records::<ManagerCall>().flatten().all(|(_, entry)| {
                if let Entry::Operation(operation, ..) = entry { is_operation_small(&operation) } else { true }
            }),
            Kind::VllmPool => true,
        }
}

/// Reads the bytes, and replays them if they are a journal.
///
/// # Errors
/// A panic, or two replays that are not alike.
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

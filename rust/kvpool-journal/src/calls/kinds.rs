//! Kinds of arguments of pools. Several kinds are lists of block ids, because the code that generates
//! random calls treats each of them differently.

use kvpool::hash::{ChainLink, HashChain};
use kvpool::retention::{Retention, TenantId};
use kvpool::{BlockId, BlockPool, Match, Signal};

use super::kind::{copied, kinds, lists};
use super::words;
use crate::{ChainRecord, Ids, LinkRecord, MatchRecord, RetentionRecord, SignalRecord};

copied! {
    /// A number of blocks that a call allocates or evicts.
    Count: usize, usize, |n| n, |n| n, |n| words::counted(n, "block");
    /// The largest number of blocks of a prompt to match.
    AtMost: usize, usize, |n| n, |n| n, words::at_most;
    /// A position in a prompt, in blocks.
    Start: usize, usize, |n| n, |n| n, |n| n.to_string();
    /// A size: the number of blocks that a pool gets by a resize, or the number of tokens of a block of
    /// vLLM's pool.
    Size: usize, usize, |n| n, |n| n, |n| words::counted(n, "block");
    /// The number of a step.
    Step: u64, u64, |n| n, |n| n, |n| n.to_string();
    /// The ticket of a fence that the call ends.
    Ticket: u64, kvpool::Ticket, kvpool::Ticket::get, kvpool::Ticket::new, |n| n.to_string();
    /// The ticket of a fence that must end before blocks can be allocated again.
    Until: u64, kvpool::Ticket, kvpool::Ticket::get, kvpool::Ticket::new, |n| n.to_string();
    /// A time in seconds, on the caller's clock.
    Seconds: f64, f64, |n| n, |n| n, |n| n.to_string();
    /// A tenant.
    Tenant: u32, TenantId, |tenant| tenant.0, TenantId, |n| n.to_string();
    /// The tenant for whom a lookup is made.
    ForTenant: Option<u32>, Option<TenantId>, |tenant| tenant.map(|tenant| tenant.0), |n| n.map(TenantId),
        |tenant| tenant.map_or_else(String::new, |tenant| format!("; tenant {tenant}"));
    /// A block that the caller holds.
    Block: u32, BlockId, BlockId::get, BlockId::new, |n| n.to_string();
    /// The retention hint for blocks: their priority, their time to live, and whether they are pinned.
    Hint: RetentionRecord, Retention, Retention::into, |record| record.retention(),
        |record| words::retention(record.retention());
    /// How a request ended.
    Ended: SignalRecord, Signal, Signal::into, SignalRecord::signal, words::ended;
}

lists! {
    /// Blocks that the caller holds.
    Held,
    /// Blocks of a prompt that the caller holds, beginning at a position.
    Part,
    /// All blocks of a block table.
    Table,
    /// Any block ids.
    Named,
    /// Free blocks.
    Free,
}

kinds! { [] BlockPool;
    /// A prompt.
    Chain: ChainRecord, &'a HashChain, HashChain,
        |chain, to| {
            let is_indexed = to.indexed.checked_sub(1).is_some_and(|last| to.subject.is_indexed(chain, last));
            let tokens = chain.len().saturating_mul(chain.block_size());
            to.journal.chain(chain, tokens, if is_indexed { to.indexed } else { 0 })
        },
        |record, from| from.chain(record), |chain| chain, words::chain;
    /// The link with which a block is registered: its content and its position in a prompt. No earlier
    /// chain in the journal contains this content.
    Link: LinkRecord, &'a ChainLink, ChainLink,
        |link, to| to.journal.link(link), |record, from| from.link(record), |link| link, words::link;
    /// The position in a prompt from which a call looks up blocks.
    Place (Link): LinkRecord, &'a ChainLink, ChainLink,
        |link, _| LinkRecord::new(link), |record, from| from.link(record), |link| link, words::link;
    /// A match (the result of an earlier lookup).
    Found: MatchRecord, &'a Match, Match,
        |found, to| MatchRecord {
            blocks: Ids::pack(found.blocks()),
            chain: to.journal.part(found),
            start: found.start(),
        },
        |record, from| from.found(&record.chain, record.start, record.blocks.unpack()), |found| found,
        |MatchRecord { blocks, chain, start }: &MatchRecord| {
            format!("{}; from block {start} of {}", words::blocks(blocks), words::chain(chain))
        };
}

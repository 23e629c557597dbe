//! Kinds of arguments of pools.

use kvpool::hash::{ChainLink, HashChain};
use kvpool::retention::{Retention, TenantId};
use kvpool::{BlockId, BlockPool, Match, Signal};

use super::{Argument, Recorder, Slot, words};
use crate::contents::Contents;
use crate::error::ReplayError;
use crate::journaled::Recordable;
use crate::{ChainRecord, Ids, LinkRecord, MatchRecord, RetentionRecord, SignalRecord};

/// Kinds that are copied: kind, record, argument, record of it, it of the record, words.
macro_rules! copied {
    ($($(#[$doc:meta])* $kind:ident: $record:ty, $live:ty, $to:expr, $of:expr, $words:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}

        impl<S: Recordable> Argument<S> for $kind {
            type Record = $record;
            type Live<'a> = $live;
            type Own = $live;

            fn record(live: $live, _: &mut Recorder<'_, S>) -> $record {
                let to: fn($live) -> $record = $to;
                to(live)
            }

            fn own(record: &$record, _: &mut S::Memory) -> Result<$live, ReplayError> {
                let of: fn($record) -> $live = $of;
                Ok(of(*record))
            }

            fn lend<R>(own: &$live, call: impl FnOnce($live) -> R) -> R {
                call(*own)
            }

            fn words(record: &$record) -> String {
                let words: fn($record) -> String = $words;
                words(*record)
            }

            fn slot(record: &mut $record) -> Slot<'_> {
                Slot::$kind(record)
            }
        }
    )* };
}

pub(super) use copied;

copied! {
    /// A number of blocks.
    Count: usize, usize, |n| n, |n| n, |n| words::counted(n, "block");
    /// The most blocks of a prompt.
    AtMost: usize, usize, |n| n, |n| n, words::at_most;
    /// A position in a prompt.
    Start: usize, usize, |n| n, |n| n, |n| n.to_string();
    /// The number of blocks of a pool.
    Size: usize, usize, |n| n, |n| n, |n| words::counted(n, "block");
    /// A step.
    Step: u64, u64, |n| n, |n| n, |n| n.to_string();
    /// A ticket that ends.
    Ticket: u64, kvpool::Ticket, kvpool::Ticket::get, kvpool::Ticket::new, |n| n.to_string();
    /// A ticket that blocks wait for.
    Until: u64, kvpool::Ticket, kvpool::Ticket::get, kvpool::Ticket::new, |n| n.to_string();
    /// A time.
    Seconds: f64, f64, |n| n, |n| n, |n| n.to_string();
    /// A tenant.
    Tenant: u32, TenantId, |tenant| tenant.0, TenantId, |n| n.to_string();
    /// The tenant that a lookup is for.
    ForTenant: Option<u32>, Option<TenantId>, |tenant| tenant.map(|tenant| tenant.0), |n| n.map(TenantId),
        |tenant| tenant.map_or_else(String::new, |tenant| format!("; tenant {tenant}"));
    /// A block that the caller holds.
    Block: u32, BlockId, BlockId::get, BlockId::new, |n| n.to_string();
    /// How long blocks are to stay.
    Hint: RetentionRecord, Retention, Retention::into, |record| record.retention(),
        |record| words::retention(record.retention());
    /// How a request ended.
    Ended: SignalRecord, Signal, Signal::into, SignalRecord::signal, words::ended;
}

/// A prompt.
#[derive(Debug)]
pub enum Chain {}

impl Argument<BlockPool> for Chain {
    type Record = ChainRecord;
    type Live<'a> = &'a HashChain;
    type Own = HashChain;

    fn record(live: &HashChain, to: &mut Recorder<'_, BlockPool>) -> ChainRecord {
        let is_indexed = to.indexed.checked_sub(1).is_some_and(|last| to.subject.is_indexed(live, last));
        let tokens = live.len().saturating_mul(live.block_size());
        to.journal.chain(live, tokens, if is_indexed { to.indexed } else { 0 })
    }

    fn own(record: &ChainRecord, from: &mut Contents) -> Result<HashChain, ReplayError> {
        from.chain(record)
    }

    fn lend<R>(own: &HashChain, call: impl FnOnce(&HashChain) -> R) -> R {
        call(own)
    }

    fn words(record: &ChainRecord) -> String {
        words::chain(record)
    }

    fn slot(record: &mut ChainRecord) -> Slot<'_> {
        Slot::Chain(record)
    }
}

/// A block's place in a prompt. A block that is registered by one has content that no chain of the journal
/// has named.
#[derive(Debug)]
pub enum Linked<const REGISTERS: bool> {}
/// The place that a block is registered at.
pub type Link = Linked<true>;
/// A place that is looked up.
pub type Place = Linked<false>;

impl<const REGISTERS: bool> Argument<BlockPool> for Linked<REGISTERS> {
    type Record = LinkRecord;
    type Live<'a> = &'a ChainLink;
    type Own = ChainLink;

    fn record(live: &ChainLink, to: &mut Recorder<'_, BlockPool>) -> LinkRecord {
        if REGISTERS { to.journal.link(live) } else { LinkRecord::new(live) }
    }

    fn own(record: &LinkRecord, from: &mut Contents) -> Result<ChainLink, ReplayError> {
        from.link(record)
    }

    fn lend<R>(own: &ChainLink, call: impl FnOnce(&ChainLink) -> R) -> R {
        call(own)
    }

    fn words(record: &LinkRecord) -> String {
        words::link(record)
    }

    fn slot(record: &mut LinkRecord) -> Slot<'_> {
        Slot::Link(record)
    }
}

/// A match that an earlier lookup returned.
#[derive(Debug)]
pub enum Found {}

impl Argument<BlockPool> for Found {
    type Record = MatchRecord;
    type Live<'a> = &'a Match;
    type Own = Match;

    fn record(live: &Match, to: &mut Recorder<'_, BlockPool>) -> MatchRecord {
        MatchRecord { blocks: Ids::pack(live.blocks()), chain: to.journal.part(live), start: live.start() }
    }

    fn own(record: &MatchRecord, from: &mut Contents) -> Result<Match, ReplayError> {
        from.found(&record.chain, record.start, record.blocks.unpack())
    }

    fn lend<R>(own: &Match, call: impl FnOnce(&Match) -> R) -> R {
        call(own)
    }

    fn words(MatchRecord { blocks, chain, start }: &MatchRecord) -> String {
        format!("{}; from block {start} of {}", words::blocks(blocks), words::chain(chain))
    }

    fn slot(record: &mut MatchRecord) -> Slot<'_> {
        Slot::Found(record)
    }
}

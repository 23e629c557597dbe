//! What callers give a store, and what it answers.

use std::time::Duration;

use kvpool::EvictionPolicy;

use crate::admission::Admit;
use crate::breaker::BreakerConfig;
use crate::error::Why;
use crate::header::TokenRange;
use crate::object::ObjectKey;

/// How a store behaves.
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// What is evicted first.
    pub eviction: EvictionPolicy,
    /// What is written, where an offer does not say.
    pub admission: Admit,
    /// How many offers are remembered for a second one.
    pub remembered_offers: usize,
    /// Threads that wait for the back end.
    pub workers: usize,
    /// Objects that may be on their way; more are misses ([`Why::Busy`]).
    pub queue: usize,
    /// How long a transfer may take.
    pub deadline: Duration,
    /// When the back end is left alone.
    pub breaker: BreakerConfig,
    /// For how long a shared back end is believed that it has an object, or has not.
    pub believed_for: Duration,
    /// Whether payloads pass through memory of the workers, at the price of a copy there. Then a slot
    /// is free once its job has ended, whatever the back end does: for engines that reuse a slot as
    /// soon as they are told. Slots that are not of pages are always used so.
    pub staged: bool,
    /// Whether [`Store::take_gone`](crate::Store::take_gone) tells what is not there any more.
    pub tell_gone: bool,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            eviction: kvpool_policies::LRU,
            admission: Admit::SecondTouch,
            remembered_offers: 1 << 16,
            workers: 4,
            queue: 1024,
            deadline: Duration::from_secs(2),
            breaker: BreakerConfig::default(),
            believed_for: Duration::from_secs(10),
            staged: false,
            tell_gone: false,
        }
    }
}

/// An object that is offered.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// What it will be found by.
    pub key: ObjectKey,
    /// The tokens that it holds.
    pub tokens: TokenRange,
    /// Bytes of its payload.
    pub len: u32,
    /// The slot that has them.
    pub slot: u32,
    /// Whether it is written; `None`: as the store is configured.
    pub admit: Option<Admit>,
}

/// An object that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// Its key.
    pub key: ObjectKey,
    /// Bytes of its payload: an object of another length is not it.
    pub len: u32,
    /// The slot that it goes to.
    pub slot: u32,
}

/// What a store knows of a key, without asking its back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It can be loaded.
    Here,
    /// It is being written.
    Pending,
    /// It is not there, or cannot be had now.
    Absent,
    /// A shared back end may have it: [`Store::probe`](crate::Store::probe) asks.
    Unknown,
}

impl Presence {
    /// Its name, as bindings and tools show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Pending => "pending",
            Self::Absent => "absent",
            Self::Unknown => "unknown",
        }
    }
}

/// The name of a call whose end `Store::poll` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(crate) u64);

impl JobId {
    /// Its number: jobs are counted from 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The job.
    pub job: JobId,
    /// What became of each object, in the order of the call.
    pub objects: Vec<Result<(), Why>>,
}

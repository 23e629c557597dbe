//! Arguments and results of the calls of [`Store`](crate::Store).

use std::time::Duration;

use kvpool::EvictionPolicy;

use crate::admission::Admit;
use crate::breaker::BreakerConfig;
use crate::error::Why;
use crate::header::TokenRange;
use crate::object::ObjectKey;

/// Settings of a store.
///
/// ```
/// use kvpool_store::{Admit, StoreConfig};
/// use std::time::Duration;
/// let config = StoreConfig { admission: Admit::Always, ..StoreConfig::default() };
/// let config = StoreConfig { deadline: Duration::from_secs(2), ..config };
/// assert!(config.workers >= 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Policy that chooses the objects to evict.
    pub eviction: EvictionPolicy,
    /// Which offer of an object is written. An offer can override this setting.
    pub admission: Admit,
    /// Number of first offers that the store remembers, so that it recognizes a second offer.
    pub remembered_offers: usize,
    /// Number of worker threads, which wait for the back end.
    pub workers: usize,
    /// Largest number of objects in flight. Further objects are misses ([`Why::Busy`]).
    pub queue: usize,
    /// Longest duration of a transfer. A longer transfer is a miss ([`Why::TimedOut`]).
    pub deadline: Duration,
    /// The conditions under which the store stops calling the back end for a while.
    pub breaker: BreakerConfig,
    /// Time for which the store uses an answer of a shared back end whether an object exists.
    pub believed_for: Duration,
    /// Whether payloads are copied through staging memory of the workers. A slot is then free as soon
    /// as its job has ended, even if the back end has not finished. Use this for engines that reuse a
    /// slot as soon as they are notified. Slots that are not page-aligned are always staged.
    pub staged: bool,
    /// Whether [`Store::take_gone`](crate::Store::take_gone) reports the keys of the objects that were
    /// evicted, removed or damaged.
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

/// An object that is offered to the store.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Key of the object.
    pub key: ObjectKey,
    /// The tokens whose KV the object contains.
    pub tokens: TokenRange,
    /// Number of bytes in the payload.
    pub len: u32,
    /// Number of the arena's slot that contains the payload.
    pub slot: u32,
    /// Which offer of this object is written. `None` means the setting of the store.
    pub admit: Option<Admit>,
}

/// An object that is requested from the store.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// Key of the object.
    pub key: ObjectKey,
    /// Expected number of bytes in the payload. If the stored object has another length, the load is a miss.
    pub len: u32,
    /// Number of the arena's slot into which the object is loaded.
    pub slot: u32,
}

/// The state of an object, as far as a store knows it without calling its back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The object can be loaded.
    Here,
    /// The object is being written.
    Pending,
    /// The object does not exist, or is unavailable now.
    Absent,
    /// A shared back end may have the object. Call [`Store::probe`](crate::Store::probe) to ask it.
    Unknown,
}

impl Presence {
    /// Returns the name of the state that bindings and tools display.
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

/// Identifies a job. [`Store::poll`](crate::Store::poll) reports its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(crate) u64);

impl JobId {
    /// Returns the number of the job. Jobs are numbered from 0.
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
    /// Result for each object, in the order in which the call listed them.
    pub objects: Vec<Result<(), Why>>,
}

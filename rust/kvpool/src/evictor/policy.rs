//! Defines [`Policy`], the interface of eviction policies: an order of blocks, without the rules of a
//! prefix cache.
//!
//! A policy owns an *order* of blocks, and the history from which it computes this order. It does not
//! know references, chains, priorities or tenants; `Closed` of the crate `kvpool-policies` adds these.
//! So the same policy code runs in a pool and in simulations: `kvpool size` simulates many capacities,
//! and the online advisor simulates a sample of contents.
//!
//! A *ghost* is the key of a content (part of its hash) that a policy remembers after the content was
//! evicted.
//!
//! The life of a block in a policy:
//!
//! ```text
//!   admit ── release ──┬── pop ──┬── evicted        the content is gone; a ghost may remember its key
//!              ▲       │         └── unpop ...      not evictable now; the next victim later
//!              └─ hit ─┘
//!   forget, at any moment: the content is gone and nothing is remembered
//! ```

use std::fmt;

use super::Candidate;
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};

/// The data about a block's content that a policy gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The first 8 bytes of the block hash. Two blocks with the same content have the same key.
    pub key: u64,
    /// The position of the content in its hash chain. 0 for the first block of a prompt.
    pub depth: u32,
}

/// The reason why a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    /// The reason is unknown.
    #[default]
    Unknown,
    /// The model ended its turn. Next, a person reads the answer, or a batch job continues.
    Stop,
    /// The model called tools. Next, a program answers.
    ToolCalls,
    /// The answer reached its length limit.
    Length,
    /// The request was aborted, or failed.
    Aborted,
}

impl Finish {
    /// Converts a finish reason of the `OpenAI` API, of the Anthropic API or of vLLM. Any other text is
    /// [`Self::Unknown`].
    ///
    /// ```
    /// use kvpool::Finish;
    /// assert_eq!(Finish::of_reason("tool_calls"), Finish::ToolCalls);
    /// assert_eq!(Finish::of_reason("end_turn"), Finish::Stop);
    /// assert_eq!(Finish::of_reason("rained off"), Finish::Unknown);
    /// ```
    #[must_use]
    pub fn of_reason(reason: &str) -> Self {
        match reason {
            "stop" | "end_turn" | "stop_sequence" => Self::Stop,
            "tool_calls" | "tool_use" | "function_call" => Self::ToolCalls,
            "length" | "max_tokens" => Self::Length,
            "abort" | "aborted" | "error" | "content_filter" | "refusal" => Self::Aborted,
            _ => Self::Unknown,
        }
    }

    /// Returns the finish reason of the `OpenAI` API, or `None` if it is unknown.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Unknown => None,
            Self::Stop => Some("stop"),
            Self::ToolCalls => Some("tool_calls"),
            Self::Length => Some("length"),
            Self::Aborted => Some("abort"),
        }
    }
}

/// A hint about how a request ended, given when its blocks are released. A wrong hint can only reduce
/// the number of hits.
///
/// ```
/// use kvpool::{Finish, Signal};
/// let signal = Signal { finish: Finish::of_reason("tool_calls"), output_tokens: Some(120) };
/// assert_eq!(signal.finish, Finish::ToolCalls);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signal {
    /// How the request ended.
    pub finish: Finish,
    /// Number of tokens in the model's answer. `None` if the number is unknown.
    pub output_tokens: Option<u32>,
}

/// The average time that a block has to remain cached for each hit that it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CacheTime {
    /// A time on the caller's clock.
    Seconds(f32),
    /// A time without a clock: the number of new contents that the pool admits in this time, divided by
    /// the number of blocks in the pool.
    Capacities(f32),
}

impl fmt::Display for CacheTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Seconds(seconds) => write!(f, "{seconds:.1} s"),
            Self::Capacities(capacities) => write!(f, "{capacities:.2} capacities of new blocks"),
        }
    }
}

/// A policy's prediction of future hits of a block, made when it evicted the block. Explanations of
/// misses use it.
///
/// ```
/// use kvpool::{CacheTime, Outlook};
/// let kept = Some(CacheTime::Seconds(90.0));
/// let outlook = Outlook::new(2, kept, |class, f| write!(f, "turns of class {class}"));
/// assert_eq!(outlook.class_words(), "turns of class 2");
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Outlook {
    /// The number of the block's class. A class contains blocks that the policy expects to be reused
    /// alike.
    pub class: u16,
    /// The average time that a block of this class and age has to remain cached for each hit. `None` if
    /// no hit is expected.
    pub kept_per_hit: Option<CacheTime>,
    words: fn(u16, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl Outlook {
    /// Makes the prediction for a block of this class. `words` writes a description of the class.
    #[must_use]
    pub const fn new(
        class: u16,
        kept_per_hit: Option<CacheTime>,
        words: fn(u16, &mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> Self {
        Self { class, kept_per_hit, words }
    }

    /// Returns a description of the class, in words.
    #[must_use]
    pub fn class_words(&self) -> String {
        struct Words(Outlook);
        impl fmt::Display for Words {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (self.0.words)(self.0.class, f)
            }
        }
        Words(*self).to_string()
    }
}

impl fmt::Debug for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlook")
            .field("class", &self.class_words())
            .field("kept_per_hit", &self.kept_per_hit)
            .finish()
    }
}

/// Compares the classes and the expected times. Both values must come from the same policy.
impl PartialEq for Outlook {
    fn eq(&self, other: &Self) -> bool {
        self.class == other.class && self.kept_per_hit == other.kept_per_hit
    }
}

/// The data about a release that a policy gets: the blocks that lose their last holder at the same
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Release<'a> {
    /// The released blocks, the deepest first. Empty in simulations that release each block as soon as
    /// it is used.
    pub blocks: &'a [Candidate],
    /// Number of released blocks, if `blocks` is empty.
    pub length: u32,
    /// Number of leading blocks of the request that were already cached when it was admitted.
    pub known: u32,
}

/// Decides the order in which blocks are evicted. Implement this trait to add a policy in Rust;
/// `kvpool_policies::Closed` turns it into an evictor.
///
/// The caller guarantees the following. All blocks are within the range of the last [`Policy::grow`],
/// and never the null block. `admit` is the first call for a content. After `pop`, the caller calls
/// `evicted`, `unpop` or `forget` for that block before it admits the block again.
///
/// A policy has to fulfil the requirements of each method, and has to be deterministic: the same calls
/// give the same order on any host (no clocks, no hash-map order, no floating-point functions). A call
/// with several blocks has the same effect as one call per block, in the same order. A call without
/// blocks has no effect. No method may panic for any arguments. All but `grow` and `clear` MUST NOT
/// allocate memory and MUST be O(1) or O(log n), amortized.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The name of the policy in settings and commands.
    fn name(&self) -> &'static str;

    /// Receives that `block`, which is in use, has a new content. A policy with ghosts looks up the key
    /// of the content here. The block need not be in the order after this call.
    fn admit(&mut self, block: BlockId, content: Content);

    /// Calls [`Self::admit`] once for each of these blocks, which are consecutive in a chain.
    fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        run.iter().for_each(|&(block, content)| self.admit(block, content));
    }

    /// Receives that a lookup acquired `block`, which may have been in the order or in use. The policy
    /// may keep the block in the order or remove it. The next [`Self::release`] of the block adds it
    /// again.
    fn hit(&mut self, block: BlockId);

    /// Calls [`Self::hit`] once for each of these blocks, which one lookup acquired.
    fn hit_all(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|&block| self.hit(block));
    }

    /// Begins a release. All calls of [`Self::release`] until the next call of this method belong to
    /// the same release.
    fn begin_release(&mut self, _release: &Release<'_>) {}

    /// Whether the policy uses the hints that [`Self::signal`] gives about how requests ended. The
    /// result must never change.
    fn wants_signals(&self) -> bool {
        false
    }

    /// Receives how the request ended that will release `block` next. The block is in use. The signal
    /// applies only to that release.
    fn signal(&mut self, _block: BlockId, _signal: Signal) {}

    /// Whether the policy measures ages on a clock. The result must never change.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Sets the time, in seconds on the caller's clock, never earlier than before. This method is
    /// called for policies that [keep time](Self::keeps_time).
    fn set_time(&mut self, _now: f64) {}

    /// Receives that `block` lost its last holder. The block MUST be in the order afterwards. The
    /// blocks of one release are passed deepest first.
    fn release(&mut self, block: BlockId);

    /// Calls [`Self::release`] once for each of these blocks, which belong to one release.
    fn release_all(&mut self, blocks: &[Candidate]) {
        blocks.iter().for_each(|candidate| self.release(candidate.block));
    }

    /// Removes the next victim from the order and returns it. The policy MUST return a block if the
    /// order contains any.
    fn pop(&mut self) -> Option<BlockId>;

    /// Removes `block` from the order like [`Self::pop`], at any position. Has no effect if the block
    /// is not in the order.
    fn take(&mut self, block: BlockId);

    /// Adds `block`, which [`Self::pop`] or [`Self::take`] removed, to the order again, before all
    /// blocks that the policy treats alike. Its history is unchanged. Has no effect if the block is in
    /// the order.
    fn unpop(&mut self, block: BlockId);

    /// Receives that `block`, which [`Self::pop`] or [`Self::take`] removed, was evicted. The policy
    /// may remember `content.key` as a ghost.
    fn evicted(&mut self, _block: BlockId, _content: Content) {}

    /// Returns the policy's prediction of future hits of `block`. The caller may only ask about the
    /// last block that was evicted, and before another content is admitted. This is only called for
    /// explanations, while an observer is present. `None` if the policy makes no such prediction.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// Receives that `block` has lost its content without an eviction. The block may be in the order or
    /// not. The policy removes everything that it knows about the content.
    fn forget(&mut self, block: BlockId);

    /// Receives that all blocks have lost their contents. The policy removes all history, including
    /// ghosts. O(blocks).
    fn clear(&mut self);

    /// Allocates memory for blocks up to `num_blocks - 1`, and sets the capacity to `num_blocks - 1`
    /// blocks. The caller may call this twice with the same number.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory. Nothing has changed then.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// Checks one block, as [`super::Evictor::check_block`] does.
    ///
    /// # Errors
    /// The broken invariant.
    fn check_block(&self, _block: BlockId) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Overwrites a value for tests, as [`super::Evictor::corrupt`] does.
    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, _block: BlockId, _what: usize, _to: u32) -> bool {
        false
    }

    /// Checks the policy's data by recounting from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}

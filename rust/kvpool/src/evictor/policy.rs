//! `Policy`: an eviction policy of the literature, reduced to its order.
//!
//! A policy owns an *order* of blocks, and the history that the order is made from. It does not use
//! references, chains, priorities or tenants; `Closed` of the crate `kvpool-policies` adds these. The
//! pool runs the same code as `kvpool size`, which simulates many capacities, and as the online
//! advisor, which simulates a sample of keys.
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

/// The content of a block, as a policy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The first 8 bytes of the block hash. A content has the same key in every block.
    pub key: u64,
    /// The position in its hash chain: 0 for the first block of a prompt.
    pub depth: u32,
}

/// The reason why a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    /// The reason is unknown.
    #[default]
    Unknown,
    /// The model ended its turn. A human reads the answer, or a batch continues.
    Stop,
    /// The model called tools. A program answers.
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

/// A hint about a request when its blocks are released. A wrong hint costs hits and nothing else.
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
    /// Number of tokens in the model's answer. `None` if unknown.
    pub output_tokens: Option<u32>,
}

/// How long a block would have to remain cached for one hit, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CacheTime {
    /// A time on the caller's clock.
    Seconds(f32),
    /// Without a clock: the number of new blocks that are admitted meanwhile, divided by the capacity
    /// of the pool.
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

/// The expectations of a policy about a block that it evicted, for explanations.
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
    /// The class of the block, in the numbering of the policy.
    pub class: u16,
    /// How long a block of this class and age would have to remain cached for one hit. `None` if no hit
    /// is expected.
    pub kept_per_hit: Option<CacheTime>,
    words: fn(u16, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl Outlook {
    /// Makes the outlook of a block of this class. `words` prints a description of the class.
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

/// Compares class and expectation. Both values must come from the same policy.
impl PartialEq for Outlook {
    fn eq(&self, other: &Self) -> bool {
        self.class == other.class && self.kept_per_hit == other.kept_per_hit
    }
}

/// A release, as a policy sees it: the blocks that lose their last holder at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Release<'a> {
    /// The blocks, deepest first. Empty in simulations that release each block as soon as it is used.
    pub blocks: &'a [Candidate],
    /// Number of blocks, if `blocks` is empty.
    pub length: u32,
    /// Number of leading blocks that were already cached.
    pub known: u32,
}

/// An order of blocks. Implement this trait to add a policy in Rust; `kvpool_policies::Closed` makes an
/// evictor of it.
///
/// The caller guarantees: blocks are real blocks of the pool, announced by [`Policy::grow`]; `admit` is
/// the first call for a content; `pop` is followed by `evicted`, `unpop` or `forget` of that block
/// before it is admitted again.
///
/// A policy guarantees what each method requires, deterministically: the same calls give the same order
/// on any host (no clocks, no hash-map order, no floating-point functions). A call with several blocks
/// has the effect of one call per block, in turn; with no block it has no effect. No method may panic,
/// whatever the arguments. All but `grow` and `clear` MUST NOT allocate memory and MUST be O(1) or
/// O(log n), amortized.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// Notes that `block`, which is in use, has a new content. Ghosts are looked up here. The block
    /// need not be in the order yet.
    fn admit(&mut self, block: BlockId, content: Content);

    /// Calls [`Self::admit`] for consecutive blocks of one chain, each of them once.
    fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        run.iter().for_each(|&(block, content)| self.admit(block, content));
    }

    /// Notes that a lookup took `block`, whether it was idle or in use. The block may remain in the
    /// order or leave it. It returns with [`Self::release`] at the latest.
    fn hit(&mut self, block: BlockId);

    /// Calls [`Self::hit`] for blocks that one lookup took, each of them once.
    fn hit_all(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|&block| self.hit(block));
    }

    /// Begins a release: all calls of [`Self::release`] up to the next one of this method belong to one
    /// moment and one request.
    fn begin_release(&mut self, _release: &Release<'_>) {}

    /// Whether [`Self::signal`] has an effect. The result must never change.
    fn wants_signals(&self) -> bool {
        false
    }

    /// Notes how the request ended that releases `block` next. The block is in use. The signal is
    /// forgotten with that release.
    fn signal(&mut self, _block: BlockId, _signal: Signal) {}

    /// Whether the policy measures ages on a clock. The result must never change.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Sets the time, in seconds on the caller's clock, never earlier than before. Called for policies
    /// that [keep time](Self::keeps_time).
    fn set_time(&mut self, _now: f64) {}

    /// Notes that `block` lost its last holder: it MUST be in the order afterwards. The calls of one
    /// moment come deepest first.
    fn release(&mut self, block: BlockId);

    /// Calls [`Self::release`] for blocks of one moment, each of them once.
    fn release_all(&mut self, blocks: &[Candidate]) {
        blocks.iter().for_each(|candidate| self.release(candidate.block));
    }

    /// Removes the next victim from the order and returns it. MUST return a block while any is in the
    /// order.
    fn pop(&mut self) -> Option<BlockId>;

    /// Removes `block` from the order, if it is there, like [`Self::pop`], even if it is not the next
    /// victim.
    fn take(&mut self, block: BlockId);

    /// Puts `block`, which [`Self::pop`] or [`Self::take`] removed, back into the order, as the next
    /// victim of its kind. Its counts are unchanged. No effect if it is in the order.
    fn unpop(&mut self, block: BlockId);

    /// Notes that the content of `block`, which [`Self::pop`] or [`Self::take`] removed, is gone. A
    /// ghost may remember `content.key`.
    fn evicted(&mut self, _block: BlockId, _content: Content) {}

    /// Returns the policy's expectations about `block`, if it is the last one that was evicted, and no
    /// content was admitted since. Only called for explanations, while an observer is present. `None`
    /// if the policy has no expectations.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// Notes that the content of `block`, in the order or not, is gone without an eviction. Nothing of
    /// it is remembered.
    fn forget(&mut self, block: BlockId);

    /// Notes that all contents are gone. Ghosts are forgotten, too. O(blocks).
    fn clear(&mut self);

    /// Makes room for blocks up to `num_blocks - 1`, and for a capacity of `num_blocks - 1`. MAY be
    /// called twice with the same number.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory. Nothing has changed then.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// As [`super::Evictor::check_block`].
    ///
    /// # Errors
    /// The broken invariant.
    fn check_block(&self, _block: BlockId) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// As [`super::Evictor::corrupt`].
    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, _block: BlockId, _what: usize, _to: u32) -> bool {
        false
    }

    /// Recounts the policy's data from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}

//! `Policy`: an eviction policy of the literature, as little of it as has to be written.
//!
//! A policy owns an *order* of blocks and the history that it is made from. It knows nothing of
//! references, chains, priorities or tenants: these are added by `Closed` of the crate
//! `kvpool-policies`. The same code is run by the pool, by `kvpool size` at many capacities, and by the
//! online advisor on a sample of keys.
//!
//! The life of a block, as a policy sees it:
//!
//! ```text
//!   admit ── release ──┬── pop ──┬── evicted            the content is gone; a ghost may remember its key
//!              ▲       │         └── unpop ...          it may not go now; it is next again as soon as it may
//!              └─ hit ─┘
//!   forget, at any moment: the content is gone and nothing is to be remembered
//! ```

use std::fmt;

use super::Candidate;
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};

/// What a policy may know of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The first 8 bytes of the block hash: the same content has the same key, whatever block it is in.
    pub key: u64,
    /// Its position in its hash chain: 0 for the first block of a prompt.
    pub depth: u32,
}

/// How a request ended, as engines say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    /// Nobody said.
    #[default]
    Unknown,
    /// The model ended its turn: a human reads it, or a batch goes on.
    Stop,
    /// The model called tools: a program answers.
    ToolCalls,
    /// It ran into a limit of its length.
    Length,
    /// It was aborted, or failed.
    Aborted,
}

impl Finish {
    /// What engines call it: the finish reasons of `OpenAI`'s and Anthropic's APIs and of vLLM.
    /// [`Self::Unknown`] for any other.
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

    /// What `OpenAI`'s API calls it; `None` if it is unknown.
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

/// What is known of a request when its blocks are released: a hint. A wrong one costs hits and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signal {
    /// How it ended.
    pub finish: Finish,
    /// Tokens that the model answered with; `None` if nobody said.
    pub output_tokens: Option<u32>,
}

/// How long a block would have to be kept for a hit, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kept {
    /// On the caller's clock.
    Seconds(f32),
    /// Where there is none: while so many capacities of new blocks are admitted.
    Capacities(f32),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Seconds(seconds) => write!(f, "{seconds:.1} s"),
            Self::Capacities(capacities) => write!(f, "{capacities:.2} capacities of new blocks"),
        }
    }
}

/// What a policy thought of a block when it evicted it: for explanations.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Outlook {
    /// The class that the block was in, as the policy numbers them.
    pub class: u16,
    /// How long a block of this class and age would have to be kept for a hit; `None` if none is expected.
    pub kept_per_hit: Option<Kept>,
    words: fn(u16, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl Outlook {
    /// Of a class that `words` can name.
    #[must_use]
    pub const fn new(
        class: u16,
        kept_per_hit: Option<Kept>,
        words: fn(u16, &mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> Self {
        Self { class, kept_per_hit, words }
    }

    /// What is alike about the blocks of the class, in words.
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

/// Of the same policy: the words are its own.
impl PartialEq for Outlook {
    fn eq(&self, other: &Self) -> bool {
        self.class == other.class && self.kept_per_hit == other.kept_per_hit
    }
}

/// What a policy may know of the blocks that are about to be released at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Release<'a> {
    /// These blocks, deepest first; empty where each is released as soon as it is touched, as in stream form.
    pub blocks: &'a [Candidate],
    /// How many there will be, if `blocks` does not say it,
    pub length: u32,
    /// and how many of them, from the first on, were there already.
    pub known: u32,
}

/// An order of blocks. Implement this to add a policy in Rust; `kvpool_policies::Closed` makes an
/// evictor of it.
///
/// The caller guarantees: blocks are real blocks of the pool, announced by [`Policy::grow`]; `admit`
/// comes before anything else of a content; `pop` is followed by `evicted`, `unpop` or `forget` of that
/// block before it is admitted again.
///
/// A policy guarantees what each method says, deterministically: the same calls give the same order on
/// any host (no clocks, no hash-map order, no floating-point functions). A call for several blocks is a
/// call for each of them, in turn, and for no block it is none. No method may panic, whatever the
/// arguments; all but `grow` and `clear` MUST NOT allocate and MUST be O(1) or O(log n), amortized.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// `block`, which is in use, has a new content. Ghosts are asked here. It does not have to be in
    /// the order yet.
    fn admit(&mut self, block: BlockId, content: Content);

    /// [`Self::admit`] of blocks of one chain, first to last, each of them once.
    fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        run.iter().for_each(|&(block, content)| self.admit(block, content));
    }

    /// A lookup took `block`, whether it was idle or in use. The block may stay in the order or leave
    /// it; it comes back with [`Self::release`] at the latest.
    fn hit(&mut self, block: BlockId);

    /// [`Self::hit`] of blocks that one lookup took, each of them once.
    fn hit_all(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|&block| self.hit(block));
    }

    /// The releases that follow, up to the next call of this, are of one moment, and of one request.
    fn begin_release(&mut self, _release: &Release<'_>) {}

    /// Whether [`Self::signal`] does anything. Must always say the same.
    fn wants_signals(&self) -> bool {
        false
    }

    /// `block` is in use; the request that releases it next ended so. Forgotten with that release.
    fn signal(&mut self, _block: BlockId, _signal: Signal) {}

    /// Whether it measures ages on a clock. Must always say the same.
    fn keeps_time(&self) -> bool {
        false
    }

    /// The time, in seconds on the caller's clock; never earlier than before. Asked of those that [keep
    /// time](Self::keeps_time).
    fn set_time(&mut self, _now: f64) {}

    /// `block` lost its last holder: MUST be in the order afterwards. The calls of one moment come
    /// deepest first.
    fn release(&mut self, block: BlockId);

    /// [`Self::release`] of blocks of one moment, each of them once.
    fn release_all(&mut self, blocks: &[Candidate]) {
        blocks.iter().for_each(|candidate| self.release(candidate.block));
    }

    /// Takes the next victim out of the order. MUST return a block while any is in the order.
    fn pop(&mut self) -> Option<BlockId>;

    /// Takes `block`, if it is in the order, out of it as [`Self::pop`] would, though another may be next.
    fn take(&mut self, block: BlockId);

    /// `block`, given up by [`Self::pop`] or [`Self::take`], is in the order again, the next victim of
    /// its kind. Its counts are what they were. Nothing if it is in the order.
    fn unpop(&mut self, block: BlockId);

    /// The content of `block`, given up by [`Self::pop`] or [`Self::take`], is gone. A ghost may
    /// remember `content.key`.
    fn evicted(&mut self, _block: BlockId, _content: Content) {}

    /// What it thought of `block`, if that is the last one it evicted and no content came in since: for
    /// explanations, and asked only where somebody watches. `None` from policies that expect nothing in
    /// particular.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// The content of `block`, in the order or not, is gone without having been evicted: nothing of it
    /// is remembered.
    fn forget(&mut self, block: BlockId);

    /// All contents are gone, ghosts included. O(blocks).
    fn clear(&mut self);

    /// Makes room for blocks up to `num_blocks - 1`, and for a capacity of `num_blocks - 1`. MAY be
    /// asked twice for the same.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
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

    /// Recounts its own structures from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}

//! What is done to a manager with KV-cache groups, and how random draws become groups and operations: the
//! same for property tests and for the fuzzer. A draw of at most `n` is a number from 0 to `n`; small ones
//! mean something simple.

use kvpool::Part;
use kvpool::groups::{GroupKind, GroupSpec, Keep};

/// At most so many requests at a time; operations name those that there are, by turns.
pub const IDS: std::ops::Range<i64> = 0..5;

/// What is done to a manager. Requests are named by numbers; an operation means one that there is, if there
/// is any.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A prompt that turns off from all others at a token, with one of a few ways to go on.
    Admit {
        /// The request.
        id: i64,
        /// The first token that is not everybody's.
        turn: usize,
        /// How it goes on.
        way: u32,
        /// How many.
        tokens: usize,
        /// How much of it is admitted.
        part: Part,
    },
    /// The tables cover so many slots.
    Extend {
        /// The request.
        id: i64,
        /// How many.
        slots: usize,
    },
    /// A connector brings the external tokens, or the first of them.
    Load {
        /// The request.
        id: i64,
        /// How many do not arrive.
        lost: usize,
    },
    /// Tokens for each of some requests, and room for more; what was computed is committed, or not.
    Append {
        /// The requests.
        ids: Vec<i64>,
        /// How many.
        tokens: usize,
        /// Slots for drafts.
        lookahead: usize,
        /// Whether it says what was computed.
        commits: bool,
        /// Drafts that each request accepts, at most: their tokens come first. Without a commit no draft is
        /// accepted.
        accepted: usize,
    },
    /// Computes all tokens of a request and then drafts, as far as its tables cover slots for them.
    Draft {
        /// The request.
        id: i64,
        /// Drafts, at most.
        tokens: usize,
    },
    /// The tables of an encoder's output cover so many tokens.
    Encode {
        /// The request.
        id: i64,
        /// How many.
        tokens: usize,
    },
    /// Takes the plan, and computes a request up to so many tokens of what its tables cover.
    Compute {
        /// The request.
        id: i64,
        /// How many.
        tokens: usize,
    },
    /// Computes all of what the tables of a request cover, or up to where a state is to be kept, and commits
    /// it.
    Step {
        /// The request.
        id: i64,
        /// Whether it ends where a state is to be kept.
        checkpoints: bool,
    },
    /// Commits what was computed, or less of it.
    Commit {
        /// The request.
        id: i64,
        /// How much less.
        back: usize,
    },
    /// A second request over the blocks of the first.
    Fork {
        /// Whose blocks they are.
        parent: i64,
        /// The new one.
        child: i64,
    },
    /// A request loses its last tokens.
    Truncate {
        /// The request.
        id: i64,
        /// How many.
        by: usize,
    },
    /// Preemption by recompute, its blocks fenced by a ticket or by none.
    Preempt {
        /// The request.
        id: i64,
        /// The ticket.
        until: Option<u64>,
    },
    /// The end of one.
    Resume {
        /// The request.
        id: i64,
        /// How much of it is admitted.
        part: Part,
    },
    /// The end of a request.
    Release {
        /// The request.
        id: i64,
        /// The ticket.
        until: Option<u64>,
    },
    /// A ticket.
    Fence,
    /// What it fences is free.
    EndFence(u64),
    /// Preemption by swap.
    SwapOut(Vec<i64>),
    /// The end of one.
    SwapIn(Vec<i64>),
    /// The oldest swap is over, or taken back.
    EndSwap {
        /// Whether its copies are done.
        completes: bool,
    },
    /// So many cached-free blocks are dropped.
    Evict(usize),
    /// Other weights.
    BumpEpoch,
    /// Nothing is cached any more, if nobody holds anything.
    Reset,
}

/// One of several, each as often as its weight says.
fn pick(draw: &mut dyn FnMut(u8) -> usize, weights: &[u8]) -> usize {
    let sum: u8 = weights.iter().sum();
    let mut at = draw(sum - 1);
    weights
        .iter()
        .position(|&weight| at.checked_sub(weight.into()).inspect(|left| at = *left).is_none())
        .unwrap_or(0)
}

/// The groups of a model: one to three, in any order.
pub fn specs(draw: &mut dyn FnMut(u8) -> usize) -> Vec<GroupSpec> {
    (0..=draw(2)).map(|_| spec(draw)).collect()
}

fn spec(draw: &mut dyn FnMut(u8) -> usize) -> GroupSpec {
    let kind = match pick(draw, &[2, 3, 2, 3, 1]) {
        0 => GroupKind::Full,
        1 => GroupKind::Sliding { window: 1 + draw(7) },
        2 => GroupKind::Chunked { chunk: 1 + draw(5) },
        3 => GroupKind::State,
        _ => GroupKind::Cross,
    };
    let block_tokens = [2, 4, 8][pick(draw, &[3, 1, 1])];
    let keep = match pick(draw, &[3, 3, 3, 1]) {
        0 => Keep::All,
        1 => Keep::Every(2 + draw(6)),
        2 => Keep::Junctions,
        _ => Keep::Nothing,
    };
    let margin = pick(draw, &[4, 1]);
    // A group of full attention keeps everything or nothing. The other words decide here whether hits may end
    // inside its blocks.
    let is_full_kept = kind == GroupKind::Full && matches!(keep, Keep::Every(_) | Keep::Junctions);
    let partial_hits = is_full_kept && margin == 0;
    let is_sliding = matches!(kind, GroupKind::Sliding { .. });
    let sink_tokens = if is_sliding && pick(draw, &[2, 1]) > 0 { 1 + draw(4) } else { 0 };
    GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) }
}

fn id(draw: &mut dyn FnMut(u8) -> usize) -> i64 {
    draw(IDS.end as u8 - 1) as i64
}

fn ids(draw: &mut dyn FnMut(u8) -> usize) -> Vec<i64> {
    (0..=draw(1)).map(|_| id(draw)).collect()
}

fn part(draw: &mut dyn FnMut(u8) -> usize) -> Part {
    let allocate_tokens = if draw(1) == 0 { None } else { Some(draw(8)) };
    let external_tokens = if pick(draw, &[5, 1]) == 0 { 0 } else { draw(8) };
    let compute_all = pick(draw, &[7, 1]) > 0;
    Part { allocate_tokens, external_tokens, compute_all }
}

fn until(draw: &mut dyn FnMut(u8) -> usize) -> Option<u64> {
    if pick(draw, &[3, 1]) == 0 { None } else { Some(draw(3) as u64) }
}

/// An operation: admissions, steps, growth and releases are the most frequent ones.
pub fn operation(draw: &mut dyn FnMut(u8) -> usize) -> Operation {
    const WEIGHTS: [u8; 22] = [32, 20, 8, 24, 3, 12, 40, 12, 8, 10, 6, 12, 24, 3, 4, 4, 4, 8, 3, 1, 1, 12];
    match pick(draw, &WEIGHTS) {
        0 => Operation::Admit {
            id: id(draw),
            turn: draw(17),
            way: 1 + draw(1) as u32,
            // Prompts that end where others do are as many as all others.
            tokens: [1 + draw(23), 9, 17][pick(draw, &[1, 1, 1])],
            part: part(draw),
        },
        1 => Operation::Extend { id: id(draw), slots: draw(23) },
        2 => Operation::Load { id: id(draw), lost: draw(3) },
        3 => Operation::Append {
            ids: ids(draw),
            tokens: 1 + draw(2),
            lookahead: draw(6).saturating_sub(3),
            commits: draw(1) > 0,
            accepted: draw(3),
        },
        4 => Operation::Encode { id: id(draw), tokens: draw(5) },
        5 => Operation::Compute {
            id: id(draw),
            tokens: if pick(draw, &[2, 1]) == 0 { usize::MAX } else { 1 + draw(22) },
        },
        6 => Operation::Step { id: id(draw), checkpoints: draw(1) > 0 },
        7 => Operation::Commit { id: id(draw), back: draw(11).saturating_sub(8) },
        8 => Operation::Fork { parent: id(draw), child: id(draw) },
        9 => Operation::Truncate { id: id(draw), by: 1 + draw(4) },
        10 => Operation::Preempt { id: id(draw), until: until(draw) },
        11 => Operation::Resume { id: id(draw), part: part(draw) },
        12 => Operation::Release { id: id(draw), until: until(draw) },
        13 => Operation::Fence,
        14 => Operation::EndFence(draw(3) as u64),
        15 => Operation::SwapOut(ids(draw)),
        16 => Operation::SwapIn(ids(draw)),
        17 => Operation::EndSwap { completes: draw(1) > 0 },
        18 => Operation::Evict(1 + draw(2)),
        19 => Operation::BumpEpoch,
        20 => Operation::Reset,
        _ => Operation::Draft { id: id(draw), tokens: 1 + draw(2) },
    }
}

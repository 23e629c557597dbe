//! `Sequences` over small tiers against a model of tables and bytes: random forks, appends, commits, truncations, windows,
//! frees, fenced or not, swaps of groups, plans and epochs, valid and not.
//!
//! The bytes: every tier has an array of cells, one per token slot, which is never cleared. A step takes the plan, executes it,
//! writes the cells of uncomputed tokens, and commits some of them. A cell's value depends on every token before it and on
//! the epoch of its sequence, as KV does. Whatever a table or the prefix cache claims to be written must be there.
//!
//! After every operation: tables, counts and outcomes equal the model's, written tokens can be read back (through copies that
//! are planned), cached blocks hold what their hash says, all invariants hold, and a failed operation has changed nothing.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 200,000).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, DuplicatePolicy, ExtraKeys, Fit, HashCursor, HasherConfig,
    Place, PoolConfig, SequenceError, SequenceId, Sequences, SwapId, TableChange, TierError, Tiers, Transfer,
    TransferPlan, Verify, runs,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

// --- Bytes ----------------------------------------------------------------------------------------------------------

/// What computing the last token of each prefix of `tokens` writes.
fn kv(epoch: u64, tokens: &[u32]) -> Vec<u64> {
    let mix = |state: u64, with: u64| {
        let mixed = (state ^ with).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    };
    let mut state = mix(!0, epoch);
    let next = |token: &u32| {
        state = mix(state, u64::from(*token) + 1);
        state
    };
    tokens.iter().map(next).collect()
}

/// The memory of all tiers.
#[derive(Clone, PartialEq, Debug)]
struct Store {
    block_size: usize,
    cells: Vec<Vec<u64>>,
}

impl Store {
    fn new(block_size: usize, num_blocks: &[usize]) -> Self {
        let junk = |tier: usize| move |cell: usize| (tier * 1_000_000 + cell) as u64;
        let cells = num_blocks.iter().enumerate();
        let cells = cells.map(|(tier, blocks)| (0..blocks * block_size).map(junk(tier)).collect()).collect();
        Self { block_size, cells }
    }

    fn block(&self, place: Place) -> &[u64] {
        let start = place.block.index() * self.block_size;
        &self.cells[place.tier][start..start + self.block_size]
    }

    fn cell(&mut self, place: Place, slot: usize) -> &mut u64 {
        &mut self.cells[place.tier][place.block.index() * self.block_size + slot]
    }

    fn write(&mut self, place: Place, bytes: &[u64]) {
        let start = place.block.index() * self.block_size;
        self.cells[place.tier][start..start + self.block_size].copy_from_slice(bytes);
    }

    fn copy(&mut self, Transfer { src, dst }: Transfer) {
        let bytes = self.block(src).to_vec();
        self.write(dst, &bytes);
    }

    /// Executes a plan in three ways, which must agree.
    fn execute(&mut self, plan: &TransferPlan) {
        let before = self.clone();
        let mut by_runs = self.clone();
        for round in plan.rounds(&[]).unwrap() {
            round.iter().for_each(|&transfer| self.copy(transfer));
            for run in runs(&round).iter().rev() {
                for i in (0..run.len as u32).rev() {
                    let at = |place: Place| Place { block: BlockId::new(place.block.get() + i), ..place };
                    by_runs.copy(Transfer { src: at(run.src), dst: at(run.dst) });
                }
            }
        }
        assert_eq!(*self, by_runs, "runs of {plan:?}");
        let mut at_once = before.clone();
        plan.transfers().iter().for_each(|t| at_once.write(t.dst, before.block(t.src)));
        assert_eq!(*self, at_once, "rounds of {plan:?}");
    }
}

// --- Operations -----------------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct Commit {
    /// Which sequence.
    of: usize,
    /// How much of what it wrote.
    part: usize,
    dedupe: bool,
}

#[derive(Clone, Debug)]
enum Operation {
    Admit {
        tokens: Vec<u32>,
        tier: usize,
    },
    Fork(usize),
    Append {
        of: usize,
        tokens: Vec<u32>,
        lookahead: usize,
    },
    Commit(Commit),
    Free {
        of: usize,
        after: Option<u64>,
    },
    CompleteStep(u64),
    Truncate {
        of: usize,
        keep: usize,
    },
    Trim {
        of: usize,
        window: usize,
    },
    /// If tidy, without what could not be swapped together, and to another tier.
    BeginSwap {
        group: Vec<usize>,
        to: usize,
        tidy: bool,
    },
    CompleteSwap(usize),
    AbortSwap(usize),
    TakePlan,
    Step {
        idle: usize,
        commits: Vec<Commit>,
    },
    BumpEpoch,
}

fn operation() -> impl Strategy<Value = Operation> {
    let of = || 0usize..12;
    let tokens = |most| prop::collection::vec(0u32..2, 0..most);
    let tier = || prop_oneof![12 => Just(0usize), 6 => Just(1), 3 => Just(2), 1 => Just(3)];
    let commit =
        || (of(), 0usize..6, any::<bool>()).prop_map(|(of, part, dedupe)| Commit { of, part, dedupe });
    let after = prop::option::weighted(0.4, 0u64..12);
    let group = prop_oneof![
        3 => of().prop_map(|of| vec![of]),
        3 => prop::collection::vec(of(), 0..4),
        3 => (0usize..4).prop_map(|of| vec![of, of + 1]),
    ];
    prop_oneof![
        8 => (tokens(10), tier()).prop_map(|(tokens, tier)| Operation::Admit { tokens, tier }),
        8 => of().prop_map(Operation::Fork),
        16 => (of(), tokens(5), prop_oneof![2 => Just(0usize), 1 => 0usize..5])
            .prop_map(|(of, tokens, lookahead)| Operation::Append { of, tokens, lookahead }),
        3 => commit().prop_map(Operation::Commit),
        5 => (of(), after).prop_map(|(of, after)| Operation::Free { of, after }),
        2 => (0u64..12).prop_map(Operation::CompleteStep),
        6 => (of(), 0usize..12).prop_map(|(of, keep)| Operation::Truncate { of, keep }),
        3 => (of(), 0usize..6).prop_map(|(of, window)| Operation::Trim { of, window }),
        10 => (group, tier(), prop::bool::weighted(0.8))
            .prop_map(|(group, to, tidy)| Operation::BeginSwap { group, to, tidy }),
        8 => (0usize..4).prop_map(Operation::CompleteSwap),
        3 => (0usize..4).prop_map(Operation::AbortSwap),
        3 => Just(Operation::TakePlan),
        14 => (0usize..4, prop::collection::vec(commit(), 0..6))
            .prop_map(|(idle, commits)| Operation::Step { idle, commits }),
        1 => Just(Operation::BumpEpoch),
    ]
}

// --- The model ------------------------------------------------------------------------------------------------------

/// What the model knows of a sequence.
#[derive(Clone, Debug)]
struct Known {
    tokens: Vec<u32>,
    epoch: u64,
    computed: usize,
    /// Tokens written, committed or not.
    written: usize,
    published: usize,
    trimmed: usize,
    tier: usize,
    table: Vec<BlockId>,
    swap: Option<SwapId>,
}

#[derive(Clone, Debug)]
struct LiveSwap {
    id: SwapId,
    group: Vec<SequenceId>,
    to: usize,
    mapping: Vec<(BlockId, BlockId, bool)>,
    /// Destinations that are copied, and what they are to be cached as: the hash of a source that was computed.
    caches: Vec<(BlockId, Option<BlockHash>)>,
    epoch: u64,
    taken: bool,
}

type Outcomes = BTreeMap<&'static str, (u64, u64)>;

struct World {
    sequences: Sequences,
    block_size: usize,
    known: BTreeMap<SequenceId, Known>,
    /// Handles of freed sequences.
    dead: Vec<SequenceId>,
    swaps: Vec<LiveSwap>,
    over: Vec<SwapId>,
    store: Store,
    junk: u64,
    scribble: bool,
    /// What blocks hold, by hash.
    contents: HashMap<BlockHash, Vec<u64>>,
    /// Blocks that only a fence holds, and its step: that step may still write to them.
    late: Vec<(u64, Place)>,
    completed: Option<u64>,
}

const MOST_SEQUENCES: usize = 7;

impl World {
    fn new(setting: &Setting) -> Self {
        let Setting { block_size, ref num_blocks, verify, duplicates, scribble } = *setting;
        let hasher = BlockHasher::new(HasherConfig { block_size, verify, ..Default::default() }).unwrap();
        let tier =
            |&num_blocks| PoolConfig { num_blocks, block_size, verify, duplicates, ..Default::default() };
        let tiers = Tiers::new(num_blocks.iter().map(tier).collect()).unwrap();
        Self {
            sequences: Sequences::new(tiers, Arc::new(hasher)).unwrap(),
            block_size,
            known: BTreeMap::new(),
            dead: Vec::new(),
            swaps: Vec::new(),
            over: Vec::new(),
            store: Store::new(block_size, num_blocks),
            junk: 1 << 40,
            scribble,
            contents: HashMap::new(),
            late: Vec::new(),
            completed: None,
        }
    }

    fn pool(&self, tier: usize) -> &BlockPool {
        self.sequences.tiers().pool(tier).unwrap()
    }

    fn num_tiers(&self) -> usize {
        self.sequences.tiers().len()
    }

    fn pending(&self) -> Vec<Transfer> {
        self.sequences.tiers().pending_copies().collect()
    }

    /// Where the bytes of a block are until the plan is executed.
    fn resolve(pending: &[Transfer], place: Place) -> Place {
        pending.iter().find(|copy| copy.dst == place).map_or(place, |copy| copy.src)
    }

    /// A handle, mostly of a sequence that lives.
    fn pick(&self, of: usize) -> SequenceId {
        let handles: Vec<_> =
            self.known.keys().copied().chain(self.dead.iter().rev().take(1).copied()).collect();
        if handles.is_empty() { SequenceId::from_bits(7) } else { handles[of % handles.len()] }
    }

    fn settled(&self, id: SequenceId) -> Option<&Known> {
        self.known.get(&id).filter(|known| known.swap.is_none())
    }

    /// Tables, and references of swaps, that hold a block.
    fn holders(&self, place: Place) -> usize {
        let names = |table: &[BlockId]| table.iter().filter(|&&block| block == place.block).count();
        let tables = self.known.values().filter(|known| known.tier == place.tier);
        let of_tables: usize = tables.map(|known| names(&known.table)).sum();
        let coming = self.swaps.iter().filter(|swap| swap.to == place.tier).flat_map(|swap| {
            let moves = swap.mapping.iter().filter(|moved| moved.1 == place.block);
            moves.flat_map(|moved| swap.group.iter().map(|id| (*id, moved.0)))
        });
        let of_swaps = coming.map(|(id, src)| self.known[&id].table.iter().filter(|&&b| b == src).count());
        of_tables + of_swaps.sum::<usize>()
    }

    fn observe(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let pool =
            |tier| (self.pool(tier).free_order(), self.pool(tier).eviction_order(), self.pool(tier).stats());
        let pools: Vec<_> = (0..self.num_tiers()).map(pool).collect();
        let sequence =
            |id| (self.sequences.info(id).ok(), self.sequences.block_table(id).ok().map(<[_]>::to_vec));
        let sequences: Vec<_> = self.known.keys().chain(&self.dead).map(|&id| sequence(id)).collect();
        (pools, sequences, self.pending(), self.sequences.len(), self.sequences.epoch())
    }

    fn apply(&mut self, operation: &Operation, outcomes: &RefCell<Outcomes>) {
        let before = self.observe();
        let (name, done) = self.run(operation);
        if !done {
            assert_eq!(before, self.observe(), "a failed {operation:?} changed something");
        }
        self.check(operation);
        let mut outcomes = outcomes.borrow_mut();
        let count = outcomes.entry(name).or_default();
        if done { count.0 += 1 } else { count.1 += 1 }
    }

    fn run(&mut self, operation: &Operation) -> (&'static str, bool) {
        match operation {
            Operation::Admit { tokens, tier } => ("admit", self.admit(tokens, *tier)),
            Operation::Fork(of) => ("fork", self.fork(self.pick(*of))),
            Operation::Append { of, tokens, lookahead } => {
                ("append", self.append(self.pick(*of), tokens, *lookahead))
            }
            Operation::Commit(commit) => ("commit", self.commit(commit)),
            Operation::Free { of, after } => ("free", self.free(self.pick(*of), *after)),
            Operation::CompleteStep(step) => ("complete_step", self.complete_step(*step)),
            Operation::Truncate { of, keep } => ("truncate", self.truncate(self.pick(*of), *keep)),
            Operation::Trim { of, window } => ("trim_window", self.trim(self.pick(*of), *window)),
            Operation::BeginSwap { group, to, tidy } => {
                let mut group: Vec<_> = group.iter().map(|&of| self.pick(of)).collect();
                let mut to = *to;
                if let Some(from) = group.iter().find_map(|&id| self.settled(id)).filter(|_| *tidy) {
                    let from = from.tier;
                    let mut named = BTreeSet::new();
                    group.retain(|&id| {
                        self.settled(id).is_some_and(|known| known.tier == from) && named.insert(id)
                    });
                    to = if to == from { (from + 1) % self.num_tiers() } else { to };
                }
                ("begin_swap", self.begin_swap(&group, to))
            }
            Operation::CompleteSwap(nth) => ("complete_swap", self.complete_swap(*nth)),
            Operation::AbortSwap(nth) => ("abort_swap", self.abort_swap(*nth)),
            Operation::TakePlan => ("take_plan", self.take_plan()),
            Operation::Step { idle, commits } => ("step", self.step(*idle, commits)),
            Operation::BumpEpoch => {
                let epoch = self.sequences.epoch() + 1;
                assert_eq!(self.sequences.bump_epoch(), Ok(epoch));
                ("bump_epoch", true)
            }
        }
    }

    fn admit(&mut self, tokens: &[u32], tier: usize) -> bool {
        if self.known.len() >= MOST_SEQUENCES {
            return false;
        }
        let epoch = self.sequences.epoch();
        let hasher = Arc::clone(self.sequences.hasher());
        let mut prompt = HashCursor::new(hasher, ExtraKeys { epoch, ..Default::default() }).unwrap();
        prompt.append(tokens);
        let total = tokens.len().div_ceil(self.block_size);
        let mut fits = None;
        let mut cached = 0;
        if tier < self.num_tiers() && !tokens.is_empty() {
            let pool = self.pool(tier);
            let probe = pool.probe(prompt.chain(), (tokens.len() - 1) / self.block_size).unwrap();
            cached = probe.cached_blocks;
            let available = pool.num_available() - probe.idle_blocks;
            fits = Some((total - cached <= available, total - cached, available, total <= pool.num_usable()));
        }
        let result = self.sequences.admit(prompt, tier);
        assert_eq!(result.is_ok(), fits.is_some_and(|fits| fits.0), "{result:?}");
        let id = match (result, fits) {
            (Ok(id), _) => id,
            (Err(SequenceError::OutOfBlocks(refusal)), Some((_, needed, available, ever))) => {
                let got = (refusal.needed, refusal.available, refusal.can_ever_fit);
                assert_eq!(got, (needed, available, ever));
                return false;
            }
            (Err(error), fits) => {
                assert!(fits.is_none(), "{error}");
                return false;
            }
        };
        assert!(!self.known.contains_key(&id) && !self.dead.contains(&id), "a handle is used twice");
        let table = self.sequences.block_table(id).unwrap().to_vec();
        assert_eq!(table.len(), total);
        let computed = cached * self.block_size;
        let known = Known {
            tokens: tokens.to_vec(),
            epoch,
            computed,
            written: computed,
            published: cached,
            trimmed: 0,
            tier,
            table,
            swap: None,
        };
        self.known.insert(id, known);
        true
    }

    fn fork(&mut self, id: SequenceId) -> bool {
        if self.known.len() >= MOST_SEQUENCES {
            return false;
        }
        let result = self.sequences.fork(id);
        assert_eq!(result.is_ok(), self.settled(id).is_some());
        let Ok(child) = result else { return false };
        assert!(!self.known.contains_key(&child) && !self.dead.contains(&child), "a handle is used twice");
        self.known.insert(child, self.known[&id].clone());
        true
    }

    fn append(&mut self, id: SequenceId, tokens: &[u32], lookahead: usize) -> bool {
        let size = self.block_size;
        let before: Vec<_> = (0..self.num_tiers()).map(|tier| self.ref_counts(tier)).collect();
        let mut planned = self.pending();
        let expected = self.settled(id).map(|known| {
            let more = tokens.len() + lookahead;
            let (first, end) = (known.tokens.len() / size, (known.tokens.len() + more).div_ceil(size));
            let touched = if more == 0 { 0..0 } else { first..end.min(known.table.len()) };
            let pool = self.pool(known.tier);
            let place = |index: usize| Place { tier: known.tier, block: known.table[index] };
            let registered = |index: usize| pool.is_registered(known.table[index]);
            let replaced: Vec<_> =
                touched.clone().filter(|&at| self.holders(place(at)) > 1 || registered(at)).collect();
            let missing = known.table.len()..end.max(known.table.len());
            // Alone in the pool it would copy registered blocks only; trimmed blocks are none.
            let alone = known.table.len() - known.trimmed
                + missing.len()
                + touched.filter(|&at| registered(at)).count();
            let copied = replaced.iter().filter(|&&at| at * size < known.tokens.len());
            let copied: Vec<_> = copied.map(|&at| (Self::resolve(&planned, place(at)), at)).collect();
            let positions: Vec<_> = replaced.iter().copied().chain(missing).collect();
            (positions, copied, pool.num_available(), alone <= pool.num_usable(), known.tier)
        });
        let result = self.sequences.append(id, tokens, lookahead);
        let Some((positions, copied, available, can_ever_fit, tier)) = expected else {
            assert!(matches!(result, Err(SequenceError::Stale { .. } | SequenceError::Moving { .. })));
            return false;
        };
        assert_eq!(result.is_ok(), positions.len() <= available, "{positions:?} of {available}: {result:?}");
        let changes = match result {
            Ok(changes) => changes,
            Err(SequenceError::OutOfBlocks(refusal)) => {
                // Far too much is refused before it is counted exactly.
                if refusal.needed == positions.len() {
                    assert_eq!((refusal.available, refusal.can_ever_fit), (available, can_ever_fit));
                }
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(changes.iter().map(|change| change.index).collect::<Vec<_>>(), positions);
        for (src, at) in copied {
            let change = changes.iter().find(|change| change.index == at).unwrap();
            planned.push(Transfer { src, dst: Place { tier, block: change.block } });
        }
        assert_eq!(self.pending(), planned);
        for change in &changes {
            let held = before[tier][change.block.index()];
            assert_eq!(held, 0, "{:?} was handed out while it was held, fenced or pinned", change.block);
        }
        let known = self.known.get_mut(&id).unwrap();
        known.tokens.extend(tokens);
        Self::change(known, &changes);
        true
    }

    fn ref_counts(&self, tier: usize) -> Vec<u32> {
        let pool = self.pool(tier);
        (0..pool.num_blocks() as u32).map(|b| pool.ref_count(BlockId::new(b)).unwrap()).collect()
    }

    fn change(known: &mut Known, changes: &[TableChange]) {
        for change in changes {
            if change.index == known.table.len() {
                known.table.push(change.block);
            } else {
                known.table[change.index] = change.block;
            }
        }
    }

    /// Commits a part of what was written; sometimes an impossible count.
    fn commit(&mut self, commit: &Commit) -> bool {
        let id = self.pick(commit.of);
        let (tokens, computed, written) = self
            .known
            .get(&id)
            .map_or((0, 0, 0), |known| (known.tokens.len(), known.computed, known.written));
        let count = match commit.part {
            0 => written,
            1 => (computed + 1).min(written),
            2 => usize::midpoint(computed, written),
            3 => written,
            4 => tokens + 1,
            _ => computed.saturating_sub(1),
        };
        // Of these, one is impossible and one is often: rarely wanted.
        let count = if commit.part > 3 && commit.dedupe { written } else { count };
        self.commit_to(id, count, commit.dedupe)
    }

    fn commit_to(&mut self, id: SequenceId, count: usize, dedupe: bool) -> bool {
        let size = self.block_size;
        let fine =
            self.settled(id).is_some_and(|known| (known.computed..=known.tokens.len()).contains(&count));
        let mut exchanged = Vec::new();
        let mut published = 0;
        if let Some(known) = self.settled(id).filter(|_| fine) {
            published = known.published;
            if known.epoch == self.sequences.epoch() {
                let pool = self.pool(known.tier);
                let hashes = self.sequences.cursor(id).unwrap().chain().hashes();
                let cached = |at: usize| {
                    let first = pool.copies(&hashes[at]).first().copied();
                    first.filter(|&block| pool.is_computed(block))
                };
                let new = known.published..count / size;
                published = published.max(count / size);
                exchanged = new.map_while(|at| Some((at, cached(at)?))).collect();
            }
        }
        let result = self.sequences.commit(id, count, dedupe);
        assert_eq!(result.is_ok(), fine, "{result:?}");
        let Ok(changes) = result else { return false };
        // A block that is the cached one already may be named or not.
        let known = self.known.get_mut(&id).unwrap();
        let real = |(at, block): &(usize, BlockId)| known.table[*at] != *block;
        let got: Vec<_> = changes.iter().map(|change| (change.index, change.block)).filter(real).collect();
        let expected: Vec<_> = exchanged.into_iter().filter(|_| dedupe).filter(real).collect();
        assert_eq!(got, expected);
        (known.computed, known.published) = (count, published);
        Self::change(known, &changes);
        true
    }

    fn free(&mut self, id: SequenceId, after: Option<u64>) -> bool {
        let mut alone = Vec::new();
        if let Some(known) = self.settled(id)
            && let Some(step) = after.filter(|&step| self.completed.is_none_or(|completed| step > completed))
        {
            let pool = self.pool(known.tier);
            let own = known.table.iter().filter(|&&b| pool.ref_count(b) == Some(1) && !pool.is_registered(b));
            alone.extend(own.map(|&block| (step, Place { tier: known.tier, block })));
        }
        let result = self.sequences.free(id, after);
        assert_eq!(result.is_ok(), self.settled(id).is_some());
        if result.is_err() {
            return false;
        }
        for &(_, place) in &alone {
            assert_eq!(self.pool(place.tier).fence_references(place.block), 1);
        }
        self.late.extend(alone);
        self.known.remove(&id);
        self.dead.push(id);
        true
    }

    fn complete_step(&mut self, step: u64) -> bool {
        // Until now the step may have written.
        for (of, place) in std::mem::take(&mut self.late) {
            if of > step {
                self.late.push((of, place));
            } else {
                self.scrawl(place);
            }
        }
        self.sequences.complete_step(step).unwrap();
        self.completed = self.completed.max(Some(step));
        true
    }

    fn scrawl(&mut self, place: Place) {
        for slot in 0..self.block_size {
            self.junk += 1;
            *self.store.cell(place, slot) = self.junk;
        }
    }

    fn truncate(&mut self, id: SequenceId, keep: usize) -> bool {
        let size = self.block_size;
        // Within its tokens, or one more.
        let keep = self.known.get(&id).map_or(keep, |known| keep % (known.tokens.len() + 2));
        let fine =
            self.settled(id).is_some_and(|known| (known.trimmed * size..=known.tokens.len()).contains(&keep));
        let result = self.sequences.truncate(id, keep);
        assert_eq!(result.is_ok(), fine, "{result:?}");
        if fine {
            let known = self.known.get_mut(&id).unwrap();
            known.tokens.truncate(keep);
            known.table.truncate(keep.div_ceil(size));
            (known.computed, known.written) = (known.computed.min(keep), known.written.min(keep));
            known.published = known.published.min(keep / size);
        }
        fine
    }

    fn trim(&mut self, id: SequenceId, window: usize) -> bool {
        let size = self.block_size;
        let result = self.sequences.trim_window(id, window);
        assert_eq!(result.is_ok(), self.settled(id).is_some());
        let Ok(count) = result else { return false };
        let known = self.known.get_mut(&id).unwrap();
        let outside = (known.computed.saturating_sub(window) / size).max(known.trimmed);
        assert_eq!(count, outside - known.trimmed);
        known.table[known.trimmed..outside].fill(BlockId::new(0));
        known.trimmed = outside;
        true
    }

    fn begin_swap(&mut self, group: &[SequenceId], to: usize) -> bool {
        let distinct: BTreeSet<_> = group.iter().copied().collect();
        let members: Option<Vec<_>> = group.iter().map(|&id| self.settled(id)).collect();
        let from = members.filter(|members| {
            let together = members.iter().all(|known| known.tier == members[0].tier);
            !members.is_empty() && together && distinct.len() == group.len()
        });
        let from = from.map(|members| members[0].tier).filter(|&from| to < self.num_tiers() && from != to);
        // (blocks to allocate, blocks available, whether they would fit if nothing else were there)
        let need = from.map(|from| {
            let (source, target) = (self.pool(from), self.pool(to));
            let held = group.iter().flat_map(|id| &self.known[id].table[self.known[id].trimmed..]);
            let blocks: BTreeSet<_> = held.copied().collect();
            let cached = blocks.iter().filter_map(|&block| {
                let hash = source.hash_of(block).filter(|_| source.is_computed(block))?;
                target.copies(&hash).first().copied().filter(|&block| target.is_computed(block))
            });
            let found: Vec<_> = cached.collect();
            let fresh = blocks.len() - found.len();
            let found: BTreeSet<_> = found.into_iter().collect();
            let idle = found.iter().filter(|&&block| target.ref_count(block) == Some(0)).count();
            let ever = fresh + found.len() <= target.num_usable();
            (fresh, target.num_available() - idle, ever)
        });
        let fits = need.map(|(fresh, available, ever)| {
            if fresh <= available {
                Fit::Ok
            } else if ever {
                Fit::Later
            } else {
                Fit::Never
            }
        });
        assert_eq!(self.sequences.fit_swap(group, to, 0).ok(), fits);
        let before = if to < self.num_tiers() { self.ref_counts(to) } else { Vec::new() };
        let mut planned = self.pending();
        let result = self.sequences.begin_swap(group, to);
        assert_eq!(result.is_ok(), fits == Some(Fit::Ok), "{result:?}");
        let (Ok(id), Some(from)) = (result.clone(), from) else {
            if let (Err(SequenceError::OutOfBlocks(refusal)), Some((fresh, available, ever))) = (result, need)
            {
                let got = (refusal.needed, refusal.available, refusal.can_ever_fit);
                assert_eq!(got, (fresh, available, ever));
            }
            return false;
        };
        let mapping = self.sequences.tiers().swap_mapping(id).unwrap();
        let copied: Vec<_> = mapping.iter().filter(|moved| moved.2).collect();
        assert_eq!(
            copied.len(),
            need.unwrap().0,
            "no more blocks than the distinct ones that are not cached"
        );
        for &&(src, dst, _) in &copied {
            assert_eq!(before[dst.index()], 0, "{dst:?} was handed out while held, fenced or pinned");
            let src = Self::resolve(&planned, Place { tier: from, block: src });
            planned.push(Transfer { src, dst: Place { tier: to, block: dst } });
        }
        assert_eq!(self.pending(), planned);
        for id_of in group {
            self.known.get_mut(id_of).unwrap().swap = Some(id);
        }
        let source = self.pool(from);
        let cached_as = |src: BlockId| source.hash_of(src).filter(|_| source.is_computed(src));
        let caches: Vec<_> = copied.iter().map(|moved| (moved.1, cached_as(moved.0))).collect();
        let (epoch, taken) = (self.sequences.epoch(), copied.is_empty());
        let group = group.to_vec();
        self.swaps.push(LiveSwap { id, group, to, mapping, caches, epoch, taken });
        true
    }

    /// The `nth` swap: one that is under way, or one that is over.
    fn pick_swap(&self, nth: usize) -> (SwapId, Option<usize>) {
        let live = (0..self.swaps.len()).map(|at| (self.swaps[at].id, Some(at)));
        let all: Vec<_> = live.chain(self.over.last().map(|&id| (id, None))).collect();
        if all.is_empty() { (SwapId::from_number(999), None) } else { all[nth % all.len()] }
    }

    fn complete_swap(&mut self, nth: usize) -> bool {
        let (id, at) = self.pick_swap(nth);
        let result = self.sequences.complete_swap(id);
        let Some(at) = at.filter(|&at| self.swaps[at].taken) else {
            let known = at.is_some();
            let refused = match result {
                Err(SequenceError::Tier(TierError::CopiesNotTaken { .. })) => known,
                Err(SequenceError::Tier(TierError::UnknownSwap { .. })) => !known,
                _ => false,
            };
            assert!(refused, "{result:?}");
            return false;
        };
        let swap = self.swaps.remove(at);
        let mapping: Vec<_> = swap.mapping.iter().map(|&(src, dst, _)| (src, dst)).collect();
        assert_eq!(result.unwrap(), mapping);
        let mapping: BTreeMap<_, _> = mapping.into_iter().collect();
        for id in &swap.group {
            let known = self.known.get_mut(id).unwrap();
            let trimmed = known.trimmed;
            known.table[trimmed..].iter_mut().for_each(|block| *block = mapping[block]);
            (known.tier, known.swap) = (swap.to, None);
        }
        for (dst, hash) in swap.caches {
            let hash = hash.filter(|_| swap.epoch == self.sequences.epoch());
            let pool = self.pool(swap.to);
            assert_eq!((pool.hash_of(dst), pool.is_computed(dst)), (hash, hash.is_some()), "{dst:?}");
        }
        self.over.push(swap.id);
        true
    }

    fn abort_swap(&mut self, nth: usize) -> bool {
        let (id, at) = self.pick_swap(nth);
        let result = self.sequences.abort_swap(id);
        assert_eq!(result.is_ok(), at.is_some(), "{result:?}");
        let Some(at) = at else { return false };
        let swap = self.swaps.remove(at);
        for id in &swap.group {
            self.known.get_mut(id).unwrap().swap = None;
        }
        self.over.push(swap.id);
        true
    }

    fn take_plan(&mut self) -> bool {
        let planned = self.pending();
        let live = |copy: &Transfer| self.pool(copy.dst.tier).num_holders(copy.dst.block) > 0;
        let expected: Vec<_> = planned.iter().copied().filter(live).collect();
        let plan = self.sequences.take_plan().unwrap();
        assert_eq!(plan.transfers(), expected);
        assert!(self.pending().is_empty());
        self.store.execute(&plan);
        self.swaps.iter_mut().for_each(|swap| swap.taken = true);
        true
    }

    /// The plan is executed, then all but some sequences write, then some commit.
    fn step(&mut self, idle: usize, commits: &[Commit]) -> bool {
        self.take_plan();
        let writing: Vec<_> = self.known.keys().copied().filter(|&id| self.settled(id).is_some()).collect();
        let writing: Vec<_> =
            writing.into_iter().enumerate().filter(|(at, _)| at + 1 != idle).map(|(_, id)| id).collect();
        for id in writing {
            let known = &self.known[&id];
            let cells = kv(known.epoch, &known.tokens);
            for (at, &value) in cells.iter().enumerate().skip(known.computed) {
                let place = Place { tier: known.tier, block: known.table[at / self.block_size] };
                let pool = self.sequences.tiers().pool(place.tier).unwrap();
                let cell = self.store.cell(place, at % self.block_size);
                let unchanged = *cell == value;
                assert!(unchanged || !pool.is_registered(place.block), "{id} writes to the cached {place:?}");
                *cell = value;
            }
            let known = self.known.get_mut(&id).unwrap();
            known.written = known.tokens.len();
        }
        for commit in commits {
            self.commit(commit);
        }
        true
    }

    fn check(&mut self, operation: &Operation) {
        self.sequences
            .check_invariants()
            .unwrap_or_else(|violation| panic!("{violation} after {operation:?}"));
        assert_eq!(self.sequences.len(), self.known.len());
        for (&id, known) in &self.known {
            assert_eq!(self.sequences.block_table(id).unwrap(), known.table, "table of {id}, {operation:?}");
            let info = self.sequences.info(id).unwrap();
            let got = (info.tokens, info.computed_tokens, info.published_blocks, info.trimmed_blocks);
            let expected = (known.tokens.len(), known.computed, known.published, known.trimmed);
            assert_eq!(got, expected, "{id} after {operation:?}");
            assert_eq!((info.tier, info.swap, info.blocks), (known.tier, known.swap, known.table.len()));
            let chain = self.sequences.cursor(id).unwrap().chain();
            let cells = kv(known.epoch, &known.tokens);
            for (hash, cells) in chain.hashes().iter().zip(cells.chunks(self.block_size)) {
                let held = self.contents.entry(*hash).or_insert_with(|| cells.to_vec());
                assert_eq!(held, cells, "two contents have one hash");
            }
        }
        self.check_bytes(operation);
        if self.scribble {
            // Nobody may rely on what a free block holds.
            for tier in 0..self.num_tiers() {
                for block in self.pool(tier).free_order() {
                    self.scrawl(Place { tier, block });
                }
            }
        }
    }

    fn check_bytes(&self, operation: &Operation) {
        let pending = self.pending();
        for tier in 0..self.num_tiers() {
            let pool = self.pool(tier);
            let stats = pool.stats();
            assert_eq!(stats.free + stats.cached_free + stats.active + stats.fenced, stats.usable);
            for block in (1..pool.num_blocks() as u32).map(BlockId::new) {
                let place = Place { tier, block };
                assert_eq!(pool.num_holders(block) as usize, self.holders(place), "holders of {place:?}");
                let Some(hash) = pool.hash_of(block).filter(|_| pool.is_computed(block)) else { continue };
                assert!(
                    pending.iter().all(|copy| copy.dst != place),
                    "{place:?} is cached and to be written"
                );
                assert_eq!(self.store.block(place), self.contents[&hash], "{place:?} after {operation:?}");
            }
        }
        for (id, known) in &self.known {
            let cells = kv(known.epoch, &known.tokens);
            for (at, block) in known.table.iter().enumerate().skip(known.trimmed) {
                let place = Self::resolve(&pending, Place { tier: known.tier, block: *block });
                let start = at * self.block_size;
                let end = known.written.min(start + self.block_size);
                if start < end {
                    let (found, written) = (&self.store.block(place)[..end - start], &cells[start..end]);
                    assert_eq!(found, written, "block {at} of {id} at {place:?} after {operation:?}");
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Setting {
    block_size: usize,
    num_blocks: Vec<usize>,
    verify: Verify,
    duplicates: DuplicatePolicy,
    /// Whether free blocks are overwritten at once, or keep what they held.
    scribble: bool,
}

fn setting() -> impl Strategy<Value = Setting> {
    let tier = || 3usize..20;
    let num_blocks =
        prop_oneof![3 => prop::collection::vec(tier(), 2), 1 => prop::collection::vec(tier(), 3)];
    let verify = prop_oneof![Just(Verify::None), Just(Verify::Tokens)];
    let duplicates = prop_oneof![Just(DuplicatePolicy::Keep), Just(DuplicatePolicy::DropOnRelease)];
    (1usize..5, num_blocks, verify, duplicates, any::<bool>()).prop_map(
        |(block_size, num_blocks, verify, duplicates, scribble)| Setting {
            block_size,
            num_blocks,
            verify,
            duplicates,
            scribble,
        },
    )
}

fn operations_in_all() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

#[test]
fn sequences_equal_the_model_of_tables_and_bytes() {
    const LENGTH: u32 = 100;
    let config = Config {
        cases: operations_in_all().div_ceil(LENGTH),
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let outcomes = RefCell::new(Outcomes::new());
    let setting = (setting(), prop::collection::vec(operation(), 0..=2 * LENGTH as usize));
    let result = TestRunner::new(config).run(&setting, |(setting, operations)| {
        let mut world = World::new(&setting);
        for operation in &operations {
            world.apply(operation, &outcomes);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    println!("(succeeded, refused): {:?}", outcomes.borrow());
    if operations_in_all() >= 50_000 {
        let always = ["bump_epoch", "complete_step", "step", "take_plan"];
        for (name, &(succeeded, refused)) in outcomes.borrow().iter() {
            assert!(succeeded > 100, "{name} hardly ever succeeds");
            assert!(refused > 100 || always.contains(name), "{name} is hardly ever refused");
        }
    }
}

// --- One by one -----------------------------------------------------------------------------------------------------

/// Sequences over tiers with so many usable blocks.
fn sequences(block_size: usize, usable: &[usize]) -> Sequences {
    let hasher = BlockHasher::new(HasherConfig { block_size, ..Default::default() }).unwrap();
    let tier = |&usable| PoolConfig { num_blocks: usable + 1, block_size, ..Default::default() };
    Sequences::new(Tiers::new(usable.iter().map(tier).collect()).unwrap(), Arc::new(hasher)).unwrap()
}

fn prompt(sequences: &Sequences, tokens: &[u32]) -> HashCursor {
    let extra = ExtraKeys { epoch: sequences.epoch(), ..Default::default() };
    let mut prompt = HashCursor::new(Arc::clone(sequences.hasher()), extra).unwrap();
    prompt.append(tokens);
    prompt
}

fn admit(sequences: &mut Sequences, tokens: &[u32], tier: usize) -> SequenceId {
    let prompt = prompt(sequences, tokens);
    sequences.admit(prompt, tier).unwrap()
}

fn commit_all(sequences: &mut Sequences, id: SequenceId) {
    let tokens = sequences.info(id).unwrap().tokens;
    sequences.commit(id, tokens, false).unwrap();
}

fn table(sequences: &Sequences, id: SequenceId) -> Vec<u32> {
    sequences.block_table(id).unwrap().iter().map(|block| block.get()).collect()
}

fn ref_count(sequences: &Sequences, tier: usize, block: u32) -> u32 {
    sequences.tiers().pool(tier).unwrap().ref_count(BlockId::new(block)).unwrap()
}

fn plan_of(sequences: &mut Sequences) -> Vec<((usize, u32), (usize, u32))> {
    sequences.check_invariants().unwrap();
    let plan = sequences.take_plan().unwrap();
    let place = |place: Place| (place.tier, place.block.get());
    plan.transfers().iter().map(|t| (place(t.src), place(t.dst))).collect()
}

/// (free, cached-free, active, fenced) of a tier.
fn sums(sequences: &Sequences, tier: usize) -> (usize, usize, usize, usize) {
    sequences.check_invariants().unwrap();
    let stats = sequences.tiers().pool(tier).unwrap().stats();
    (stats.free, stats.cached_free, stats.active, stats.fenced)
}

/// Every block of every tier is free or cached once all sequences are gone.
fn leaks_nothing(sequences: &mut Sequences, ids: &[SequenceId]) {
    ids.iter().for_each(|&id| sequences.free(id, None).unwrap());
    assert!(sequences.is_empty());
    for tier in 0..sequences.tiers().len() {
        assert_eq!((sums(sequences, tier).2, sums(sequences, tier).3), (0, 0), "tier {tier} leaks");
    }
}

fn change(index: usize, block: u32) -> TableChange {
    TableChange { index, block: BlockId::new(block) }
}

/// Copy-on-write must replace the tail in the writer's table, and leave the other's alone.
#[test]
fn defect_c1_copy_on_write_replaces_the_tail() {
    let mut sequences = sequences(4, &[8]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.append(b, &[6], 0).unwrap(), [change(1, 3)]);
    assert_eq!((table(&sequences, a), table(&sequences, b)), (vec![1, 2], vec![1, 3]));
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    assert_eq!([1, 2, 3].map(|block| ref_count(&sequences, 0, block)), [2, 1, 1]);
    // Each has a tail of its own now: no more copies.
    assert_eq!(sequences.append(b, &[7], 0).unwrap(), []);
    assert_eq!(sequences.append(a, &[8], 0).unwrap(), []);
    assert_eq!(plan_of(&mut sequences), []);
    assert_eq!(sequences.cursor(a).unwrap().tail(), [5, 8]);
    assert_eq!(sequences.cursor(b).unwrap().tail(), [5, 6, 7]);
    leaks_nothing(&mut sequences, &[a, b]);
    assert_eq!(sums(&sequences, 0), (8, 0, 0, 0));
}

/// A swapped group shares what it shared (c2), its tables name the new blocks (c3), the old ones come back (c4); the same
/// group took 4 blocks for 2 in vLLM v0 (9).
#[test]
fn defect_c2_c3_c4_and_09_swap_keeps_sharing_and_leaks_nothing() {
    let mut sequences = sequences(4, &[8, 2]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let b = sequences.fork(a).unwrap();
    let c = sequences.fork(b).unwrap();
    assert_eq!(ref_count(&sequences, 0, 2), 3);
    let swap = sequences.begin_swap(&[a, b, c], 1).unwrap();
    assert_eq!(plan_of(&mut sequences), [((0, 1), (1, 1)), ((0, 2), (1, 2))]);
    // Until it is over the tables are the old ones.
    assert_eq!((table(&sequences, b), sequences.info(b).unwrap().tier), (vec![1, 2], 0));
    sequences.complete_swap(swap).unwrap();
    assert_eq!((sums(&sequences, 0), sums(&sequences, 1)), ((8, 0, 0, 0), (0, 0, 2, 0)));
    for id in [a, b, c] {
        assert_eq!((table(&sequences, id), sequences.info(id).unwrap().tier), (vec![1, 2], 1));
    }
    assert_eq!((ref_count(&sequences, 1, 1), ref_count(&sequences, 1, 2)), (3, 3));

    let swap = sequences.begin_swap(&[a, b, c], 0).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 2);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (2, 0, 0, 0));
    let (shared, tail) = (table(&sequences, a)[0], table(&sequences, a)[1]);
    assert_eq!((ref_count(&sequences, 0, shared), ref_count(&sequences, 0, tail)), (3, 3));
    // Still copy-on-write.
    assert_eq!(sequences.append(b, &[6], 0).unwrap().len(), 1);
    assert_eq!(table(&sequences, a), table(&sequences, c));
    assert_eq!(plan_of(&mut sequences).len(), 1);
    leaks_nothing(&mut sequences, &[a, b, c]);
}

/// A swap that does not fit takes nothing, frees nothing, and leaves no table with a hole.
#[test]
fn defect_10_a_swap_is_all_or_nothing() {
    let mut sequences = sequences(2, &[8, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = admit(&mut sequences, &[4, 5, 6], 0);
    let other = admit(&mut sequences, &[7], 1);
    let before = (sums(&sequences, 0), sums(&sequences, 1), table(&sequences, a), table(&sequences, b));
    let order = sequences.tiers().pool(1).unwrap().free_order();
    let Err(SequenceError::OutOfBlocks(refusal)) = sequences.begin_swap(&[a, b], 1) else { panic!() };
    let got = (refusal.needed, refusal.available, refusal.missing, refusal.can_ever_fit);
    assert_eq!(got, (4, 3, 1, true));
    assert_eq!(sequences.fit_swap(&[a, b], 1, 0), Ok(Fit::Later));
    assert_eq!(sequences.fit_swap(&[a, b], 1, 1), Ok(Fit::Never));
    let after = (sums(&sequences, 0), sums(&sequences, 1), table(&sequences, a), table(&sequences, b));
    assert_eq!(before, after);
    assert_eq!(sequences.tiers().pool(1).unwrap().free_order(), order);
    assert_eq!(plan_of(&mut sequences), []);
    // They are not moving, either.
    sequences.append(a, &[8], 0).unwrap();
    sequences.free(other, None).unwrap();
    assert_eq!(sequences.fit_swap(&[a, b], 1, 0), Ok(Fit::Ok));
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    sequences.abort_swap(swap).unwrap();
    leaks_nothing(&mut sequences, &[a, b]);
}

/// A shared block is counted once: vLLM v0 counted 4 for 2 and refused this.
#[test]
fn defect_12_a_swap_that_fits_is_not_refused() {
    let mut sequences = sequences(2, &[12, 4]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let family = [a, sequences.fork(a).unwrap(), sequences.fork(a).unwrap()];
    sequences.append(family[1], &[6], 0).unwrap();
    // Two shared blocks, a tail shared by two, a tail of one: 4 blocks for 9 table entries, and no more than these.
    assert_eq!(sequences.fit_swap(&family, 1, 0), Ok(Fit::Ok));
    let swap = sequences.begin_swap(&family, 1).unwrap();
    assert_eq!((sequences.tiers().swap_mapping(swap).unwrap().len(), sums(&sequences, 1)), (4, (0, 0, 4, 0)));
    // The tail's own copy is still planned: both copies read the tail that it comes from.
    assert_eq!(plan_of(&mut sequences).iter().filter(|(src, _)| *src == (0, 3)).count(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 0), (12, 0, 0, 0));
    leaks_nothing(&mut sequences, &family);
}

/// Two forks append the same tokens; one copies and promotes, the other ends up on the same content, and the source of the
/// planned copy has no holder left. In vLLM v0 it was free then, and a swap-in of the same step overwrote it.
#[test]
fn defect_18_the_source_of_a_planned_copy_is_not_handed_out() {
    let mut sequences = sequences(2, &[2, 4]);
    let mut store = Store::new(2, &[3, 5]);
    let host = admit(&mut sequences, &[9, 9, 8], 1);
    let m = admit(&mut sequences, &[1], 0);
    store.write(at(0, 1), &[11, 0]);
    sequences.commit(m, 1, false).unwrap();
    let k = sequences.fork(m).unwrap();
    assert_eq!(sequences.append(m, &[2], 0).unwrap(), [change(0, 2)]);
    sequences.free(k, None).unwrap();
    // Block 1 is nobody's, and pinned.
    assert_eq!(sums(&sequences, 0), (0, 0, 1, 1));
    assert_eq!(sequences.fit_swap(&[host], 0, 0), Ok(Fit::Later));
    sequences.truncate(host, 2).unwrap();
    let Err(SequenceError::OutOfBlocks(refusal)) = sequences.begin_swap(&[host], 0) else { panic!() };
    assert_eq!((refusal.needed, refusal.available, refusal.fenced), (1, 0, 1));
    let plan = sequences.take_plan().unwrap();
    store.execute(&plan);
    assert_eq!(store.block(at(0, 2))[0], 11);
    // Now it can be had.
    assert_eq!(sums(&sequences, 0), (1, 0, 1, 0));
    let swap = sequences.begin_swap(&[host], 0).unwrap();
    assert_eq!(plan_of(&mut sequences), [((1, 1), (0, 1))]);
    sequences.complete_swap(swap).unwrap();
    leaks_nothing(&mut sequences, &[host, m]);
}

fn at(tier: usize, block: u32) -> Place {
    Place { tier, block: BlockId::new(block) }
}

/// The same with both forks committed and deduplicated: nothing of either is lost.
#[test]
fn defect_18_two_forks_that_append_the_same_share_again() {
    let mut sequences = sequences(2, &[6, 6]);
    let m = admit(&mut sequences, &[1], 0);
    commit_all(&mut sequences, m);
    let k = sequences.fork(m).unwrap();
    sequences.append(m, &[2], 0).unwrap();
    sequences.append(k, &[2], 0).unwrap();
    assert_eq!((table(&sequences, m), table(&sequences, k)), (vec![2], vec![1]));
    assert_eq!(plan_of(&mut sequences), [((0, 1), (0, 2))]);
    assert_eq!(sequences.commit(m, 2, true).unwrap(), []);
    assert_eq!(sequences.commit(k, 2, true).unwrap(), [change(0, 2)]);
    assert_eq!((ref_count(&sequences, 0, 2), sums(&sequences, 0)), (2, (5, 0, 1, 0)));
    leaks_nothing(&mut sequences, &[m, k]);
}

/// vLLM v0 forked block by block, recursively: 1,500 blocks were too many (defect 3).
#[test]
fn a_sequence_of_a_million_blocks_is_forked_and_freed() {
    const BLOCKS: usize = 1_000_000;
    let mut sequences = sequences(1, &[BLOCKS + 2]);
    let tokens: Vec<u32> = (0..BLOCKS as u32).collect();
    let a = admit(&mut sequences, &tokens, 0);
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.append(b, &[7], 0).unwrap().len(), 1);
    commit_all(&mut sequences, b);
    assert_eq!(sequences.trim_window(b, 10).unwrap(), BLOCKS - 9);
    let c = sequences.fork(b).unwrap();
    sequences.free(a, None).unwrap();
    sequences.truncate(b, BLOCKS - 5).unwrap();
    assert_eq!(sequences.info(c).unwrap().blocks, BLOCKS + 1);
    sequences.free(b, Some(1)).unwrap();
    sequences.free(c, None).unwrap();
    sequences.complete_step(1).unwrap();
    let stats = sequences.tiers().pool(0).unwrap().stats();
    assert_eq!((stats.free, stats.cached_free), (1, BLOCKS + 1));
}

/// A handle kept after free never names whoever took its slot (defect 14).
#[test]
fn a_stale_handle_is_refused_after_its_slot_is_reused() {
    let mut sequences = sequences(2, &[8, 8]);
    let old = admit(&mut sequences, &[1, 2, 3], 0);
    sequences.free(old, None).unwrap();
    let new = admit(&mut sequences, &[4, 5, 6], 0);
    assert_eq!(old.to_bits() as u32, new.to_bits() as u32, "one slot");
    assert_ne!(old, new);
    assert_eq!(SequenceId::from_bits(old.to_bits()), old);
    let stale = SequenceError::Stale { handle: old };
    assert_eq!(sequences.info(old), Err(stale.clone()));
    assert_eq!(sequences.free(old, None), Err(stale.clone()));
    assert_eq!(sequences.fork(old), Err(stale.clone()));
    assert_eq!(sequences.append(old, &[1], 0), Err(stale.clone()));
    assert_eq!(sequences.commit(old, 1, true), Err(stale.clone()));
    assert_eq!(sequences.truncate(old, 0), Err(stale.clone()));
    assert_eq!(sequences.trim_window(old, 0), Err(stale.clone()));
    assert_eq!(sequences.begin_swap(&[new, old], 1), Err(stale.clone()));
    assert_eq!(sequences.fit_swap(&[old], 1, 0), Err(stale.clone()));
    assert_eq!(sequences.block_table(old), Err(stale.clone()));
    assert_eq!(sequences.cursor(old).err(), Some(stale));
    assert_eq!(sequences.info(new).unwrap().tokens, 3);
    for bits in [u64::MAX, 1, 5 << 32] {
        assert!(matches!(
            sequences.free(SequenceId::from_bits(bits), None),
            Err(SequenceError::Stale { .. })
        ));
    }
    leaks_nothing(&mut sequences, &[new]);
}

/// Registered blocks are registered in the tier they move to, and stay cached in the one they left: a swap back is free.
#[test]
fn a_swap_keeps_registrations_and_a_swap_back_copies_nothing() {
    let mut sequences = sequences(2, &[8, 8]);
    let tokens = [1, 2, 3, 4, 5];
    let a = admit(&mut sequences, &tokens, 0);
    commit_all(&mut sequences, a);
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sequences.info(a).unwrap().published_blocks, 2);
    assert_eq!((sums(&sequences, 0), sums(&sequences, 1)), ((6, 2, 0, 0), (5, 0, 3, 0)));
    // A prompt hits in both tiers.
    let (device, host) = (admit(&mut sequences, &tokens, 0), admit(&mut sequences, &tokens, 1));
    assert_eq!(sequences.info(device).unwrap().computed_tokens, 4);
    assert_eq!(sequences.info(host).unwrap().computed_tokens, 4);
    assert_eq!(table(&sequences, host)[..2], table(&sequences, a)[..2]);
    sequences.free(host, None).unwrap();

    // Back: both full blocks are there, only the tail is copied. Without a tail, nothing.
    let swap = sequences.begin_swap(&[a], 0).unwrap();
    assert_eq!(sequences.tiers().swap_mapping(swap).unwrap().iter().filter(|moved| moved.2).count(), 1);
    sequences.abort_swap(swap).unwrap();
    sequences.truncate(a, 4).unwrap();
    let swap = sequences.begin_swap(&[a], 0).unwrap();
    assert_eq!(sequences.tiers().pending_copies().count(), 0);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[..], table(&sequences, device)[..2]);
    assert_eq!(sums(&sequences, 1), (6, 2, 0, 0));
    // The next token goes to a block of its own, not into a cached one.
    assert_eq!(sequences.append(a, &[6], 0).unwrap()[0].index, 2);
    leaks_nothing(&mut sequences, &[a, device]);
}

/// Two sources with one content move to one block, and nothing is taken for what is cached.
#[test]
fn a_swap_takes_no_more_blocks_than_distinct_ones_touched() {
    let mut sequences = sequences(2, &[8, 3]);
    // The same content twice in tier 0: both were computed before either was registered.
    let (a, b) = (admit(&mut sequences, &[1, 2, 3], 0), admit(&mut sequences, &[1, 2, 4], 0));
    commit_all(&mut sequences, a);
    commit_all(&mut sequences, b);
    let host = admit(&mut sequences, &[1, 2, 5], 1);
    commit_all(&mut sequences, host);
    sequences.free(host, None).unwrap();
    assert_ne!(table(&sequences, a)[0], table(&sequences, b)[0]);
    assert_eq!(sums(&sequences, 1), (2, 1, 0, 0));
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    assert_eq!((sums(&sequences, 1), plan_of(&mut sequences).len()), ((0, 0, 3, 0), 2));
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[0], table(&sequences, b)[0]);
    leaks_nothing(&mut sequences, &[a, b]);
    assert_eq!(sums(&sequences, 1), (2, 1, 0, 0));
}

/// A truncation into a registered block leaves it cached; what is written next goes into a copy.
#[test]
fn a_registered_tail_is_copied_by_the_next_append() {
    let mut sequences = sequences(4, &[6]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7, 8], 0);
    commit_all(&mut sequences, a);
    sequences.truncate(a, 6).unwrap();
    assert_eq!((sequences.info(a).unwrap().computed_tokens, table(&sequences, a)), (6, vec![1, 2]));
    assert_eq!(sequences.append(a, &[9], 0).unwrap(), [change(1, 3)]);
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    assert_eq!(sums(&sequences, 0), (3, 1, 2, 0));
    sequences.append(a, &[9], 0).unwrap();
    commit_all(&mut sequences, a);
    // Both contents are cached now.
    let first = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7, 8, 0], 0);
    let second = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 9, 9, 0], 0);
    assert_eq!((table(&sequences, first)[..2].to_vec(), table(&sequences, second)[1]), (vec![1, 2], 3));
    leaks_nothing(&mut sequences, &[a, first, second]);
}

/// vLLM v0: a window that drops blocks made the fork's chain cyclic (defect 11).
#[test]
fn a_trimmed_sequence_is_forked_and_goes_on() {
    let mut sequences = sequences(2, &[8, 8]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7], 0);
    commit_all(&mut sequences, a);
    assert_eq!(sequences.trim_window(a, 3).unwrap(), 2);
    assert_eq!((table(&sequences, a), sums(&sequences, 0)), (vec![0, 0, 3, 4], (4, 2, 2, 0)));
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.info(b).unwrap().trimmed_blocks, 2);
    let own = sequences.append(b, &[8], 0).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!((table(&sequences, a), table(&sequences, b)[..3].to_vec()), (vec![0, 0, 3, 4], vec![0, 0, 3]));
    let (from, to) = ((0, 4), (0, own[0].block.get()));
    assert_eq!(plan_of(&mut sequences), [(from, to)]);
    commit_all(&mut sequences, b);
    let hashes = sequences.cursor(b).unwrap().chain().hashes().to_vec();
    assert_eq!(sequences.tiers().pool(0).unwrap().hash_of(own[0].block), Some(hashes[3]));
    // Trimmed blocks do not move.
    let swap = sequences.begin_swap(&[b, a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[..2], [0, 0]);
    assert!(matches!(sequences.truncate(a, 3), Err(SequenceError::BadLength { least: 4, tokens: 7, .. })));
    sequences.truncate(a, 4).unwrap();
    leaks_nothing(&mut sequences, &[a, b]);
}

#[test]
fn a_swap_is_not_completed_before_its_copies_are_taken() {
    let mut sequences = sequences(2, &[4, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    let number = swap.get();
    let not_taken = SequenceError::Tier(TierError::CopiesNotTaken { swap: number });
    assert_eq!(sequences.complete_swap(swap), Err(not_taken));
    assert_eq!((table(&sequences, a), sequences.info(a).unwrap().swap), (vec![1, 2], Some(swap)));
    assert_eq!(sequences.free(a, None), Err(SequenceError::Moving { handle: a }));
    sequences.take_plan().unwrap();
    sequences.complete_swap(swap).unwrap();
    let over = SequenceError::Tier(TierError::UnknownSwap { swap: number });
    assert_eq!(sequences.complete_swap(swap), Err(over.clone()));
    assert_eq!(sequences.abort_swap(swap), Err(over));
    leaks_nothing(&mut sequences, &[a]);
}

/// Each fork takes its own reference along: one swap to each of two tiers, one completed, one aborted.
#[test]
fn one_block_is_in_two_swaps_at_once() {
    let mut sequences = sequences(2, &[4, 4, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    let (to_1, to_2) = (sequences.begin_swap(&[a], 1).unwrap(), sequences.begin_swap(&[b], 2).unwrap());
    assert_eq!(plan_of(&mut sequences).len(), 4);
    sequences.complete_swap(to_1).unwrap();
    assert_eq!((ref_count(&sequences, 0, 1), sums(&sequences, 0)), (1, (2, 0, 2, 0)));
    sequences.abort_swap(to_2).unwrap();
    assert_eq!((sums(&sequences, 2), table(&sequences, b)), ((4, 0, 0, 0), vec![1, 2]));
    // Alone now: it writes in place.
    assert_eq!(sequences.append(b, &[4], 0).unwrap(), []);
    assert_eq!(sequences.info(a).unwrap().tier, 1);
    leaks_nothing(&mut sequences, &[a, b]);
}

/// An aborted swap's copies are planned no longer; other copies are.
#[test]
fn an_abort_leaves_the_other_copies_of_the_plan() {
    let mut sequences = sequences(2, &[6, 6]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    sequences.append(a, &[4], 0).unwrap();
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    assert_eq!(sequences.tiers().pending_copies().count(), 4);
    sequences.abort_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (6, 0, 0, 0));
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    leaks_nothing(&mut sequences, &[a, b]);
}

/// Parallel sampling forks before the prompt is computed: all compute, and say so, what they share.
#[test]
fn forks_of_an_uncomputed_prompt_all_commit_it() {
    for dedupe in [false, true] {
        let mut sequences = sequences(2, &[6]);
        let a = admit(&mut sequences, &[1, 2, 3], 0);
        let b = sequences.fork(a).unwrap();
        sequences.commit(a, 3, dedupe).unwrap();
        sequences.commit(b, 3, dedupe).unwrap();
        assert_eq!(sequences.info(b).unwrap().published_blocks, 1);
        assert_eq!((table(&sequences, a), table(&sequences, b)), (vec![1, 2], vec![1, 2]));
        leaks_nothing(&mut sequences, &[a, b]);
    }
}

/// What a fork computes after the copies of a swap were executed is not in the copy: it must not be cached there.
#[test]
fn a_swap_registers_only_what_was_computed_when_it_was_copied() {
    let mut sequences = sequences(2, &[6, 6]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 2);
    commit_all(&mut sequences, b); // written after the plan was executed
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (4, 0, 2, 0));
    let hit = admit(&mut sequences, &[1, 2, 9], 1);
    assert_eq!(sequences.info(hit).unwrap().computed_tokens, 0, "a hit on a block that nobody computed");
    // `a` computes it for itself.
    commit_all(&mut sequences, a);
    assert_eq!(sequences.info(a).unwrap().published_blocks, 1);
    leaks_nothing(&mut sequences, &[a, b, hit]);
}

fn can_ever_fit<T: std::fmt::Debug>(result: Result<T, SequenceError>) -> bool {
    match result {
        Err(SequenceError::OutOfBlocks(refusal)) => refusal.can_ever_fit,
        other => panic!("{other:?}"),
    }
}

/// A copy is needed only while somebody shares the tail: waiting is of use.
#[test]
fn a_shared_tail_can_fit_once_the_other_is_gone() {
    let mut sequences = sequences(4, &[1]);
    let a = admit(&mut sequences, &[1, 2], 0);
    let b = sequences.fork(a).unwrap();
    assert!(can_ever_fit(sequences.append(a, &[3], 0)));
    sequences.free(b, None).unwrap();
    sequences.append(a, &[3], 0).unwrap();
}

/// Trimmed blocks take no room: a long sequence with a small window is not too large for its pool.
#[test]
fn trimmed_blocks_do_not_count_against_the_pool() {
    let mut sequences = sequences(1, &[4]);
    let a = admit(&mut sequences, &[1], 0);
    for token in 0..9 {
        sequences.append(a, &[token], 0).unwrap();
        commit_all(&mut sequences, a);
        sequences.trim_window(a, 2).unwrap();
    }
    let b = admit(&mut sequences, &[9, 9], 0);
    assert!(can_ever_fit(sequences.append(a, &[3], 0)));
    sequences.free(b, None).unwrap();
    sequences.append(a, &[3], 0).unwrap();
}

/// Cached destinations take room, too: "later" would be waited for without end.
#[test]
fn a_swap_that_never_fits_is_told_apart_from_later() {
    let mut sequences = sequences(1, &[8, 3]);
    let host = admit(&mut sequences, &[1], 1);
    commit_all(&mut sequences, host);
    let a = admit(&mut sequences, &[1, 2, 3, 4], 0);
    commit_all(&mut sequences, a);
    assert_eq!(sequences.fit_swap(&[a], 1, 0), Ok(Fit::Never));
    assert!(!can_ever_fit(sequences.begin_swap(&[a], 1)));
    leaks_nothing(&mut sequences, &[a, host]);
}

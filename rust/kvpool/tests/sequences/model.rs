//! `Sequences` over small tiers against a model of tables and bytes: random forks, appends, commits, truncations, windows,
//! frees, fenced or not, swaps of groups, plans, epochs and resets, valid and not.
//!
//! The bytes: every tier has an array of cells, one per token slot, which is never cleared. A step takes the plan, executes it,
//! writes the cells of uncomputed tokens, and commits some of them. A cell's value depends on every token before it and on
//! the weights of its sequence, as KV does: each epoch and each reset stands for other ones. Whatever a table or the prefix cache
//! of any tier claims to be written must be there.
//!
//! After every operation: tables, counts and outcomes equal the model's, written tokens can be read back (through copies that
//! are planned), cached blocks hold what their hash says, all invariants hold, and a failed operation has changed nothing.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 200,000).

use super::*;

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
    /// If drained, after everybody has given up his blocks; else while some hold theirs.
    Reset {
        drained: bool,
    },
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
        2 => any::<bool>().prop_map(|drained| Operation::Reset { drained }),
    ]
}

// --- The model ------------------------------------------------------------------------------------------------------

/// What the model knows of a sequence.
#[derive(Clone, Debug)]
struct Known {
    tokens: Vec<u32>,
    epoch: u64,
    /// What its KV is computed with.
    weights: u64,
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
    /// Counts epochs and resets.
    weights: u64,
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
            weights: 0,
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

    /// Holders, and fences of steps that may still touch the block; copies that are planned forbid nothing. A copy of a swap
    /// goes to another tier, and pins nothing.
    fn users(&self, place: Place, planned: &[Transfer]) -> usize {
        let own = planned.iter().filter(|copy| copy.src.tier == copy.dst.tier);
        let pinned = own.flat_map(|copy| [copy.src, copy.dst]).any(|end| end == place);
        let fenced = self.pool(place.tier).fence_references(place.block) as usize - usize::from(pinned);
        self.holders(place) + fenced
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
                self.weights += 1;
                ("bump_epoch", true)
            }
            Operation::Reset { drained: true } => {
                while !self.swaps.is_empty() {
                    self.abort_swap(0);
                }
                self.take_plan();
                let ids: Vec<_> = self.known.keys().copied().collect();
                assert!(ids.into_iter().all(|id| self.free(id, None)));
                (if self.reset() { "drain and reset" } else { "drain and wait for a step" }, true)
            }
            Operation::Reset { drained: false } => ("reset", self.reset()),
        }
    }

    /// It succeeds exactly if nobody holds a block of any tier, and forgets them all.
    fn reset(&mut self) -> bool {
        let before = self.observe();
        let stats: Vec<_> = (0..self.num_tiers()).map(|tier| self.pool(tier).stats()).collect();
        let held = stats.iter().position(|stats| stats.active + stats.fenced > 0);
        let result = self.sequences.reset();
        if let Some(tier) = held {
            let (active, fenced) = (stats[tier].active, stats[tier].fenced);
            let expected = match tier {
                0 => TierError::Pool(PoolError::InUse { active, fenced }),
                _ => TierError::InUse { tier, active, fenced },
            };
            assert_eq!(result, Err(SequenceError::Tier(expected)));
            assert_eq!(before, self.observe(), "a refused reset changed something");
            return false;
        }
        assert_eq!(result, Ok(stats.iter().map(|stats| stats.registered).sum()));
        assert!((0..self.num_tiers()).all(|tier| self.pool(tier).stats().registered == 0));
        // Nobody holds a block: what is computed from now on is computed with other weights.
        self.weights += 1;
        self.known.values_mut().for_each(|known| known.weights = self.weights);
        self.contents.clear();
        true
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
            let fit = total - cached <= available;
            // A refusal reports the longest hit with a block for a first token behind it, or else the longest.
            let behind = |blocks: usize| {
                let idle = pool.probe(prompt.chain(), blocks).unwrap().idle_blocks;
                (total - blocks, pool.num_available() - idle)
            };
            let place = (0..=cached).rev().map(behind).find(|&(_, available)| available > 0);
            let (needed, available) = place.unwrap_or((total - cached, available));
            fits = Some((fit, needed, available, total <= pool.num_usable()));
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
            weights: self.weights,
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
            let shared: Vec<_> = touched.clone().filter(|&at| self.users(place(at), &planned) > 1).collect();
            let mut replaced: Vec<_> = touched.filter(|&at| shared.contains(&at) || registered(at)).collect();
            let missing = known.table.len()..end.max(known.table.len());
            // Without blocks for all copies, cached content that nobody else holds is overwritten.
            if replaced.len() + missing.len() > pool.num_available() {
                replaced = shared;
            }
            // Trimmed blocks are none.
            let alone = known.table.len() - known.trimmed + missing.len();
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
        let result = if dedupe {
            self.sequences.commit_deduped(id, count)
        } else {
            self.sequences.commit(id, count).map(|()| Vec::new())
        };
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
        let live = |copy: &Transfer| {
            let pool = self.pool(copy.dst.tier);
            pool.num_holders(copy.dst.block) > 0 || pool.is_computed(copy.dst.block)
        };
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
            let cells = kv(known.weights, &known.tokens);
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
            let got = (info.tokens, info.computed_tokens, info.registered_blocks, info.trimmed_blocks);
            let expected = (known.tokens.len(), known.computed, known.published, known.trimmed);
            assert_eq!(got, expected, "{id} after {operation:?}");
            assert_eq!((info.tier, info.swap, info.blocks), (known.tier, known.swap, known.table.len()));
            let chain = self.sequences.cursor(id).unwrap().chain();
            let cells = kv(known.weights, &known.tokens);
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
            let cells = kv(known.weights, &known.tokens);
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
        let drained = ["drain and reset", "drain and wait for a step"];
        let always = ["bump_epoch", "complete_step", "step", "take_plan"];
        for (name, &(succeeded, refused)) in outcomes.borrow().iter() {
            assert!(succeeded > 100 || *name == "reset", "{name} hardly ever succeeds");
            let always = always.contains(name) || drained.contains(name);
            assert!(refused > 100 || always, "{name} is hardly ever refused");
        }
    }
}

//! Makes histories (sequences of calls): every short history of a small pool, and long random histories
//! of an engine.

use super::*;

/// A call on a small pool. Tests make every short sequence of such calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// Allocates and registers blocks. `true` means those of the whole prompt, `false` only the first
    /// block.
    Start(bool),
    /// Marks the blocks of the newest table as computed.
    Computed,
    /// Releases the oldest table.
    Release,
    /// Releases the newest table with a fence for the next step.
    Fence,
    CompleteStep,
    Hit,
    Allocate,
    EvictFirst,
    BumpEpoch,
}

const ACTS: [Act; 10] = [
    Act::Start(true),
    Act::Start(false),
    Act::Computed,
    Act::Release,
    Act::Fence,
    Act::CompleteStep,
    Act::Hit,
    Act::Allocate,
    Act::EvictFirst,
    Act::BumpEpoch,
];

/// A pool of four usable blocks, and the block tables that hold some of them.
pub(super) struct World {
    pub(super) pool: BlockPool,
    pub(super) tables: Vec<Vec<BlockId>>,
    pub(super) step: u64,
}

impl World {
    /// Makes a pool without tables. With `prelude`, it has two computed copies of one prompt, of which
    /// one is held and the other is cached-free.
    pub(super) fn new(duplicates: DuplicatePolicy, prelude: bool) -> Self {
        let config = PoolConfig { num_blocks: 5, block_size: B, duplicates, ..Default::default() };
        let pool = BlockPool::new(config).unwrap().watched(&events(1000)).unwrap();
        let mut world = Self { pool, tables: Vec::new(), step: 0 };
        if prelude {
            for act in [Act::Start(true), Act::Start(true), Act::Computed] {
                world.act(act);
            }
            world.tables.rotate_left(1);
            world.act(Act::Computed);
        }
        world
    }

    pub(super) fn prompt(&self) -> &'static HashChain {
        static CHAINS: OnceLock<Vec<HashChain>> = OnceLock::new();
        let make = || (0..8).map(|epoch| chain_in(epoch, &[1, 2, 3, 4])).collect();
        &CHAINS.get_or_init(make)[self.pool.epoch() as usize]
    }

    /// Makes a call. The pool may refuse it, because refused calls are also part of a history.
    pub(super) fn act(&mut self, act: Act) {
        let chain = self.prompt();
        match act {
            Act::Start(whole) => {
                if let Ok(blocks) = self.pool.allocate(if whole { 2 } else { 1 }) {
                    self.pool.register(&blocks, chain, 0).unwrap();
                    self.tables.push(blocks);
                }
            }
            Act::Computed => {
                if let Some(table) = self.tables.last() {
                    let _ = self.pool.mark_computed(table); // perhaps not registered
                }
            }
            Act::Release if !self.tables.is_empty() => {
                let table = self.tables.remove(0);
                self.pool.release_table(&table).unwrap();
            }
            Act::Fence => {
                if let Some(table) = self.tables.pop() {
                    self.pool.release_after(&table, self.step).unwrap();
                }
            }
            Act::CompleteStep => {
                self.pool.complete_step(self.step).unwrap();
                self.step += 1;
            }
            Act::Hit => {
                let blocks = self.pool.match_and_acquire(chain, 2).unwrap();
                self.tables.extend(Some(blocks).filter(|blocks| !blocks.is_empty()));
            }
            Act::Allocate => self.tables.extend(self.pool.allocate(1).ok()),
            Act::EvictFirst => drop(self.pool.drop_cached(&ids(&[1])).unwrap()),
            Act::BumpEpoch => drop(self.pool.bump_epoch().unwrap()),
            Act::Release => {}
        }
    }

    /// Returns the number of computed blocks that have each hash.
    pub(super) fn copies(&self) -> BTreeMap<BlockHash, usize> {
        let mut copies = BTreeMap::new();
        for hash in
            all_blocks(&self.pool).filter(|&b| self.pool.is_computed(b)).filter_map(|b| self.pool.hash_of(b))
        {
            *copies.entry(hash).or_insert(0) += 1;
        }
        copies
    }
}

/// Calls `check` for every history of one to `depth` calls. Its arguments are the pool before the last
/// call of the history, and this call.
pub(super) fn every_history(depth: u32, check: impl Fn(&mut World, Act, &dyn std::fmt::Debug)) {
    for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
        for prelude in [false, true] {
            for length in 1..=depth {
                for number in 0..ACTS.len().pow(length) {
                    let acts: Vec<_> =
                        (0..length).map(|at| ACTS[number / ACTS.len().pow(at) % ACTS.len()]).collect();
                    let mut world = World::new(duplicates, prelude);
                    acts[..acts.len() - 1].iter().for_each(|&act| world.act(act));
                    check(&mut world, acts[acts.len() - 1], &(duplicates, prelude, &acts));
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Admit(i64, Vec<u32>),
    Append(i64, u32),
    Compute(i64, usize),
    Preempt(i64, bool),
    Resume(i64),
    Release(i64, bool),
    CompleteStep,
    BumpEpoch,
}

pub(super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let id = || 0i64..4;
    let call = prop_oneof![
        4 => (id(), prop::collection::vec(0u32..2, 1..9)).prop_map(|(id, tokens)| Call::Admit(id, tokens)),
        4 => (id(), 0u32..2).prop_map(|(id, token)| Call::Append(id, token)),
        8 => (id(), 0usize..6).prop_map(|(id, more)| Call::Compute(id, more)),
        2 => (id(), any::<bool>()).prop_map(|(id, fence)| Call::Preempt(id, fence)),
        3 => id().prop_map(Call::Resume),
        2 => (id(), any::<bool>()).prop_map(|(id, fence)| Call::Release(id, fence)),
        2 => Just(Call::CompleteStep),
        1 => Just(Call::BumpEpoch),
    ];
    prop::collection::vec(call, 1..80)
}

/// Makes random calls of an engine. Calls that are impossible in the present state are skipped. Calls
/// `after` with the engine after each call.
pub(super) fn play(engine: &mut Engine, calls: &[Call], mut after: impl FnMut(&mut Engine)) {
    let mut step = 0;
    for call in calls {
        match call {
            Call::Admit(id, tokens) if !engine.requests.contains_key(id) => {
                let _ = engine.admit(*id, tokens); // perhaps refused
            }
            Call::Append(id, token) if engine.is_running(*id) => drop(engine.append(*id, *token)),
            Call::Compute(id, more) if engine.is_running(*id) => {
                let info = engine.manager.request(*id).unwrap();
                engine.compute(*id, info.tokens.min(info.computed_tokens + more));
            }
            Call::Preempt(id, fence) if engine.is_running(*id) => {
                engine.manager.preempt(*id, fence.then_some(step)).unwrap();
            }
            Call::Resume(id) if engine.requests.contains_key(id) && !engine.is_running(*id) => {
                drop(engine.resume(*id));
            }
            Call::Release(id, fence) if engine.requests.contains_key(id) => {
                engine.release(*id, fence.then_some(step));
            }
            Call::CompleteStep => {
                engine.manager.complete_step(step).unwrap();
                step += 1;
            }
            Call::BumpEpoch => drop(engine.manager.bump_epoch().unwrap()),
            _ => {}
        }
        engine.check();
        after(engine);
    }
}

//! One configuration under load: a manager, the books beside it, the KV under it, and one turn after the other.
//!
//! Owns: which turn comes next, and what must hold between turns. The demand follows a wave between half of the pool and more
//! than all of it, so the cache is used in its troughs, and refusals, preemptions and evictions of what is needed happen at its
//! crests. The files beside this one make the turns: [`super::requests`], [`super::swaps`], [`super::steps`],
//! [`super::weights`], [`super::hints`], [`super::refused`].

use std::collections::BTreeMap;

use kvpool::{BlockId, BlockPool, CacheManager, HashCursor, RequestId, RequestState};
use kvpool_observe::ManagerWatch;

use super::books::Books;
use super::content::{Chance, Library, mix, next_tag, root_tag};
use super::hints::Mirror;
use super::meter::{Meter, Operation};
use super::presets::{PRESETS, Preset};
use super::store::Store;
use super::swaps::UnderWay;
use super::{Sabotage, Settings, Wrong, ensure};

/// What a request was when it ended, or a swap when it was taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Abort {
    Prefilling,
    Decoding,
    Preempted,
    Swapped,
    Moving,
    OutPlanned,
    OutCopied,
    InPlanned,
    InCopied,
    PlanDropped,
    PlanStale,
}

impl Abort {
    /// What is said of each in the report.
    pub(crate) const NAMES: [&'static str; 11] = [
        "released while its prompt is computed",
        "released while it decodes",
        "released while preempted",
        "released while swapped out",
        "released while a swap moves it",
        "swap out aborted, copies planned",
        "swap out aborted, copies handed out",
        "swap in aborted, copies planned",
        "swap in aborted, copies handed out",
        "step plan dropped",
        "step plan stale",
    ];
}

/// How full the device's pool was, summed over samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filling {
    pub(crate) samples: u64,
    pub(crate) held: f64,
    pub(crate) cached: f64,
    pub(crate) free: f64,
}

/// A configuration under load.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) preset: Preset,
    pub(crate) manager: CacheManager,
    pub(super) books: Books,
    pub(super) store: Store,
    pub(super) library: Library,
    pub(super) chance: Chance,
    pub(super) swaps: Vec<UnderWay>,
    /// The latest step under way, and the latest that has completed.
    pub(super) step: u64,
    pub(super) completed: u64,
    /// Counts the changes of weights: epochs and resets.
    pub(super) weights: u64,
    pub(crate) resets: u64,
    /// References that fences must hold, by step.
    pub(super) fences: BTreeMap<u64, usize>,
    pub(super) time: f64,
    pub(super) mirror: Mirror,
    /// Prompts hashed in an earlier epoch, and by another hasher: to be refused.
    pub(super) stale: Option<HashCursor>,
    pub(super) foreign: HashCursor,
    /// The prompt drawn last.
    pub(super) tokens: Vec<u32>,
    pub(crate) turns: u64,
    pub(crate) aborts: [u64; Abort::NAMES.len()],
    pub(crate) swap_aborts: u64,
    pub(crate) invalid: u64,
    pub(crate) filling: Filling,
    /// A function of everything that happened.
    pub(crate) digest: u64,
    pub(crate) first_blocks: usize,
    pub(crate) blocks: usize,
    /// Bytes that resizes took.
    pub(crate) resized_bytes: i64,
    last_blocks: usize,
    next_id: i64,
    /// Turns of one wave of demand, and where in it the first turn is.
    wave: u64,
    phase: u64,
    most_live: usize,
    pub(super) settings: Settings,
    /// What a planted leak keeps.
    leaked: Vec<Vec<u64>>,
}

/// What a turn does.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Admit,
    Decode,
    Prefill,
    Speculate,
    Fork,
    Truncate,
    Trim,
    Release,
    Preempt,
    Resume,
    SwapOut,
    SwapIn,
    EndSwap,
    TakePlan,
    Step,
    CompleteStep,
    Hint,
    Time,
    Events,
    Look,
    Invalid,
    Rare,
}

/// Turns with their weights below and above the demand of the moment.
const WEIGHTS: &[(Turn, usize, usize)] = &[
    (Turn::Admit, 26, 4),
    (Turn::Decode, 18, 12),
    (Turn::Prefill, 24, 22),
    (Turn::Speculate, 5, 4),
    (Turn::Fork, 4, 1),
    (Turn::Truncate, 2, 2),
    (Turn::Trim, 1, 2),
    (Turn::Release, 5, 16),
    (Turn::Preempt, 1, 5),
    (Turn::Resume, 8, 2),
    (Turn::SwapOut, 1, 5),
    (Turn::SwapIn, 5, 2),
    (Turn::EndSwap, 5, 7),
    (Turn::TakePlan, 2, 2),
    (Turn::Step, 4, 4),
    (Turn::CompleteStep, 5, 5),
    (Turn::Hint, 4, 4),
    (Turn::Time, 1, 1),
    (Turn::Events, 1, 1),
    (Turn::Look, 3, 3),
    (Turn::Invalid, 4, 4),
    (Turn::Rare, 1, 1),
];

impl Driver {
    pub(crate) fn new(preset: Preset, nth: u64, settings: &Settings) -> Result<Self, Wrong> {
        let config = preset.config(settings);
        let (blocks, host, block_size) = (config.num_blocks, config.host_blocks, config.block_size);
        let manager = CacheManager::new(config)?.watched(&preset.watch())?;
        let mut chance = Chance::new(settings.seed, nth);
        let last_blocks = blocks + blocks / 2;
        let wave = (2 * blocks as u64).clamp(4096, 1 << 16);
        let library = Library::new(&mut chance, blocks * block_size);
        Ok(Self {
            foreign: super::refused::foreign_cursor(block_size)?,
            mirror: Mirror::new(preset.events > 0),
            preset,
            manager,
            books: Books::default(),
            store: Store::new(block_size, &[blocks, host]),
            library,
            chance,
            swaps: Vec::new(),
            step: 1,
            completed: 0,
            weights: 0,
            resets: 0,
            fences: BTreeMap::new(),
            time: 0.0,
            stale: None,
            tokens: Vec::new(),
            turns: 0,
            aborts: [0; Abort::NAMES.len()],
            swap_aborts: 0,
            invalid: 0,
            filling: Filling::default(),
            digest: settings.seed,
            first_blocks: blocks,
            blocks,
            resized_bytes: 0,
            last_blocks,
            next_id: 0,
            phase: nth * wave / PRESETS.len() as u64,
            wave,
            most_live: (blocks / 4).clamp(16, 1024),
            settings: settings.clone(),
            leaked: Vec::new(),
        })
    }

    pub(super) fn pool(&self) -> &BlockPool {
        self.manager.pool()
    }

    pub(super) fn block_size(&self) -> usize {
        self.pool().block_size()
    }

    /// Whether a planted defect is to show now.
    pub(super) fn sabotaged(&self, what: Sabotage) -> bool {
        self.settings.sabotage == Some(what) && self.turns > 400
    }

    /// Takes a number into the digest.
    pub(super) const fn note(&mut self, number: u64) {
        self.digest = mix(self.digest ^ number);
    }

    /// The share of the pool that is to be in use now, in percent: a triangle from 55 to 125.
    fn demand(&self) -> usize {
        // Each configuration is at another point of the wave, so that they are not at their crests together.
        let at = ((self.turns + self.phase) % self.wave) as usize;
        let half = self.wave as usize / 2;
        55 + 70 * at.min(self.wave as usize - at) / half
    }

    /// Makes one turn.
    pub(crate) fn turn(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        self.turns += 1;
        let stats = self.pool().stats();
        let low = (stats.active + stats.fenced) * 100 < self.demand() * stats.usable;
        let weight = |&(_, below, above): &(Turn, usize, usize)| if low { below } else { above };
        let mut left = self.chance.below(WEIGHTS.iter().map(weight).sum());
        let drawn = WEIGHTS.iter().find(|&turn| {
            let found = left < weight(turn);
            left = left.saturating_sub(weight(turn));
            found
        });
        let mut turn = drawn.map_or(Turn::Look, |&(turn, ..)| turn);
        if self.books.len() >= self.most_live && matches!(turn, Turn::Admit | Turn::Fork) {
            turn = Turn::Release;
        }
        self.note(turn as u64);
        if self.sabotaged(Sabotage::Leak) {
            self.leaked.push(vec![self.turns; 8]);
        }
        match turn {
            Turn::Admit => self.admit(meter)?,
            Turn::Decode => self.decode(meter)?,
            Turn::Prefill => self.prefill(meter)?,
            Turn::Speculate => self.speculate(meter)?,
            Turn::Fork => self.fork(meter)?,
            Turn::Truncate => self.truncate(meter)?,
            Turn::Trim => self.trim(meter)?,
            Turn::Release => self.release(meter)?,
            Turn::Preempt => self.preempt(meter)?,
            Turn::Resume => self.resume(meter)?,
            Turn::SwapOut => self.swap_out(meter)?,
            Turn::SwapIn => self.swap_in(meter)?,
            Turn::EndSwap => self.end_swap(meter)?,
            Turn::TakePlan => self.take_plan(meter)?,
            Turn::Step => self.plan_step(meter)?,
            Turn::CompleteStep => self.complete_step(meter)?,
            Turn::Hint => self.hint(meter)?,
            Turn::Time => self.advance_time(meter)?,
            Turn::Events => self.events(meter)?,
            Turn::Look => self.look(meter)?,
            Turn::Invalid => self.invalid(meter)?,
            Turn::Rare => self.rare(meter)?,
        }
        if self.turns.is_multiple_of(self.settings.epoch_every) {
            self.bump_epoch(meter)?;
        }
        if self.turns.is_multiple_of(self.settings.reset_every) {
            self.reset_all(meter)?;
        }
        if self.blocks < self.last_blocks && self.turns.is_multiple_of(self.settings.resize_every) {
            self.resize(meter)?;
        }
        Ok(())
    }

    fn resize(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let blocks = (self.blocks + (self.last_blocks - self.first_blocks).div_ceil(8)).min(self.last_blocks);
        let before = self.heap();
        meter.time(Operation::Resize, || self.manager.resize(blocks))?;
        self.store.grow(blocks);
        self.resized_bytes += self.heap() - before;
        self.blocks = blocks;
        Ok(())
    }

    /// Bytes in use now, 0 where nobody counts them.
    fn heap(&self) -> i64 {
        self.settings.heap.map_or(0, |heap| i64::try_from(heap()).unwrap_or(i64::MAX))
    }

    /// What happens once in a while.
    fn rare(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        if self.chance.percent(50) {
            let blocks: Vec<_> =
                (0..8).map(|_| BlockId::new(self.chance.between(1, self.blocks - 1) as u32)).collect();
            let evicted = meter.time(Operation::Evict, || self.manager.drop_cached(&blocks))?;
            self.note(evicted as u64);
            let left = blocks.iter().find(|&&block| self.pool().is_registered(block));
            return ensure(left.is_none(), || format!("{left:?} was evicted and is still registered"));
        }
        self.try_reset(meter).map(drop)
    }

    /// A name for the next request: every fourth is a string.
    pub(super) fn fresh_id(&mut self) -> RequestId {
        self.next_id += 1;
        if self.next_id % 4 == 0 {
            RequestId::from(format!("request-{}", self.next_id))
        } else {
            RequestId::from(self.next_id)
        }
    }

    /// The tags of the drawn prompt.
    pub(super) fn tags(&self, identity: u64) -> Vec<u64> {
        let tags = self.tokens.iter().scan(root_tag(identity), |tag, &token| {
            *tag = next_tag(*tag, token);
            Some(*tag)
        });
        tags.collect()
    }

    /// A random request in a state.
    pub(super) fn pick(&mut self, state: RequestState) -> Option<usize> {
        let list = self.books.in_state(state);
        let nth = self.chance.below(list.len());
        list.get(nth).copied()
    }
}

//! Tests a [`BlockPool`] with random calls: defines its settings, its model and the checks of its
//! state.

use kvpool::hash::{HashAlgorithm, Verify};
use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{BlockId, BlockPool, DuplicatePolicy, EvictionPolicy, PoolConfig, PoolStats};
use kvpool_journal::calls::Slot;
use kvpool_journal::{
    Answer, Ids, JournalConfig, JournalHeader, MatchRecord, PoolCall, PoolSubject, Subject, Value, Words,
};
use kvpool_observe::{Scrubber, WatchConfig};

use super::World;
use super::prompts::{Path, Prompts};
use crate::Failure;
use crate::bytes::Bytes;
use crate::draw::{Weights, pool as draw};
use crate::failure::same;
use crate::model::pool::{Expected, Model};
use crate::model::retention::TENANT;
use crate::oracle::{books, bytes::Written, closedness, digest, events::Follower, reads, scrubs};

/// A block table: blocks that a caller holds, usually the first blocks of a prompt.
#[derive(Clone, Debug)]
pub struct Table {
    /// A number that identifies the table.
    pub id: u64,
    /// The blocks of the table, in the order of the prompt.
    pub blocks: Vec<usize>,
    /// The prompt, or `None` if the blocks do not belong to a prompt.
    pub prompt: Option<Path>,
    /// Number of blocks at the start of the table that are in the index.
    pub registered: usize,
}

/// The settings of a pool, and the settings that determine which calls are drawn for it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Number of blocks of the pool, including the null block.
    pub num_blocks: usize,
    /// Number of tokens of each block.
    pub block_size: usize,
    /// The eviction policy.
    pub policy: EvictionPolicy,
    /// Whether the pool accepts retention hints and tenants.
    pub retention: bool,
    /// How the pool treats a released block if another block has the same content.
    pub duplicates: DuplicatePolicy,
    /// How the pool verifies that a hit has the requested content.
    pub verify: Verify,
    /// The hash algorithm, if the contents of prompts are hashed. With `None`, their keys are
    /// artificial, which is faster.
    pub hashed: Option<HashAlgorithm>,
    /// Number of calls after which the expensive oracles run (events, digest, scrubber).
    pub looks: usize,
    /// Whether contents are drawn whose keys collide. A pool that does not verify hits treats such
    /// contents as equal.
    pub collisions: bool,
    /// Whether all holders hold whole prefixes. In that case every cached block must keep a cached
    /// parent, and no argument is invalid.
    pub whole: bool,
}

impl Setting {
    const fn simplest(num_blocks: usize) -> Self {
        Self {
            num_blocks,
            block_size: 1,
            policy: kvpool_policies::LRU,
            retention: false,
            duplicates: DuplicatePolicy::Keep,
            verify: Verify::None,
            hashed: None,
            looks: 1,
            collisions: false,
            whole: false,
        }
    }

    /// Returns whether the model knows the order of eviction. Otherwise the model copies the order from
    /// the pool.
    #[must_use]
    pub fn is_lru(&self) -> bool {
        self.policy == kvpool_policies::LRU && !self.retention
    }

    /// Returns a third of the pool's blocks: the limit for pinned blocks and for the blocks of tenant
    /// 1. The guaranteed minimum of tenant 1 is half of it.
    #[must_use]
    pub const fn third(&self) -> usize {
        (self.num_blocks - 1) / 3
    }

    fn config(&self) -> PoolConfig {
        let Self { num_blocks, block_size, policy, duplicates, verify, .. } = *self;
        let third = self.third();
        let limits = TenantLimits { tenant: TenantId(TENANT), floor: third / 2, ceiling: Some(third) };
        let retention = RetentionConfig { pin_budget: third, tenants: vec![limits] };
        let retention = self.retention.then_some(retention);
        let eviction = policy;
        PoolConfig {
            num_blocks,
            block_size,
            verify,
            duplicates,
            eviction,
            retention,
            ..PoolConfig::default()
        }
    }
}

/// The part of a pool's state that a refused call must not change.
type Observed = (Vec<BlockId>, Vec<BlockId>, PoolStats);

/// The pool, its model, and the blocks that its callers hold.
#[derive(Debug)]
pub struct PoolWorld {
    /// The settings.
    pub setting: Setting,
    /// The pool.
    pub subject: PoolSubject,
    /// The model.
    pub model: Model,
    /// The prompts that were randomly generated in this run.
    pub prompts: Prompts,
    /// The block tables that callers hold.
    pub tables: Vec<Table>,
    /// The matches that lookups have returned, the latest first.
    pub found: Vec<MatchRecord>,
    /// The prompt of the latest lookup, and the table of the blocks that it found. The next allocation
    /// is for the remaining blocks of that prompt.
    pub pending: Option<(Path, Option<u64>)>,
    /// The number of the latest completed step.
    pub step: u64,
    /// The latest time.
    pub now: f64,
    pub(crate) written: Written,
    next_table: u64,
    /// Number of hashed prompts whose chains were already passed to the pool.
    taught: usize,
    calls: usize,
    follower: Follower,
    scrubber: Scrubber,
}

/// Capacity of the event log. It is larger than the number of events of one call.
const EVENTS: usize = 1000;

impl PoolWorld {
    /// Returns the pool, which the caller can read but not change.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        self.subject.pool()
    }

    /// Adds a table of blocks that a caller holds now. Returns its id.
    pub(crate) fn hold(
        &mut self,
        blocks: Vec<usize>,
        prompt: Option<Path>,
        registered: usize,
    ) -> Option<u64> {
        if blocks.is_empty() {
            return None;
        }
        let id = self.next_table;
        self.next_table += 1;
        self.tables.push(Table { id, blocks, prompt, registered });
        Some(id)
    }

    /// Removes blocks from the callers' tables: a whole table with these blocks if there is one,
    /// otherwise each block from a table that contains it.
    pub(crate) fn let_go(&mut self, blocks: &[usize]) {
        if let Some(at) = self.tables.iter().position(|table| table.blocks == blocks) {
            self.tables.remove(at);
            return;
        }
        for block in blocks {
            let Some(table) = self.tables.iter_mut().rev().find(|table| table.blocks.contains(block)) else {
                continue;
            };
            let at = table.blocks.iter().rposition(|held| held == block).unwrap_or(0);
            table.blocks.remove(at);
            if at < table.blocks.len() {
                table.prompt = None;
            }
            table.registered = table.registered.min(table.blocks.len());
        }
        self.tables.retain(|table| !table.blocks.is_empty());
    }

    fn observe(&self) -> Observed {
        let pool = self.pool();
        (pool.free_order(), pool.eviction_order(), pool.stats())
    }

    /// Copies the order of eviction from the pool to the model if the model does not know it. Both
    /// orders must contain the same blocks.
    fn follow(&mut self) -> Result<(), Failure> {
        if self.setting.is_lru() {
            return Ok(());
        }
        let order = crate::model::reference::indices(&self.pool().eviction_order());
        self.model.follow(order)
    }

    fn teach(&mut self) {
        for chain in &self.prompts.chains()[self.taught..] {
            self.subject.teach(chain.clone());
        }
        self.taught = self.prompts.chains().len();
    }

    fn check(&mut self) -> Result<(), Failure> {
        let pool = self.subject.pool();
        pool.check_invariants()?;
        books::check(pool, &self.model, &self.prompts)?;
        self.written.check(pool, &self.prompts)?;
        self.calls += 1;
        if self.calls.is_multiple_of(self.setting.looks) {
            self.look()?;
        }
        self.follow()
    }

    /// Runs the expensive oracles, which check several calls at a time (events, digest, scrubber).
    fn look(&mut self) -> Result<(), Failure> {
        let batch = self.subject.unrecorded(kvpool_observe::PoolWatch::take_events);
        self.follower.follow(batch, self.subject.pool(), &self.prompts, |_| Some(1))?;
        if self.setting.whole {
            closedness::check(&self.follower)?;
        }
        let scrubber = &mut self.scrubber;
        self.subject.unrecorded(|pool| {
            digest::check(pool)?;
            scrubs::check(scrubber, pool)
        })
    }
}

impl World for PoolWorld {
    type Subject = PoolSubject;
    type Setting = Setting;
    type Draft = draw::Draft;
    type Memory = Prompts;

    fn setting(bytes: &mut Bytes<'_>) -> Setting {
        let policies = kvpool_policies::ALL;
        let num_blocks = 3 + bytes.below(11);
        // Half of all settings use plain LRU, because the model knows its order of eviction.
        let position = bytes.below(2 * policies.len()).saturating_sub(policies.len());
        let policy = policies.get(position).copied().unwrap_or(kvpool_policies::LRU);
        let retention = bytes.one_in(4) && policy != kvpool_policies::LAST_ACCESS;
        let verify = [Verify::None, Verify::None, Verify::Fingerprint, Verify::Tokens][bytes.below(4)];
        let (whole, twins, drop) = (bytes.one_in(3), bytes.one_in(2), bytes.one_in(3));
        let (block_size, looks) = (1 + bytes.below(3), [1, 1, 3, 8][bytes.below(4)]);
        let algorithms = [HashAlgorithm::Sha256, HashAlgorithm::Blake3, HashAlgorithm::Xxh3];
        let hashed =
            bytes.one_in(5).then(|| algorithms[bytes.below(if verify > Verify::None { 3 } else { 2 })]);
        let simplest = Setting { hashed, looks, ..Setting::simplest(num_blocks) };
        let setting = Setting { block_size, policy, retention, verify, whole, ..simplest };
        let duplicates =
            if drop && setting.is_lru() { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        let collisions = twins && verify > Verify::None && !whole && hashed.is_none();
        Setting { duplicates, collisions, ..setting }
    }

    fn is_of_python(setting: &Setting) -> bool {
        !setting.collisions && setting.policy != kvpool_policies::HAZARD
    }

    fn simpler(setting: &Setting) -> Vec<Setting> {
        let Setting { num_blocks, block_size, whole, hashed, .. } = *setting;
        let simplest = Setting { block_size, whole, hashed, ..Setting::simplest(num_blocks) };
        let tried = [
            simplest,
            Setting { looks: 1, ..setting.clone() },
            Setting { retention: false, ..setting.clone() },
            Setting { duplicates: DuplicatePolicy::Keep, ..setting.clone() },
        ];
        let fewer = (3..setting.num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        tried
            .into_iter()
            .chain(fewer)
            .filter(|other| format!("{other:?}") != format!("{setting:?}"))
            .collect()
    }

    fn memory(&self) -> &Prompts {
        &self.prompts
    }

    fn new(setting: &Setting, memory: Option<&Prompts>) -> Result<Self, Failure> {
        let subject = PoolSubject::verified_in_full(&Self::header(setting)?);
        let subject = subject.map_err(|error| Failure::new("setting", error.to_string()))?;
        let new_prompts = || Prompts::new(setting.block_size, setting.verify, setting.hashed);
        Ok(Self {
            model: Model::new(setting, subject.pool().keeps_time()),
            prompts: memory.map_or_else(new_prompts, |prompts| Ok(prompts.clone()))?,
            taught: 0,
            calls: 0,
            setting: setting.clone(),
            subject,
            tables: Vec::new(),
            found: Vec::new(),
            pending: None,
            step: 0,
            now: 0.0,
            written: Written::default(),
            next_table: 0,
            follower: Follower::default(),
            scrubber: Scrubber::default(),
        })
    }

    fn header(setting: &Setting) -> Result<JournalHeader, Failure> {
        let watch = WatchConfig { event_capacity: EVENTS, ..WatchConfig::default() };
        let journal = JournalConfig { digest_every: 1, ..JournalConfig::default() };
        Ok(JournalHeader::of_pool(&setting.config(), &watch, journal))
    }

    fn weights(&self) -> Weights {
        draw::weights(&self.setting)
    }

    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut draw::Draft) -> bool {
        draw::fill(slot, bytes, self, draft)
    }

    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool {
        if !self.setting.whole {
            draw::spoil(slot, bytes, self);
        }
        true
    }

    fn make(&mut self, call: &PoolCall) -> Result<Answer, Failure> {
        self.teach();
        self.follow()?;
        reads::check(self, call)?;
        let before = self.observe();
        let expected = self.model.expected(call, &self.prompts);
        let answer = self.subject.run(call).map_err(|error| Failure::new("replay", error.to_string()))?;
        let fine = match &expected {
            Expected::Refused => answer.refused,
            Expected::RefusedAs(text) => {
                matches!(&answer.value, Value::Text(found) if found.contains(text)) && answer.refused
            }
            Expected::Is(value) => answer.value == *value,
            Expected::Done => !answer.refused,
        };
        if !fine {
            let (name, words) = (call.call(), call.words());
            let what = format!("{words}: answered {:?}, expected {expected:?}", answer.value);
            return Err(Failure::new(name, what));
        }
        if answer.refused {
            same("state after a refusal", &self.observe(), &before)?;
        } else {
            crate::model::caller::after(self, call, &answer)?;
        }
        self.check()?;
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        self.pool().epoch()
    }
}

/// Converts the block ids in a recorded call to the numbers that the model uses.
pub(crate) fn unpack(ids: &Ids) -> Vec<usize> {
    crate::model::reference::indices(&ids.unpack())
}

/// Converts the numbers that the model uses for blocks to block ids, as journals record them.
pub(crate) fn pack(blocks: &[usize]) -> Ids {
    Ids::pack(&crate::model::reference::block_ids(blocks))
}

/// Converts a recorded answer to the changed positions of a table, with their new blocks.
pub(crate) fn changes(value: &Value) -> Vec<(usize, usize)> {
    let Value::List(changes) = value else { return Vec::new() };
    let number = |value: &Value| if let Value::Number(n) = value { *n as usize } else { 0 };
    let pair = |change: &Value| match change {
        Value::List(pair) => Some((number(pair.first()?), number(pair.get(1)?))),
        _ => None,
    };
    changes.iter().filter_map(pair).collect()
}

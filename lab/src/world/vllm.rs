//! Tests vLLM's [`Pool`] with random calls: defines its settings, its model and the checks of its
//! state.

use kvpool::EvictionPolicy;
use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool_journal::calls::Slot;
use kvpool_journal::{Answer, JournalConfig, JournalHeader, Subject, Value, VllmCall, VllmSubject, Words};
use kvpool_observe::Scrubber;
use kvpool_vllm::Pool;

use super::World;
use super::vllm_keys::{GROUPS, Keys, PROMPT_GROUPS, PROMPTS};
use crate::Failure;
use crate::bytes::Bytes;
use crate::draw::{Weights, vllm as draw};
use crate::failure::{holds, same};
use crate::model::vllm::{Expected, Model, after, watched};
use crate::oracle::{keys, queue};

/// The data of a pool that callers write directly, as vLLM and its tests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByHand {
    /// No data.
    Nothing,
    /// Callers write the hashes of blocks, and the index of keys.
    Hashes,
    /// Callers write reference counts and the free queue, in addition to hashes and the index.
    All,
}

/// The settings of a pool, and the settings that determine which calls are drawn for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Number of blocks of the pool, including the null block.
    pub num_blocks: usize,
    /// Whether blocks keep their hashes, as with prefix caching.
    pub caching: bool,
    /// The eviction policy.
    pub policy: EvictionPolicy,
    /// Whether the pool accepts retention hints and tenants.
    pub retention: bool,
    /// Which data of the pool the callers write directly.
    pub by_hand: ByHand,
    /// Number of bytes of the digests of prompts.
    pub digest_len: usize,
    /// Whether callers use the methods that also return which keys were removed and which were new.
    pub watched: bool,
    /// Number of blocks in the free queue that the pool does not count as free, because a caller
    /// withholds them.
    pub withheld: usize,
    /// Number of calls after which the expensive oracles run (those that check several calls at a
    /// time).
    pub looks: usize,
}

impl Setting {
    const fn simplest(num_blocks: usize) -> Self {
        Self {
            num_blocks,
            caching: true,
            policy: kvpool_policies::LRU,
            retention: false,
            by_hand: ByHand::Nothing,
            digest_len: 32,
            watched: true,
            withheld: 0,
            looks: 1,
        }
    }

    /// Returns whether the pool reuses free blocks in vLLM's own order.
    #[must_use]
    pub fn is_lru(&self) -> bool {
        self.policy == kvpool_policies::LRU && !self.retention
    }

    /// Returns whether the order of eviction depends on the contents of blocks.
    fn keeps_history(&self) -> bool {
        let wants_history = self.policy.build(2, None).is_ok_and(|policy| policy.wants_history());
        self.caching && (self.retention || wants_history)
    }

    /// Returns the number of blocks in the free queue that the pool does not count as free, because a
    /// caller withholds them.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.withheld.min(self.num_blocks - 1)
    }

    fn retention(&self) -> Option<RetentionConfig> {
        let usable = self.num_blocks - 1;
        let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
        let tenants = vec![limits(0, usable / 6, None), limits(1, 0, Some(usable / 4))];
        self.retention.then_some(RetentionConfig { pin_budget: usable / 4, tenants })
    }
}

/// A block table: blocks that a caller holds, which are the first blocks of a prompt.
#[derive(Clone, Debug)]
pub struct Table {
    /// A number that identifies the table.
    pub id: usize,
    /// The blocks of the table, in the order of the prompt.
    pub blocks: Vec<u32>,
    /// The position of the prompt in the list of prompts.
    pub prompt: usize,
    /// The KV-cache group to which the keys of the table's blocks belong.
    pub group: u32,
    /// Number of leading blocks that were passed to the call `cache_full`, including those that it
    /// skipped.
    pub cached: usize,
}

/// The pool, its model, and the blocks that its callers hold.
#[derive(Debug)]
pub struct VllmWorld {
    /// The settings.
    pub setting: Setting,
    /// The pool.
    pub subject: VllmSubject,
    /// The model.
    pub model: Model,
    /// The block keys that the drawn calls use.
    pub keys: Keys,
    /// The block tables that callers hold.
    pub tables: Vec<Table>,
    /// The latest time.
    pub now: f64,
    /// The table of the hit that was acquired last. The next allocation is for the remaining blocks of
    /// its prompt.
    pending: Option<usize>,
    next_table: usize,
    calls: usize,
    scrubber: Scrubber,
}

impl VllmWorld {
    /// Returns the pool, which the caller can read but not change.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.subject.pool()
    }

    fn hold(&mut self, blocks: Vec<u32>, prompt: Option<(usize, u32)>, cached: usize) -> usize {
        let id = self.next_table;
        self.next_table += 1;
        let (prompt, group) = prompt.unwrap_or((id % PROMPTS.len(), PROMPT_GROUPS[id / 2 % 2]));
        if !blocks.is_empty() {
            self.tables.push(Table { id, blocks, prompt, group, cached });
        }
        id
    }

    /// Records that a caller holds blocks that were free.
    pub(crate) fn allocated(&mut self, blocks: Vec<u32>) {
        let pending = self.pending.take();
        match self.tables.iter_mut().find(|table| Some(table.id) == pending) {
            Some(table) => table.blocks.extend(blocks),
            None => drop(self.hold(blocks, None, 0)),
        }
    }

    /// Returns the cached blocks that contain the start of a prompt.
    pub(crate) fn hit(&self, prompt: usize, group: u32) -> Vec<u32> {
        let key = |len: usize| self.keys.full(&PROMPTS[prompt][..len], group);
        (1..=PROMPTS[prompt].len()).map_while(|len| self.model.find(&key(len)?)).collect()
    }

    /// Records that a caller acquired blocks. If they are the cached blocks of a prompt, they count as
    /// a hit on it.
    pub(crate) fn touched(&mut self, blocks: Vec<u32>) {
        let prompts = (0..PROMPTS.len()).flat_map(|prompt| PROMPT_GROUPS.map(|group| (prompt, group)));
        let found = prompts
            .into_iter()
            .find(|&(prompt, group)| !blocks.is_empty() && self.hit(prompt, group).starts_with(&blocks));
        let cached = if found.is_some() { blocks.len() } else { 0 };
        let table = self.hold(blocks, found, cached);
        self.pending = found.map(|_| table);
    }

    /// Records that blocks of a table were cached, from a position on.
    pub(crate) fn cached(&mut self, first: usize, blocks: &[u32]) {
        let is_next = |table: &&mut Table| {
            table.cached == first && table.blocks.get(first..).is_some_and(|rest| rest.starts_with(blocks))
        };
        if let Some(table) = self.tables.iter_mut().find(is_next) {
            table.cached += blocks.len();
        }
    }

    /// Removes blocks from the callers' tables, because the callers have released them.
    pub(crate) fn let_go(&mut self, blocks: &[u32]) {
        let whole = |table: &Table| table.blocks.iter().rev().eq(blocks) || table.blocks == blocks;
        if let Some(at) = self.tables.iter().position(whole) {
            self.tables.remove(at);
            return;
        }
        for block in blocks {
            let holds = |table: &&mut Table| table.blocks.contains(block);
            let Some(table) = self.tables.iter_mut().rev().find(holds) else { continue };
            let at = table.blocks.iter().position(|held| held == block).unwrap_or(0);
            // If a released block lies before a sliding window, the table has the null block in its
            // place. Otherwise the table ends before the block.
            if at < table.cached && table.group != PROMPT_GROUPS[0] {
                table.blocks[at] = 0;
            } else {
                table.blocks.truncate(at);
                table.cached = table.cached.min(at);
            }
        }
        self.tables.retain(|table| table.blocks.iter().any(|&block| block != 0));
    }

    fn knows_order(&self) -> bool {
        self.setting.is_lru()
    }

    fn check(&mut self) -> Result<(), Failure> {
        let (pool, is_lru) = (self.subject.pool(), self.knows_order());
        let fits = self.model.is_consistent();
        let checked = if fits { pool.check_invariants() } else { pool.check_representation() };
        checked?;
        queue::check(pool, &mut self.model, is_lru)?;
        keys::check(pool, &self.model, &self.keys)?;
        if self.setting.by_hand != ByHand::All && self.setting.keeps_history() {
            queue::check_places(&self.model)?;
        }
        self.calls += 1;
        if self.calls.is_multiple_of(self.setting.looks) {
            self.look()?;
        }
        Ok(())
    }

    /// Runs the expensive oracles, which check several calls at a time.
    fn look(&mut self) -> Result<(), Failure> {
        let pool = self.subject.pool();
        keys::look(pool, &self.model, &self.keys)?;
        same("history", &pool.keeps_history(), &self.setting.keeps_history())?;
        same("retention", &pool.retention_stats().is_some(), &self.setting.retention)?;
        let chained = GROUPS.map(|group| pool.is_chained(group));
        same("chained groups", &chained, &GROUPS.map(|group| self.model.is_chained(group)))?;
        let (scrubber, queued) = (&mut self.scrubber, self.model.queue.len());
        self.subject.unrecorded(|pool| {
            pool.scrub(scrubber, 2).map_err(|error| Failure::new("scrub", error.to_string()))?;
            holds("free blocks beyond the queue", pool.set_num_free(queued + 1).is_err(), || {
                format!("{} of {queued} blocks", queued + 1)
            })
        })
    }

    fn run(&mut self, call: &VllmCall) -> Result<Answer, Failure> {
        if self.setting.watched
            && let Some(answer) = watched(self, call)
        {
            return answer;
        }
        self.subject.run(call).map_err(|error| Failure::new("replay", error.to_string()))
    }
}

fn is_as(expected: &Expected, answer: &Answer) -> bool {
    match expected {
        Expected::Is(value) => answer.value == *value && !answer.refused,
        Expected::Refused(error) => answer.refused && answer.value == Value::Text(error.to_string()),
        Expected::RefusedByCore => answer.refused,
        Expected::Hint { may_refuse, .. } if answer.refused => *may_refuse,
        Expected::Hint { blocks, hashed, .. } => match &answer.value {
            Value::List(report) => match report.as_slice() {
                [Value::Number(accepted), Value::Number(clipped), Value::Number(ignored)] => {
                    accepted + clipped + ignored == *blocks && accepted + clipped <= *hashed
                }
                _ => false,
            },
            _ => false,
        },
        Expected::Done => !answer.refused,
    }
}

impl World for VllmWorld {
    type Subject = VllmSubject;
    type Setting = Setting;
    type Draft = draw::Draft;
    type Memory = ();

    fn setting(bytes: &mut Bytes<'_>) -> Setting {
        let policies = kvpool_policies::ALL;
        let num_blocks = 1 + [13, 8, 5, bytes.below(8)][bytes.below(4)];
        // Half of all settings use plain LRU, because the model knows its order of eviction.
        let position = bytes.below(2 * policies.len()).saturating_sub(policies.len());
        let policy = policies.get(position).copied().unwrap_or(kvpool_policies::LRU);
        let retention = bytes.one_in(4) && policy != kvpool_policies::LAST_ACCESS;
        let by_hand = [ByHand::Nothing, ByHand::Nothing, ByHand::Hashes, ByHand::All][bytes.below(4)];
        let (caching, watched) = (!bytes.one_in(5), bytes.one_in(2));
        let (digest_len, looks) = ([32, 32, 16][bytes.below(3)], [1, 1, 3, 8][bytes.below(4)]);
        let withheld = if bytes.one_in(6) { 1 + bytes.below(num_blocks) } else { 0 };
        Setting { num_blocks, caching, policy, retention, by_hand, digest_len, watched, withheld, looks }
    }

    /// Returns false if callers write data directly, because replacing the hash of a block in Python
    /// does not change the number of tokens that the hash covers.
    fn is_of_python(setting: &Setting) -> bool {
        setting.by_hand == ByHand::Nothing && setting.policy != kvpool_policies::HAZARD
    }

    fn simpler(setting: &Setting) -> Vec<Setting> {
        let tried = [
            Setting::simplest(setting.num_blocks),
            Setting { by_hand: ByHand::Nothing, ..setting.clone() },
            Setting { retention: false, ..setting.clone() },
            Setting { policy: kvpool_policies::LRU, ..setting.clone() },
            Setting { caching: true, ..setting.clone() },
            Setting { withheld: 0, ..setting.clone() },
            Setting { looks: 1, ..setting.clone() },
        ];
        let fewer = (1..setting.num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        tried.into_iter().chain(fewer).filter(|other| other != setting).collect()
    }

    fn memory(&self) -> &() {
        &()
    }

    fn new(setting: &Setting, _memory: Option<&()>) -> Result<Self, Failure> {
        let subject = VllmSubject::new(&Self::header(setting)?);
        let mut subject = subject.map_err(|error| Failure::new("setting", error.to_string()))?;
        let counted = setting.num_blocks - 1 - setting.withheld();
        let prepared = subject.unrecorded(|pool| pool.set_num_free(counted));
        prepared.map_err(|error| Failure::new("setting", error.to_string()))?;
        Ok(Self {
            model: Model::new(setting, subject.pool().core().keeps_time()),
            setting: setting.clone(),
            subject,
            keys: Keys::new(setting.digest_len),
            tables: Vec::new(),
            now: 0.0,
            pending: None,
            next_table: 0,
            calls: 0,
            scrubber: Scrubber::default(),
        })
    }

    fn header(setting: &Setting) -> Result<JournalHeader, Failure> {
        let Setting { num_blocks, caching, policy, .. } = *setting;
        let journal = JournalConfig { digest_every: 1, ..JournalConfig::default() };
        Ok(JournalHeader::of_vllm_pool(num_blocks, policy, setting.retention(), caching, journal))
    }

    fn weights(&self) -> Weights {
        draw::weights(self.setting.by_hand, self.model.is_chained(PROMPT_GROUPS[0]))
    }

    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut draw::Draft) -> bool {
        draw::fill(slot, bytes, self, draft)
    }

    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool {
        draw::spoil(slot, bytes, self);
        true
    }

    fn make(&mut self, call: &VllmCall) -> Result<Answer, Failure> {
        let order = self.model.queue.clone();
        let expected = self.model.expected(call);
        let answer = self.run(call)?;
        if !is_as(&expected, &answer) {
            let (name, words) = (call.call(), call.words());
            let what = format!("{words}: answered {:?}, expected {expected:?}", answer.value);
            return Err(Failure::new(name, what));
        }
        if answer.refused {
            same("order after a refusal", &self.pool().order().collect(), &order)?;
        } else {
            after(self, call, &answer);
        }
        self.check()?;
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        0
    }
}

//! Computes the answers that a pool's calls must give.

use crate::model::reference::{Content, ReferencePool};
use kvpool::hash::{HashAlgorithm, Verify};
use kvpool_journal::{ChainRecord, LinkRecord, PoolCall as C, Value};

use super::retention::{Before, Retained};
use crate::Failure;
use crate::failure::same;
use crate::world::pool::{Setting, unpack};
use crate::world::prompts::{Prompts, named};

/// The answer that a call must give.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The pool refuses the call and changes nothing.
    Refused,
    /// The pool refuses the call with this error text and changes nothing.
    RefusedAs(&'static str),
    /// The call succeeds and returns this value.
    Is(Value),
    /// The call succeeds. The value that it returns depends on the order of eviction or on hints, so
    /// the model does not know it.
    Done,
}

/// The error for a stale match: its blocks now have other contents.
pub(super) const STALE: Expected = Expected::RefusedAs("no longer holds what it did when it matched");

/// The counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of blocks that the pool has allocated so far.
    pub allocated: u64,
    /// Number of blocks whose content was evicted so far.
    pub evicted: u64,
    /// Number of blocks that lookups found and acquired so far.
    pub hits: u64,
    /// Number of blocks that lookups asked for and did not find.
    pub misses: u64,
    /// Number of lookups and registrations that ended early because two contents have the same key (a
    /// collision).
    pub collisions: u64,
}

/// The model of a pool. It extends the reference pool by chains that the pool refuses, collisions,
/// counters and hints.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) pool: ReferencePool,
    pub(super) setting: Setting,
    pub(super) counted: Counted,
    pub(super) epoch: u64,
    /// The hash algorithm with which the cached contents were hashed. It has no meaning if the cache is
    /// empty.
    pub(super) algorithm: u8,
    keeps_time: bool,
    pub(super) retained: Retained,
    /// The blocks that lookups have acquired in the present call.
    pub(super) hits: Vec<usize>,
}

pub(super) fn number(n: usize) -> Value {
    Value::Number(n as u64)
}

pub(super) fn list(blocks: &[usize]) -> Value {
    Value::List(blocks.iter().map(|&block| number(block)).collect())
}

pub(super) fn pairs(changes: &[(usize, usize)]) -> Value {
    Value::List(changes.iter().map(|&(at, block)| list(&[at, block])).collect())
}

pub(super) fn done(fine: bool) -> Expected {
    if fine { Expected::Is(Value::Nothing) } else { Expected::Refused }
}

pub(super) fn known(value: Option<Value>) -> Expected {
    value.map_or(Expected::Refused, Expected::Is)
}

impl Model {
    /// Creates the model of a new pool.
    #[must_use]
    pub fn new(setting: &Setting, keeps_time: bool) -> Self {
        let drop = setting.duplicates == kvpool::DuplicatePolicy::DropOnRelease;
        Self {
            pool: ReferencePool::new(setting.num_blocks, 1, drop),
            setting: setting.clone(),
            counted: Counted::default(),
            epoch: 0,
            algorithm: 0,
            keeps_time,
            retained: Retained::new(setting.third()),
            hits: Vec::new(),
        }
    }

    /// Returns the reference pool. The content of a block is the prompt up to its end.
    #[must_use]
    pub const fn pool(&self) -> &ReferencePool {
        &self.pool
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// Returns the epoch.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn available(&self) -> usize {
        self.pool.available()
    }

    pub(crate) fn open_tickets(&self) -> Vec<u64> {
        self.pool.open_tickets()
    }

    pub(crate) fn free(&self) -> &[usize] {
        &self.pool.free
    }

    pub(crate) fn is_registered(&self, block: usize) -> bool {
        self.pool.is_registered(block)
    }

    /// Returns whether the model knows the pool's order of eviction, which is so only under LRU.
    pub(crate) fn knows_order(&self) -> bool {
        self.setting.is_lru()
    }

    /// Copies the order of eviction from the pool under test, because the model does not know the order
    /// of its policy. Checks that both have the same blocks.
    pub(crate) fn follow(&mut self, order: Vec<usize>) -> Result<(), Failure> {
        let (mut found, mut expected) = (order.clone(), self.pool.evictable.clone());
        found.sort_unstable();
        expected.sort_unstable();
        same("cached-free blocks", &found, &expected)?;
        self.pool.evictable = order;
        Ok(())
    }

    pub(super) fn content(&self, path: &[u32], position: usize) -> Content {
        self.pool.content(b"", path, position)
    }

    /// Returns whether a registered block has another content whose key equals that of this content.
    pub(super) fn collides(&self, (_, _, path): &Content) -> bool {
        let other = |block| {
            self.pool
                .registered_content(block)
                .is_some_and(|(_, _, other)| other != path && named(other) == named(path))
        };
        self.setting.collisions && (1..self.pool.num_blocks()).any(other)
    }

    /// Returns the first of `blocks` blocks of a prompt, beginning at block `start`, whose key equals
    /// that of another registered content. The result is relative to `start`.
    pub(super) fn first_collision(&self, path: &[u32], start: usize, blocks: usize) -> Option<usize> {
        let end = (start + blocks).min(path.len());
        (start..end).find(|&at| self.collides(&self.content(path, at))).map(|at| at - start)
    }

    fn is_foreign(&self, epoch: u64, algorithm: u8, block_size: usize) -> bool {
        let known = HashAlgorithm::ALL.get(usize::from(algorithm));
        let cryptographic = known.is_some_and(|known| known.is_cryptographic());
        epoch != self.epoch
            || block_size != self.setting.block_size
            || self.pool.registered().0 > 0 && algorithm != self.algorithm
            || self.setting.verify == Verify::None && !cryptographic
    }

    fn refuses_chain(&self, chain: &ChainRecord) -> bool {
        let lacks = |verify, missing| self.setting.verify >= verify && missing;
        self.is_foreign(chain.epoch, chain.algorithm, chain.block_size)
            || lacks(Verify::Fingerprint, chain.fingerprints.len() != chain.blocks())
            || lacks(Verify::Tokens, !chain.has_tokens && chain.blocks() > 0)
    }

    fn refuses_link(&self, link: &LinkRecord) -> bool {
        self.is_foreign(link.epoch, link.algorithm, link.block_size)
            || self.setting.verify >= Verify::Fingerprint && link.fingerprint.is_none()
    }

    pub(super) fn are_blocks(&self, blocks: &[usize]) -> bool {
        blocks.iter().all(|&block| block > 0 && block < self.pool.num_blocks())
    }

    /// Returns the blocks that a lookup must find if it does not acquire them.
    pub(crate) fn find(&self, path: &[u32], start: usize, most: usize) -> Vec<usize> {
        self.pool.clone().find_run(b"", path, (start, most), false)
    }

    pub(crate) fn refuses_lookup(&self, chain: &ChainRecord) -> bool {
        self.refuses_chain(chain)
    }

    pub(crate) fn retained(&self) -> Option<&Retained> {
        self.setting.retention.then_some(&self.retained)
    }

    /// Applies a call to the model. Returns the answer that the pool must give.
    pub(crate) fn expected(&mut self, call: &C, prompts: &Prompts) -> Expected {
        let before = self.setting.retention.then(|| Before::of(&self.pool));
        self.hits.clear();
        let expected = self.answer(call, prompts);
        if let Some(before) = before {
            self.retained.follow(&before, &self.pool, &self.hits);
        }
        expected
    }

    fn answer(&mut self, call: &C, prompts: &Prompts) -> Expected {
        match call {
            C::Match { chain, .. }
            | C::Register { chain, .. }
            | C::LookupRefreshing { chain, .. }
            | C::RegisterTable { chain, .. }
            | C::Adopt { chain, .. }
                if self.refuses_chain(chain) =>
            {
                return Expected::Refused;
            }
            C::RegisterLink { link, .. } | C::AcquireRegistered { link } if self.refuses_link(link) => {
                return Expected::Refused;
            }
            _ => {}
        }
        let path_of = |chain: &ChainRecord| prompts.path(chain);
        match call {
            C::Allocate { blocks } => self.allocate(*blocks),
            C::Acquire { blocks } => done(self.pool.acquire(&unpack(blocks))),
            C::Release { blocks } => done(self.pool.release(&unpack(blocks))),
            C::ReleaseTable { blocks } => {
                done(self.pool.release(&unpack(blocks).into_iter().rev().collect::<Vec<_>>()))
            }
            C::ReleaseAfter { blocks, step } => done(self.pool.release_after(&unpack(blocks), *step)),
            C::CompleteStep { step } => Expected::Is(number(self.pool.complete_step(*step))),
            C::Match { chain, max_blocks, .. } => self.look_up(&path_of(chain), *max_blocks),
            C::Register { blocks, chain, start } => {
                self.register(&unpack(blocks), &path_of(chain), *start, chain.algorithm)
            }
            C::MarkComputed { blocks } => done(self.pool.mark_computed(&unpack(blocks))),
            C::RegisterLink { block, link } => {
                self.register_link(*block as usize, &prompts.path_of_link(link), link.algorithm)
            }
            C::AcquireRegistered { link } => self.acquire_registered(&prompts.path_of_link(link)),
            C::MarkAccessed { blocks, time } => {
                let blocks = unpack(blocks);
                let is_used = |&b: &usize| self.pool.references(b).0 > 0 || self.pool.evictable.contains(&b);
                done(self.are_blocks(&blocks) && blocks.iter().all(is_used) && !time.is_nan())
            }
            C::Evict { blocks } => self.drop_cached(&unpack(blocks)),
            C::Reset {} => {
                let registered = self.pool.registered().0;
                known(self.pool.reset().then(|| number(registered)))
            }
            C::BumpEpoch {} => {
                self.pool.bump_epoch();
                self.epoch += 1;
                Expected::Is(Value::Number(self.epoch))
            }
            C::Resize { num_blocks } => {
                let fine = *num_blocks >= self.pool.num_blocks();
                if fine {
                    self.pool.resize(*num_blocks);
                }
                done(fine)
            }
            C::Retain { blocks, retention } => self.retain(&unpack(blocks), retention.retention()),
            C::AssignTenant { blocks, tenant } => {
                let blocks = unpack(blocks);
                let fine = self.setting.retention && self.are_blocks(&blocks);
                blocks.iter().filter(|_| fine).for_each(|&block| self.retained.assign(block, *tenant));
                done(fine)
            }
            C::AdvanceTime { now } => {
                let fine = self.retained.now().is_none_or(|before| *now >= before) && self.keeps_time;
                known((now.is_finite() && fine).then(|| number(self.retained.advance(*now))))
            }
            C::TakeEvents {} => Expected::Done, // the laboratory takes them itself
            C::Fence {} => Expected::Is(Value::Number(self.pool.fence())),
            C::ReleaseUntil { blocks, ticket } => done(self.pool.release_until(&unpack(blocks), *ticket)),
            C::EndFence { ticket } => known(self.pool.end_fence(*ticket).map(number)),
            C::EvictNext { blocks } => {
                let victims = self.pool.evict(*blocks);
                self.counted.evicted += victims.len() as u64;
                Expected::Is(list(&victims))
            }
            C::LookupRefreshing { chain, start, max_blocks } => {
                self.hits = self.pool.find_run(b"", &path_of(chain), (*start, *max_blocks), true);
                Expected::Is(list(&self.hits))
            }
            C::AcquireMatch { found } => self.acquire_match(found, prompts),
            C::RegisterTable { blocks, chain, start } => {
                let path = path_of(chain);
                self.register_table(&unpack(blocks), &path, *start, chain.algorithm)
            }
            C::Adopt { blocks, chain, start } => {
                self.adopt(&unpack(blocks), &path_of(chain), *start, chain.algorithm)
            }
            C::Disown { blocks } => done(self.pool.disown(&unpack(blocks))),
            C::Signal { blocks, .. } => done(self.are_blocks(&unpack(blocks))),
        }
    }
}

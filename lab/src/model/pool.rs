//! What each call of a pool must answer, and what its caller holds after it.

use kvpool::hash::{HashAlgorithm, Verify};
use kvpool::retention::{Keep, Retention};
use kvpool_journal::{Answer, ChainRecord, Keys, LinkRecord, MatchRecord, PoolCall as C, Value};
use kvpool_testing::{Content, ReferencePool, indices};

use super::retention::{Before, Retained};
use crate::Failure;
use crate::failure::same;
use crate::world::pool::{PoolWorld, Setting, changes, pack, unpack};
use crate::world::prompts::{Path, Prompts, named};

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The call is refused, and changes nothing.
    Refused,
    /// The call is refused with this text, and changes nothing.
    RefusedAs(&'static str),
    /// The answer.
    Is(Value),
    /// The call succeeds. Its answer depends on the order of eviction, or on hints.
    Done,
}

/// What is said of a match whose blocks hold something else.
const STALE: Expected = Expected::RefusedAs("no longer holds what it did when it matched");

/// What a pool has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Blocks handed out.
    pub allocated: u64,
    /// Blocks whose content made way.
    pub evicted: u64,
    /// Blocks that lookups found and acquired.
    pub hits: u64,
    /// Blocks that lookups asked for and did not find.
    pub misses: u64,
    /// Lookups and registrations that a collision stopped.
    pub collisions: u64,
}

/// The model of a pool: the reference pool, with what it does not know: kinds of chains, collisions, counters, time.
#[derive(Clone, Debug)]
pub struct Model {
    pool: ReferencePool,
    setting: Setting,
    counted: Counted,
    epoch: u64,
    /// The algorithm of the contents, if there are any.
    algorithm: u8,
    keeps_time: bool,
    retained: Retained,
    /// Blocks that lookups acquired in this call.
    hits: Vec<usize>,
}

fn number(n: usize) -> Value {
    Value::Number(n as u64)
}

fn list(blocks: &[usize]) -> Value {
    Value::List(blocks.iter().map(|&block| number(block)).collect())
}

fn pairs(changes: &[(usize, usize)]) -> Value {
    Value::List(changes.iter().map(|&(at, block)| list(&[at, block])).collect())
}

fn done(fine: bool) -> Expected {
    if fine { Expected::Is(Value::Nothing) } else { Expected::Refused }
}

fn known(value: Option<Value>) -> Expected {
    value.map_or(Expected::Refused, Expected::Is)
}

impl Model {
    /// Of a pool that was just made.
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

    /// The reference pool, whose contents are the prompts of the laboratory.
    #[must_use]
    pub const fn pool(&self) -> &ReferencePool {
        &self.pool
    }

    /// What was counted.
    #[must_use]
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// The epoch.
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

    /// Whether the order of eviction is the model's.
    pub(crate) fn knows_order(&self) -> bool {
        self.setting.is_lru()
    }

    /// Takes the order of a pool whose policy chooses.
    pub(crate) fn follow(&mut self, order: Vec<usize>) -> Result<(), Failure> {
        let (mut found, mut expected) = (order.clone(), self.pool.evictable.clone());
        found.sort_unstable();
        expected.sort_unstable();
        same("cached-free blocks", &found, &expected)?;
        self.pool.evictable = order;
        Ok(())
    }

    fn content(&self, path: &[u32], position: usize) -> Content {
        self.pool.content(b"", path, position)
    }

    /// Whether a content has the key of another content that is registered.
    fn collides(&self, (_, _, path): &Content) -> bool {
        let other = |block| {
            self.pool
                .registered_content(block)
                .is_some_and(|(_, _, other)| other != path && named(other) == named(path))
        };
        self.setting.collisions && (1..self.pool.num_blocks()).any(other)
    }

    /// The first of `blocks` positions of a prompt, from `start` on, whose content collides.
    fn first_collision(&self, path: &[u32], start: usize, blocks: usize) -> Option<usize> {
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

    fn are_blocks(&self, blocks: &[usize]) -> bool {
        blocks.iter().all(|&block| block > 0 && block < self.pool.num_blocks())
    }

    /// What a lookup that holds nothing must find.
    pub(crate) fn find(&self, path: &[u32], start: usize, most: usize) -> Vec<usize> {
        self.pool.clone().find_run(b"", path, (start, most), false)
    }

    /// Whether a lookup of a chain is refused.
    pub(crate) fn refuses_lookup(&self, chain: &ChainRecord) -> bool {
        self.refuses_chain(chain)
    }

    /// The hints; `None` of a pool without.
    pub(crate) fn retained(&self) -> Option<&Retained> {
        self.setting.retention.then_some(&self.retained)
    }

    /// Changes the model as a call changes the pool; returns what the pool must answer.
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

    fn retain(&mut self, blocks: &[usize], hint: Retention) -> Expected {
        if !self.setting.retention || !self.are_blocks(blocks) {
            return Expected::Refused;
        }
        let mut report = [0; 3];
        for &block in blocks {
            let (references, fences) = self.pool.references(block);
            let ignored = hint.keep == Keep::Demoted && references - fences > 1;
            let no_clock = hint.ttl.is_some() && self.retained.now().is_none();
            if !ignored && (hint.check().is_err() || no_clock && self.pool.is_registered(block)) {
                return Expected::Refused;
            }
            let idle = self.pool.evictable.contains(&block);
            let one = if ignored { [0, 0, 1] } else { self.retained.retain(block, hint, idle) };
            (0..3).for_each(|at| report[at] += one[at]);
        }
        Expected::Is(list(&report))
    }

    fn allocate(&mut self, blocks: usize) -> Expected {
        let free = self.pool.free.len();
        let allocated = self.pool.allocate(blocks);
        if allocated.is_some() {
            self.counted.allocated += blocks as u64;
            self.counted.evicted += blocks.saturating_sub(free) as u64;
        }
        known(allocated.map(|blocks| list(&blocks)))
    }

    fn look_up(&mut self, path: &[u32], most: usize) -> Expected {
        let asked = path.len().min(most);
        let found = self.pool.lookup(b"", path, most, false);
        let stopped = found.len() < asked && self.collides(&self.content(path, found.len()));
        self.counted.hits += found.len() as u64;
        self.counted.misses += (asked - found.len()) as u64;
        self.counted.collisions += u64::from(stopped);
        self.hits = self.pool.lookup(b"", path, most, true);
        Expected::Is(list(&self.hits))
    }

    fn register(&mut self, blocks: &[usize], path: &[u32], start: usize, algorithm: u8) -> Expected {
        let held = |&block: &usize| self.pool.references(block).0 > 0;
        if start + blocks.len() > path.len() || !blocks.iter().all(held) {
            return Expected::Refused;
        }
        let collision = self.first_collision(path, start, blocks.len());
        let end = collision.unwrap_or(blocks.len());
        let stopper = collision.map(|at| blocks[at]);
        if stopper.is_some_and(|block| self.pool.is_registered(block) || blocks[..end].contains(&block)) {
            return Expected::Refused;
        }
        if !self.pool.register(&blocks[..end], b"", path, start) {
            return Expected::Refused;
        }
        self.counted.collisions += u64::from(collision.is_some());
        self.algorithm = algorithm;
        Expected::Is(number(end))
    }

    fn register_link(&mut self, block: usize, path: &Path, algorithm: u8) -> Expected {
        let last = path.len().saturating_sub(1);
        if self.collides(&self.content(path, last)) {
            let (references, fences) = self.pool.references(block);
            if references == fences || self.pool.is_registered(block) {
                return Expected::Refused;
            }
            self.counted.misses += 1;
            self.counted.collisions += 1;
            return Expected::Is(number(block));
        }
        let was_registered = !self.copies(path).is_empty();
        let Some(held) = self.pool.promote(block, b"", path, last) else { return Expected::Refused };
        self.hits.extend(was_registered.then_some(held));
        self.counted.hits += u64::from(was_registered);
        self.counted.misses += u64::from(!was_registered);
        self.algorithm = algorithm;
        Expected::Is(number(held))
    }

    /// The blocks with the content of a prompt's last block, in the order in which lookups return them.
    fn copies(&self, path: &[u32]) -> Vec<usize> {
        let content = self.content(path, path.len() - 1);
        let holds = |&block: &usize| self.pool.registered_content(block) == Some(&content);
        let first = (1..self.pool.num_blocks()).find(holds);
        first.map_or_else(Vec::new, |block| self.pool.copies_of(block).to_vec())
    }

    fn acquire_registered(&mut self, path: &Path) -> Expected {
        let Some(&block) = self.copies(path).first() else {
            self.counted.misses += 1;
            self.counted.collisions += u64::from(self.collides(&self.content(path, path.len() - 1)));
            return Expected::Is(Value::Nothing);
        };
        self.counted.hits += 1;
        self.hits.push(block);
        // A block that is in use has a reference; one that nobody holds is computed.
        if !self.pool.acquire(&[block]) {
            let content = self.content(path, path.len() - 1);
            self.pool.acquire_match(&[block], &[content]);
        }
        Expected::Is(number(block))
    }

    fn drop_cached(&mut self, blocks: &[usize]) -> Expected {
        if !self.are_blocks(blocks) {
            return Expected::Refused;
        }
        let before = self.pool.registered().0;
        self.pool.drop_cached(blocks);
        Expected::Is(number(before - self.pool.registered().0))
    }

    fn acquire_match(&mut self, found: &MatchRecord, prompts: &Prompts) -> Expected {
        let MatchRecord { blocks, chain, start } = found;
        let blocks = unpack(blocks);
        let foreign = chain.epoch != self.epoch
            || self.pool.registered().0 == 0
            || chain.algorithm != self.algorithm
            || chain.block_size != self.setting.block_size;
        if foreign && !blocks.is_empty() {
            return STALE;
        }
        let path = prompts.path(chain);
        let contents: Vec<_> = (0..blocks.len()).map(|at| self.content(&path, start + at)).collect();
        let fine = self.pool.acquire_match(&blocks, &contents);
        if !fine {
            return STALE;
        }
        self.counted.hits += blocks.len() as u64;
        self.hits = blocks;
        Expected::Is(Value::Nothing)
    }

    fn register_table(&mut self, blocks: &[usize], path: &[u32], start: usize, algorithm: u8) -> Expected {
        if start + blocks.len() > path.len() {
            return Expected::Refused;
        }
        for (at, &block) in blocks.iter().enumerate() {
            let (references, fences) = self.pool.references(block);
            let place = self.content(path, start + at);
            let fits = match self.pool.registered_content(block) {
                None => !blocks[..at].contains(&block),
                Some((_, _, own)) => named(own) == named(&place.2),
            };
            if references <= fences || !fits {
                return Expected::Refused;
            }
        }
        let collision = self.first_collision(path, start, blocks.len());
        let kept = &blocks[..collision.unwrap_or(blocks.len())];
        let Some(changes) = self.pool.register_table(kept, b"", path, start) else {
            return Expected::Refused;
        };
        self.hits.extend(changes.iter().map(|&(_, cached)| cached));
        self.entered(collision.is_some(), algorithm);
        Expected::Is(pairs(&changes))
    }

    fn adopt(&mut self, blocks: &[usize], path: &[u32], start: usize, algorithm: u8) -> Expected {
        let free =
            |(at, block): (usize, &usize)| self.pool.free.contains(block) && !blocks[..at].contains(block);
        if start + blocks.len() > path.len() || !blocks.iter().enumerate().all(free) {
            return Expected::Refused;
        }
        let collision = self.first_collision(path, start, blocks.len());
        let kept = &blocks[..collision.unwrap_or(blocks.len())];
        let Some(changes) = self.pool.adopt(kept, b"", path, start) else { return Expected::Refused };
        self.hits.extend(changes.iter().map(|&(_, cached)| cached));
        self.entered(collision.is_some(), algorithm);
        Expected::Is(pairs(&changes))
    }

    fn entered(&mut self, collided: bool, algorithm: u8) {
        self.counted.collisions += u64::from(collided);
        if self.pool.registered().0 > 0 {
            self.algorithm = algorithm;
        }
    }
}

/// Notes what the caller holds after a call that succeeded, and which bytes its blocks carry.
///
/// # Errors
/// A block that a lookup returned carries the bytes of another prompt.
pub(crate) fn after(world: &mut PoolWorld, call: &C, answer: &Answer) -> Result<(), Failure> {
    let handed = indices(&answer.blocks);
    match call {
        C::Allocate { .. } => {
            world.written.lose(&handed);
            allocated(world, handed);
        }
        C::Match { chain, .. } => {
            let path = world.prompts.path(chain);
            world.written.expect(&handed, &path, 0)?;
            let found = handed.len();
            let table = world.hold(handed, Some(path.clone()), found);
            world.pending = Some((path, table));
        }
        C::Acquire { blocks } => {
            let blocks = unpack(blocks);
            let same = world.tables.iter().find(|table| table.blocks == blocks);
            let (prompt, registered) =
                same.map_or((None, blocks.len()), |table| (table.prompt.clone(), table.registered));
            world.hold(blocks, prompt, registered);
        }
        C::AcquireRegistered { .. } => drop(world.hold(handed.clone(), None, handed.len())),
        C::AcquireMatch { found } => {
            let (blocks, path) = (unpack(&found.blocks), world.prompts.path(&found.chain));
            world.written.expect(&blocks, &path, found.start)?;
            let (prompt, all) = ((found.start == 0).then_some(path), blocks.len());
            world.hold(blocks, prompt, all);
        }
        C::Release { blocks }
        | C::ReleaseTable { blocks }
        | C::ReleaseAfter { blocks, .. }
        | C::ReleaseUntil { blocks, .. }
        | C::Disown { blocks } => world.let_go(&unpack(blocks)),
        C::Register { blocks, chain, start } => {
            let Value::Number(registered) = answer.value else { return Ok(()) };
            let (blocks, path) = (unpack(blocks), world.prompts.path(chain));
            world.written.write(&blocks[..registered as usize], &path, *start);
            placed(world, &blocks, &path, *start, registered as usize);
        }
        C::RegisterLink { block, link } => {
            let (path, block) = (world.prompts.path_of_link(link), *block as usize);
            let now = handed.first().copied().unwrap_or(block);
            if now == block {
                world.written.write(&[block], &path, path.len() - 1);
            }
            let held = world.tables.iter_mut().find(|table| table.blocks.contains(&block));
            if let Some(table) = held
                && let Some(at) = table.blocks.iter().position(|&held| held == block)
            {
                table.blocks[at] = now;
                table.registered += usize::from(table.registered == at);
                table.prompt = table.prompt.take().filter(|own| own.starts_with(&path));
            }
        }
        C::RegisterTable { blocks, chain, start } | C::Adopt { blocks, chain, start } => {
            let (old, path) = (unpack(blocks), world.prompts.path(chain));
            let changes = changes(&answer.value);
            entered(world, matches!(call, C::Adopt { .. }), &old, &path, *start, &changes);
            for &(at, block) in &changes {
                world.written.expect(&[block], &path, start + at)?;
            }
        }
        C::LookupRefreshing { chain, start, .. } => {
            let path = world.prompts.path(chain);
            world.written.expect(&handed, &path, *start)?;
            let mut part = world.prompts.chain(&path[..(start + handed.len()).min(path.len())], chain.epoch);
            let keys: Vec<u64> = part.keys.unpack().skip(*start).collect();
            let fingerprints: Vec<u64> = part.fingerprints.unpack().skip(*start).collect();
            part.tokens = keys.len() * part.block_size;
            (part.keys, part.fingerprints) = (Keys::pack(&keys), Keys::pack(&fingerprints));
            world.found.truncate(7);
            world.found.insert(0, MatchRecord { blocks: pack(&handed), chain: part, start: *start });
        }
        C::CompleteStep { step } => world.step = world.step.max(*step),
        C::AdvanceTime { now } => world.now = *now,
        C::MarkComputed { .. }
        | C::MarkAccessed { .. }
        | C::Evict { .. }
        | C::Reset {}
        | C::BumpEpoch {}
        | C::Resize { .. }
        | C::Retain { .. }
        | C::AssignTenant { .. }
        | C::TakeEvents {}
        | C::Fence {}
        | C::EndFence { .. }
        | C::EvictNext { .. }
        | C::Signal { .. } => {}
    }
    Ok(())
}

/// Blocks that were allocated are the rest of the prompt that was looked up last, if they fit it.
fn allocated(world: &mut PoolWorld, blocks: Vec<usize>) {
    let Some((path, table)) = world.pending.take() else {
        world.hold(blocks, None, 0);
        return;
    };
    match table {
        None => drop(world.hold(blocks, Some(path), 0)),
        Some(id) => match world.tables.iter_mut().find(|table| table.id == id && table.prompt.is_some()) {
            Some(table) => table.blocks.extend(blocks),
            None => drop(world.hold(blocks, None, 0)),
        },
    }
}

/// Blocks of a table have their place in the index.
fn placed(world: &mut PoolWorld, blocks: &[usize], path: &Path, start: usize, registered: usize) {
    let of = |table: &&mut crate::world::pool::Table| {
        table.registered == start && table.blocks.get(start..).is_some_and(|rest| rest.starts_with(blocks))
    };
    let Some(table) = world.tables.iter_mut().find(of) else { return };
    table.registered += registered;
    if start == 0 {
        table.prompt = Some(path.clone());
    }
    if registered < blocks.len() {
        table.prompt = None; // a collision keeps the others out
        table.registered = table.blocks.len();
    }
}

/// Blocks of a prompt were registered, computed, or changed for those that were cached.
fn entered(
    world: &mut PoolWorld,
    adopted: bool,
    old: &[usize],
    path: &Path,
    start: usize,
    changes: &[(usize, usize)],
) {
    let mut now = old.to_vec();
    changes.iter().for_each(|&(at, block)| now[at] = block);
    let is_held = |&block: &usize| world.model.pool().is_registered(block);
    let kept: Vec<_> = now.iter().copied().take_while(is_held).collect();
    for (at, &block) in kept.iter().enumerate() {
        if block == old[at] {
            world.written.write(&[block], path, start + at);
        }
    }
    if adopted {
        let prompt = (start == 0).then(|| path.clone());
        let all = kept.len();
        world.hold(kept, prompt, all);
        return;
    }
    let table =
        world.tables.iter_mut().find(|table| table.blocks.windows(old.len().max(1)).any(|part| part == old));
    if let Some(table) = table
        && let Some(at) = table.blocks.windows(old.len().max(1)).position(|part| part == old)
    {
        table.blocks[at..at + old.len()].copy_from_slice(&now);
        if at <= table.registered {
            table.registered = table.registered.max(at + old.len());
        }
        if at == 0 && start == 0 {
            table.prompt = Some(path.clone());
        }
    }
}

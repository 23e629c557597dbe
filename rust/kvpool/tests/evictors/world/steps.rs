//! What can happen to a [`World`]: every operation of a pool, on it and on the model, with every result compared.

use super::*;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A whole request: its cached prefix and new blocks, computed at once.
    Admit(Vec<u8>),
    /// The next turn of the `nth` table: it is released, and admitted with more.
    Turn(usize, Vec<u8>),
    /// A request that is not computed yet: others do not find what it registers, and compute the same.
    Begin(Vec<u8>),
    /// The `nth` table has more tokens: they are registered behind what it holds, uncomputed.
    Extend(usize, Vec<u8>),
    /// All of the `nth` table is computed.
    Finish(usize),
    /// The `nth` table loses its end.
    Truncate(usize, usize),
    /// Of the `nth` table as much is left as is before the middle of a block, and that one is to be written to.
    Copy(usize, usize),
    /// The planned copies are handed out.
    TakePlan,
    Release(usize),
    ReleaseAfter(usize, u64),
    Complete(u64),
    BumpEpoch,
    Reset,
    Grow,
    // The following break up prefixes.
    Allocate(usize),
    Match(Vec<u8>, usize),
    Register {
        table: usize,
        path: Vec<u8>,
        start: usize,
    },
    Mark(usize),
    /// One block of a table alone.
    ReleaseOne(usize, usize),
    Acquire(usize),
    Promote {
        table: usize,
        at: usize,
        path: Vec<u8>,
    },
    Evict(Vec<usize>),
    // Hints; without retention they are refused.
    Retain(Vec<usize>, Retention),
    RetainTable(usize, Retention),
    Assign(Vec<usize>, u32),
    Advance(f64),
    /// One more than there is, or all of it.
    Exhaust,
}

impl World {
    pub(crate) fn act(&mut self, step: &Step) {
        match step {
            Step::Admit(path) => {
                self.admit(path);
            }
            Step::Turn(nth, more) => {
                if let Some((table, mut path)) = self.take_table(*nth) {
                    self.release_table(&table);
                    path.extend(more);
                    path.truncate(12);
                    self.admit(&path);
                }
            }
            Step::Begin(path) => {
                self.begin(path);
            }
            Step::Extend(nth, more) => {
                if let Some((mut table, mut path)) = self.take_table(*nth) {
                    let start = table.len();
                    let most = if start <= path.len() { 12_usize.saturating_sub(start) } else { 0 };
                    let more = &more[..more.len().min(most)];
                    if let Some(new) = self.allocate(more.len()).filter(|new| !new.is_empty()) {
                        path.truncate(start);
                        path.extend(more);
                        assert!(self.register(&new, &path, start));
                        table.extend(new);
                    }
                    self.tables.push((table, path));
                }
            }
            Step::Finish(nth) => {
                let table = self.table(*nth);
                self.mark(&table);
            }
            Step::Truncate(nth, at) => {
                if let Some((mut table, mut path)) = self.take_table(*nth) {
                    let rest = table.split_off(at % (table.len() + 1));
                    self.release_table(&rest);
                    path.truncate(table.len());
                    self.tables.push((table, path));
                }
            }
            Step::Copy(nth, at) => {
                if let Some((mut table, mut path)) = self.take_table(*nth) {
                    let keep = at % (table.len() + 1);
                    let rest = table.split_off((keep + 1).min(table.len()));
                    self.release_table(&rest);
                    path.truncate(keep);
                    if let Some(last) = table.get(keep).copied()
                        && let Some(own) = self.copy_on_write(last)
                    {
                        table[keep] = own;
                    }
                    self.tables.push((table, path));
                }
            }
            Step::TakePlan => self.take_plan(),
            Step::Release(nth) => {
                let table = self.take_table(*nth).unwrap_or_default().0;
                self.release_table(&table);
            }
            Step::ReleaseAfter(nth, step) => {
                let table = self.take_table(*nth).unwrap_or_default().0;
                let valid = self.can_release(&table);
                let ids: Vec<_> = table.iter().map(|&block| id(block)).collect();
                let waiting = self.waiting();
                assert_eq!(self.pool_mut().release_after(&ids, *step).is_ok(), valid);
                if valid && self.completed.is_some_and(|completed| *step <= completed) {
                    self.drop_references(&table, &waiting);
                } else if valid {
                    table.iter().for_each(|&block| self.blocks[block].fences += 1);
                    self.fences.entry(*step).or_default().extend(table);
                }
            }
            Step::Complete(step) => {
                let waiting = self.waiting();
                self.pool_mut().complete_step(*step).unwrap();
                self.completed = self.completed.max(Some(*step));
                let open = self.fences.split_off(&(step + 1));
                let ended: Vec<_> =
                    std::mem::replace(&mut self.fences, open).into_values().flatten().collect();
                ended.iter().for_each(|&block| self.blocks[block].fences -= 1);
                self.drop_references(&ended, &waiting);
            }
            Step::BumpEpoch => {
                self.pool_mut().bump_epoch().unwrap();
                (0..self.blocks.len()).for_each(|block| self.end_content(block));
            }
            Step::Reset => {
                let held = self.blocks.iter().any(|block| block.references > 0);
                assert_eq!(self.pool_mut().reset().is_err(), held);
                if !held {
                    (0..self.blocks.len()).for_each(|block| self.end_content(block));
                }
            }
            Step::Grow => {
                let larger = (self.blocks.len() + 1).min(MOST_BLOCKS);
                self.pool_mut().resize(larger).unwrap();
                self.blocks.resize(larger, Block::new(0));
            }
            Step::Allocate(n) => {
                if let Some(table) = self.allocate(*n) {
                    self.tables.push((table, Vec::new()));
                }
            }
            Step::Match(path, most) => {
                let table = self.lookup(path, *most);
                self.tables.push((table, path.clone()));
            }
            Step::Register { table, path, start } => {
                let table = self.table(*table);
                let fits = path.len().saturating_sub(*start).min(table.len());
                self.register(&table[..fits], path, *start);
            }
            Step::Mark(nth) => {
                let table = self.table(*nth);
                self.mark(&table);
            }
            Step::ReleaseOne(nth, at) => {
                if let Some((mut table, path)) = self.take_table(*nth) {
                    if !table.is_empty() {
                        let block = table.remove(at % table.len());
                        self.release(&[block]);
                    }
                    self.tables.push((table, path));
                }
            }
            Step::Acquire(nth) => {
                let table = self.table(*nth);
                let ids: Vec<_> = table.iter().map(|&block| id(block)).collect();
                self.pool_mut().acquire(&ids).unwrap();
                table.iter().for_each(|&block| self.blocks[block].references += 1);
                self.tables.push((table, Vec::new()));
            }
            Step::Promote { table, at, path } => self.promote(*table, *at, path),
            Step::Evict(blocks) => {
                let blocks: Vec<_> = blocks.iter().copied().filter(|&b| b < self.blocks.len()).collect();
                let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
                self.pool_mut().drop_cached(&ids).unwrap();
                blocks.iter().for_each(|&block| self.end_content(block));
            }
            Step::Retain(blocks, retention) => {
                let blocks: Vec<_> = blocks.iter().copied().filter(|&b| b < self.blocks.len()).collect();
                self.retain(&blocks, *retention);
            }
            Step::RetainTable(nth, retention) => {
                let table = self.table(*nth);
                self.retain(&table, *retention);
            }
            Step::Assign(blocks, tenant) => self.assign(blocks, *tenant),
            Step::Advance(by) => self.advance(*by),
            Step::Exhaust => self.exhaust(),
        }
    }

    fn promote(&mut self, nth: usize, at: usize, path: &[u8]) {
        let Some((mut table, of)) = self.take_table(nth) else { return };
        if !table.is_empty() {
            let slot = at % table.len();
            let block = table[slot];
            let epoch = self.epoch();
            let head = self.copies.get(&(epoch, path.to_vec())).and_then(|copies| copies.first()).copied();
            let overtaken = head.filter(|&head| self.is_overtaken(head));
            let waiting = self.waiting();
            let result = self.pool_mut().register_link(id(block), &link(epoch, path));
            if self.blocks[block].references == self.blocks[block].fences
                || self.blocks[block].content.is_some()
            {
                assert!(result.is_err());
            } else if let Some(shared) = head {
                assert_eq!(result, Ok(id(shared)));
                self.hit(shared);
                overtaken.into_iter().for_each(|block| self.hang_on_a_copy(block));
                self.drop_references(&[block], &waiting);
                table[slot] = shared;
            } else {
                assert_eq!(result, Ok(id(block)));
                self.note_content(block, path, None);
            }
        }
        self.tables.push((table, of));
    }

    fn retain(&mut self, blocks: &[usize], retention: Retention) {
        let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
        let result = self.pool_mut().retain(&ids, retention);
        if !self.kind.has_retention() {
            assert!(matches!(result, Err(PoolError::NoRetention { .. })));
            return;
        }
        let shared = |block: &Block| block.references - block.fences > 1;
        let heard: Vec<_> = blocks
            .iter()
            .copied()
            .filter(|&b| self.blocks[b].content.is_some())
            .filter(|&b| !(retention.keep == Keep::Demoted && shared(&self.blocks[b])))
            .collect();
        if retention.ttl.is_some() && self.now.is_none() {
            assert_eq!(result.is_err(), !heard.is_empty(), "a time to live needs a clock");
            return;
        }
        let report = result.unwrap();
        assert_eq!(
            (report.accepted + report.clipped, report.ignored),
            (heard.len(), blocks.len() - heard.len())
        );
        let mut clipped = 0;
        for &block in &heard {
            let pinned = self.blocks.iter().filter(|block| block.rank == PINNED).count();
            let seconds = match retention.ttl {
                Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)) => Some(seconds),
                _ => None,
            };
            let now = self.now;
            let block = &mut self.blocks[block];
            let full = pinned >= self.config.pin_budget && block.rank != PINNED;
            block.rank = match retention.keep {
                Keep::Demoted => DEMOTED,
                Keep::Priority(priority) => usize::from(priority.get()) + 1,
                _ if full => HIGHEST,
                _ => PINNED,
            };
            clipped += usize::from(retention.keep == Keep::Pinned && full);
            block.idle_ttl = seconds.filter(|_| matches!(retention.ttl, Some(Ttl::Idle(_))));
            let runs = block.idle_ttl.is_none() || block.is_idle();
            block.deadline = seconds.filter(|_| runs).map(|seconds| now.unwrap() + seconds);
            block.then = retention.then;
        }
        assert_eq!(report.clipped, clipped);
    }

    fn assign(&mut self, blocks: &[usize], tenant: u32) {
        let blocks: Vec<_> = blocks.iter().copied().filter(|&b| b < self.blocks.len()).collect();
        let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
        let result = self.pool_mut().assign_tenant(&ids, TenantId(tenant));
        if !self.kind.has_retention() {
            assert!(matches!(result, Err(PoolError::NoRetention { .. })));
            return;
        }
        result.unwrap();
        if self.config.tenants.iter().any(|limits| limits.tenant.0 == tenant) {
            for block in blocks {
                let block = &mut self.blocks[block];
                if block.content.is_some() {
                    block.tenant.get_or_insert(tenant);
                }
            }
        }
    }

    pub(crate) fn advance(&mut self, by: f64) {
        let now = self.now.map_or(0.0, |now| now + by);
        let result = self.pool_mut().advance_time(now);
        if !self.kind.has_retention() && !self.kind.keeps_time() {
            assert!(matches!(result, Err(PoolError::NoRetention { .. })));
            return;
        }
        if self.now.is_some_and(|before| now < before) {
            assert!(matches!(result, Err(PoolError::TimeBackwards { .. })));
            return;
        }
        if !self.kind.has_retention() {
            assert_eq!(result, Ok(0), "there is nothing to run out");
            self.now = Some(now);
            return;
        }
        self.now = Some(now);
        let mut expired = 0;
        for block in &mut self.blocks {
            if block.deadline.is_some_and(|deadline| deadline <= now) {
                expired += 1;
                block.rank = if block.then == Then::Demote { DEMOTED } else { NORMAL };
                (block.deadline, block.idle_ttl, block.then) = (None, None, Then::Normal);
            }
        }
        assert_eq!(result, Ok(expired));
    }

    /// Property 23: whatever was said, all that nobody needs can be allocated, and then there is no more.
    fn exhaust(&mut self) {
        let available = self.available();
        assert_eq!(self.pool().num_available(), available);
        assert!(self.allocate(available + 1).is_none());
        let all = self.allocate(available).unwrap();
        assert!(self.allocate(1).is_none());
        self.release(&all);
    }
}

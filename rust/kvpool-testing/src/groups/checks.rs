//! Checks after a refusal and after the end: the cache makes no call fail, and no block is lost.

use super::{
    AdmitOptions, CacheManager, ExtraKeys, Fit, ManagerError, Operation, Part, RequestRef, Ticket, Until,
    World,
};
use kvpool::{AdmissionFit, BlockId, Loaded, RequestState};

impl World {
    /// Repeats a refused admission or resumption in an empty pool with the available number of blocks: the
    /// pool must refuse it, too.
    pub(super) fn check_refused_admission(
        &self,
        tokens: &[u32],
        part: Part,
        fit: Option<AdmissionFit>,
        error: &ManagerError,
    ) {
        let ManagerError::OutOfBlocks(refusal) = error else { return };
        if let Some(fit) = fit {
            assert_eq!(fit.can_ever_fit, refusal.can_ever_fit, "{error}");
            assert_eq!(fit.fit == Fit::Later, refusal.can_ever_fit, "{fit:?}, {error}");
            assert_ne!(fit.fit, Fit::Ok, "{error}");
        }
        let available = self.manager.pool().num_available();
        if available == 0 {
            return;
        }
        let mut empty = CacheManager::new(Self::config(&self.specs, 1 + available).unwrap()).unwrap();
        let prompt = empty.prepare(tokens, ExtraKeys::default()).unwrap();
        let options = AdmitOptions { part, ..AdmitOptions::default() };
        let cold = empty.admit_with(0, prompt, &options);
        assert!(cold.is_err(), "{error}, but with an empty cache and {available} blocks it fits: {cold:?}");
    }

    /// Remembers an append or extension that was refused because blocks were missing.
    pub(super) fn note_refusal(&mut self, operation: &Operation, error: &ManagerError) {
        use Operation::{Append, Encode, Extend};
        let is_growth = matches!(operation, Append { .. } | Extend { .. } | Encode { .. });
        if is_growth && matches!(error, ManagerError::OutOfBlocks(_)) {
            self.refused = Some((self.done.len(), operation.clone()));
        }
    }

    /// Makes a second world and repeats the first `at` operations of this one.
    fn before(&self, at: usize) -> Self {
        let mut world = Self::new(self.specs.clone(), self.num_blocks, CacheManager::new).unwrap();
        for operation in &self.done[..at] {
            world.run(operation).unwrap();
        }
        world
    }

    /// Repeats the latest refused append or extension twice: after the cache has dropped everything, and with
    /// a separate call for its commits.
    ///
    /// # Panics
    /// If one of them succeeds.
    pub fn check_refused_growth(&self) {
        let Some((at, operation)) = &self.refused else { return };
        let mut world = self.before(*at);
        let blocks: Vec<_> = (1..self.num_blocks as u32).map(BlockId::new).collect();
        world.manager.drop_cached(&blocks).unwrap();
        assert!(world.run(operation).is_err(), "{operation:?} was refused, and fits without the cache");
        let Operation::Append { ids, tokens, lookahead, commits: true, accepted: 0 } = operation else {
            return;
        };
        let mut world = self.before(*at);
        let running: Vec<i64> = ids.iter().copied().filter(|&id| world.is_running(id)).collect();
        let named: Vec<RequestRef<'_>> = running.iter().map(|&id| id.into()).collect();
        let computed: Vec<usize> =
            running.iter().map(|id| world.engines[id].committable(world.engines[id].progress)).collect();
        world.manager.commit_batch(&named, &computed).unwrap();
        let alone = Operation::Append {
            ids: ids.clone(),
            tokens: *tokens,
            lookahead: *lookahead,
            commits: false,
            accepted: 0,
        };
        assert!(world.run(&alone).is_err(), "{operation:?} was refused, and fits as two calls");
    }

    /// Ends all swaps, requests and fences. All blocks of all tiers must be available then.
    ///
    /// # Panics
    /// If a block is not available.
    pub fn finish(&mut self) {
        for swap in std::mem::take(&mut self.swaps) {
            self.manager.abort_swap(swap).unwrap();
        }
        self.execute_plan();
        for id in self.engines.keys() {
            if self.state(*id).is_some_and(|state| state != RequestState::Releasing) {
                self.manager.release(*id, Until::Now).unwrap();
            }
        }
        for id in self.engines.keys() {
            // The release of a loading request waits for the end of its load.
            if let Ok(request) = self.manager.request(*id) {
                self.manager.external_done(*id, Loaded::First(request.computed_tokens)).unwrap();
            }
        }
        for ticket in 0..self.tickets.len() as u64 {
            drop(self.manager.end_fence(Ticket::new(ticket)));
        }
        self.engines.clear();
        let tiers = self.manager.tiers();
        for tier in 0..tiers.len() {
            let pool = tiers.pool(tier).unwrap();
            assert_eq!(pool.num_available(), pool.num_usable(), "tier {tier} has lost blocks");
        }
        self.manager.check_invariants().unwrap();
    }
}

//! A simulated engine: a manager, and KV memory for its blocks. The tests read this memory on every
//! hit, to see whether the KV is that of the request's tokens.

use super::*;

/// A simulated engine: a manager, and the KV memory of its blocks.
pub(super) struct Engine {
    pub(super) manager: CacheManager,
    /// For each block, what its KV was computed from: the epoch of the weights, and all tokens up to
    /// its end.
    pub(super) memory: Vec<(u64, Vec<u32>)>,
    pub(super) requests: BTreeMap<i64, Sequence>,
}

/// A request of the engine.
pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    /// The epoch of the weights with which the request's KV is computed.
    pub(super) epoch: u64,
}

impl Engine {
    pub(super) fn new(usable: usize) -> Self {
        let config = ManagerConfig { num_blocks: usable + 1, block_size: B, ..Default::default() };
        Self {
            manager: CacheManager::new(config).unwrap().watched(&manager_events(10_000)).unwrap(),
            memory: vec![(u64::MAX, Vec::new()); usable + 1],
            requests: BTreeMap::new(),
        }
    }

    /// Admits a request, and checks the KV of the blocks that the manager returned as cached.
    pub(super) fn admit(&mut self, id: i64, tokens: &[u32]) -> Result<Admission, ManagerError> {
        let cursor = self.manager.prepare(tokens, ExtraKeys::default()).unwrap();
        let admission = self.manager.admit(id, cursor).map_err(|refused| refused.error)?;
        let epoch = self.manager.pool().epoch();
        self.requests.insert(id, Sequence { tokens: tokens.to_vec(), epoch });
        self.read_cached(id, &admission);
        Ok(admission)
    }

    pub(super) fn resume(&mut self, id: i64) -> Result<Admission, ManagerError> {
        let admission = self.manager.resume(id)?;
        self.requests.get_mut(&id).unwrap().epoch = self.manager.pool().epoch();
        self.read_cached(id, &admission);
        Ok(admission)
    }

    pub(super) fn read_cached(&self, id: i64, admission: &Admission) {
        let Sequence { tokens, epoch } = &self.requests[&id];
        assert!(admission.cached_tokens < tokens.len(), "the last token of request {id} is left to compute");
        for (at, block) in admission.block_ids.iter().take(admission.cached_blocks).enumerate() {
            let expected = (*epoch, tokens[..(at + 1) * B].to_vec());
            assert_eq!(
                self.memory[block.index()],
                expected,
                "request {id} was given {block:?} with other KV"
            );
        }
    }

    /// Writes the KV of a request's tokens up to `computed`, then commits them.
    pub(super) fn compute(&mut self, id: i64, computed: usize) {
        self.write(id, computed);
        self.manager.commit(id, computed).unwrap();
    }

    pub(super) fn write(&mut self, id: i64, computed: usize) {
        let Sequence { tokens, epoch } = &self.requests[&id];
        let before = self.manager.request(id).unwrap().computed_tokens;
        let table = self.manager.block_table(id).unwrap();
        for (at, block) in table.iter().enumerate().take(computed.div_ceil(B)).skip(before / B) {
            assert_eq!(
                self.manager.pool().ref_count(*block),
                Some(1),
                "{block:?} is written while it is shared"
            );
            self.memory[block.index()] = (*epoch, tokens[..computed.min((at + 1) * B)].to_vec());
        }
    }

    pub(super) fn compute_all(&mut self, id: i64) {
        self.compute(id, self.requests[&id].tokens.len());
    }

    pub(super) fn append(&mut self, id: i64, token: u32) -> Result<(), ManagerError> {
        self.manager.append_tokens(id, &[token], 0)?;
        self.requests.get_mut(&id).unwrap().tokens.push(token);
        Ok(())
    }

    pub(super) fn release(&mut self, id: i64, after_step: Option<u64>) {
        self.manager.release(id, after_step).unwrap();
        self.requests.remove(&id);
    }

    pub(super) fn is_running(&self, id: i64) -> bool {
        self.manager.request(id).is_ok_and(|info| info.state == RequestState::Running)
    }

    /// Checks that the KV of no running request was overwritten, and that every invariant holds.
    pub(super) fn check(&self) {
        self.manager.check_invariants().unwrap();
        for (id, Sequence { tokens, epoch }) in &self.requests {
            let info = self.manager.request(*id).unwrap();
            for (at, block) in self.manager.block_table(*id).unwrap().iter().enumerate() {
                if at * B < info.computed_tokens {
                    let expected = (*epoch, tokens[..info.computed_tokens.min((at + 1) * B)].to_vec());
                    assert_eq!(self.memory[block.index()], expected, "the KV of request {id} in {block:?}");
                }
            }
        }
    }

    /// Checks that every block that can be hit is indexed by the hash of its real content.
    pub(super) fn check_index(&self) {
        let pool = self.manager.pool();
        for block in all_blocks(pool).filter(|&block| pool.is_computed(block)) {
            let (epoch, tokens) = &self.memory[block.index()];
            assert_eq!(pool.hash_of(block), chain_in(*epoch, tokens).hashes().last().copied(), "{block:?}");
            assert_eq!((*epoch, tokens.len() % B), (pool.epoch(), 0), "{block:?}");
        }
    }
}

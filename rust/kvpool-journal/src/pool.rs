//! Replays the calls of a journal on a [`BlockPool`].

use crate::calls::{Moved, PoolCall, Slot, Slots};
use crate::{ChainRecord, JournalHeader};
use kvpool::hash::{HashChain, Verify};
use kvpool::{BlockPool, InvariantViolation, Match, PoolConfig, PoolError};

use crate::contents::Contents;
use crate::error::ReplayError;
use crate::journaled::{Journaled, Recordable};
use crate::numbers::Numbers;
use crate::observers::{Observed, Observers};
use crate::subject::{Subject, memory};
use crate::value::Answer;
use kvpool_observe::{ManagerWatchConfig, PoolWatch, WatchConfig};

/// A pool on which a journal is replayed.
#[derive(Debug)]
pub struct PoolSubject {
    pool: Journaled<BlockPool>,
    contents: Contents,
    /// Maps the recorded block ids to those of this run. The map is needed if only some of the recorded
    /// calls run, because the ids of the two runs then differ.
    moved: Moved,
}

impl PoolSubject {
    /// Returns the pool, which the caller can read but not change.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Creates a pool that verifies its hits as the header specifies. If the recorded run compared
    /// tokens, the replay compares fingerprints instead.
    ///
    /// # Errors
    /// [`ReplayError::Settings`] if the settings are invalid.
    pub fn verified_in_full(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::with_verify(header, Verify::Tokens, |config, watch| {
            Ok(BlockPool::new(config)?.watched(watch)?.into())
        })
    }

    /// Adds a chain that was hashed from real tokens. Blocks of later records that have a key of this
    /// chain get its digests, fingerprints and tokens.
    pub fn teach(&mut self, chain: HashChain) {
        self.contents.teach(chain);
    }

    /// Adds a match that the pool returned, so that later records of this match use it.
    pub fn teach_match(&mut self, found: Match) {
        self.contents.teach_match(found);
    }

    /// Makes a hash chain from its record.
    ///
    /// # Errors
    /// [`ReplayError`] if the record describes an impossible chain.
    pub fn chain(&mut self, record: &ChainRecord) -> Result<HashChain, ReplayError> {
        self.contents.chain(record)
    }

    /// Runs a call without recording it, as in [`Journaled::unrecorded`].
    pub fn unrecorded<T>(&mut self, call: impl FnOnce(&mut BlockPool) -> T) -> T {
        self.pool.unrecorded(call)
    }

    /// Numbers the contents that the replay has seen. An export uses these numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        self.contents.numbers()
    }

    /// Creates a pool for a replay. If the recorded pool compared tokens, it compares fingerprints
    /// instead, because the tokens of a replay are generated.
    fn made(
        header: &JournalHeader,
        make: impl FnOnce(PoolConfig, &WatchConfig) -> Result<Journaled<BlockPool>, PoolError>,
    ) -> Result<Self, ReplayError> {
        Self::with_verify(header, Verify::Fingerprint, make)
    }

    /// Creates a pool that verifies its hits in the way that the header specifies, but not more
    /// strictly than `most`.
    fn with_verify(
        header: &JournalHeader,
        most: Verify,
        make: impl FnOnce(PoolConfig, &WatchConfig) -> Result<Journaled<BlockPool>, PoolError>,
    ) -> Result<Self, ReplayError> {
        let config = header.pool_config(kvpool_policies::ALL)?;
        let algorithm = header.manager_config(kvpool_policies::ALL)?.algorithm;
        let verify = config.verify.min(most);
        let contents = Contents::new(algorithm, config.block_size, verify)?;
        let watch = watch_config(header)?;
        let pool = make(PoolConfig { verify, ..config }, &watch)?;
        Ok(Self { pool, contents, moved: Moved::default() })
    }
}

/// Returns the settings of the recorded observers, and adds a digest, which the replay compares.
fn watch_config(header: &JournalHeader) -> Result<WatchConfig, ReplayError> {
    let ManagerWatchConfig { event_capacity, advisor, .. } = header.watch_config(kvpool_policies::ALL)?;
    Ok(WatchConfig { event_capacity, digest: true, advisor, ..WatchConfig::default() })
}

impl Subject for PoolSubject {
    type Call = PoolCall;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::made(header, |config, watch| Ok(BlockPool::new(config)?.watched(watch)?.into()))
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let journal = memory()?;
        Self::made(header, |config, watch| Journaled::with_watch(config, watch, journal))
    }

    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError> {
        let recorded = watch_config(header)?;
        let advisor = observers.advisor.clone().or(recorded.advisor);
        let watch = WatchConfig { advisor, metrics: observers.metrics, ..recorded };
        Ok(self.pool.unrecorded(|pool| pool.watch(&watch))?)
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Pool(&self.pool)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.pool.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, call: &PoolCall) -> Result<Answer, ReplayError> {
        call.run(&mut self.pool, &mut self.contents)
    }

    fn resolve(&mut self, call: &PoolCall) -> Result<PoolCall, ReplayError> {
        let mut call = call.clone();
        for slot in call.slots() {
            if let Slot::Chain(chain) = slot {
                *chain = self.contents.whole(chain)?;
            }
        }
        Ok(call)
    }

    fn moved(&mut self) -> &mut Moved {
        &mut self.moved
    }

    fn device(&self) -> &BlockPool {
        &self.pool
    }

    fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError> {
        let image = self.pool.image()?;
        let config = header.pool_config(kvpool_policies::ALL)?;
        let verify = config.verify.min(Verify::Fingerprint);
        let config = PoolConfig { verify, num_blocks: self.pool.num_blocks(), ..config };
        let mut pool = BlockPool::new(config)?.watched(&watch_config(header)?)?;
        if let Some(now) = self.pool.retention_time() {
            pool.advance_time(now)?;
        }
        let restored = pool.restore(&image, 0.0, |_| true)?;
        self.pool = pool.into();
        self.moved.clear();
        Ok(restored.blocks)
    }

    fn epoch(&self) -> u64 {
        self.pool.epoch()
    }

    fn digest(&mut self) -> u64 {
        self.pool.unrecorded(Recordable::digest).unwrap_or(0)
    }

    fn check(&mut self) -> Result<(), InvariantViolation> {
        self.pool.check_invariants()
    }
}

//! Replays the calls of a journal on the pool of `kvpool-vllm`.

use crate::calls::{Moved, VllmCall};
use crate::{JournalConfig, JournalHeader};
use kvpool::{BlockPool, InvariantViolation};
use kvpool_vllm::Pool;

use crate::error::ReplayError;
use crate::journaled::{Journaled, Recordable, VllmConfig};
use crate::observers::{Observed, Observers};
use crate::subject::{Subject, memory};
use crate::value::Answer;

/// A pool of vLLM on which a journal is replayed.
#[derive(Debug)]
pub struct VllmSubject {
    pool: Journaled<Pool>,
    /// Maps the recorded block ids to those of this run. The map is needed if only some of the recorded
    /// calls run, because the ids of the two runs then differ.
    moved: Moved,
}

impl VllmSubject {
    /// Returns the pool, which the caller can read but not change.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs a call without recording it, as in [`Journaled::unrecorded`].
    pub fn unrecorded<T>(&mut self, call: impl FnOnce(&mut Pool) -> T) -> T {
        self.pool.unrecorded(call)
    }
}

fn config(header: &JournalHeader) -> Result<VllmConfig, ReplayError> {
    let config = header.pool_config(kvpool_policies::ALL)?;
    let (num_blocks, policy) = (config.num_blocks, config.eviction);
    Ok(VllmConfig { num_blocks, caching: header.caching, policy, retention: config.retention })
}

impl Subject for VllmSubject {
    type Call = VllmCall;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        let pool = Pool::create(config(header)?, &(), JournalConfig::default())?;
        Ok(Self { pool: pool.into(), moved: Moved::default() })
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let pool = Journaled::with_journal(config(header)?, memory()?)?;
        Ok(Self { pool, moved: Moved::default() })
    }

    fn watch(&mut self, _header: &JournalHeader, _observers: &Observers) -> Result<(), ReplayError> {
        Ok(())
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Vllm(&self.pool)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.pool.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, call: &VllmCall) -> Result<Answer, ReplayError> {
        call.run(&mut self.pool, &mut ())
    }

    fn resolve(&mut self, call: &VllmCall) -> Result<VllmCall, ReplayError> {
        Ok(call.clone())
    }

    fn moved(&mut self) -> &mut Moved {
        &mut self.moved
    }

    fn device(&self) -> &BlockPool {
        self.pool.core()
    }

    fn restart(&mut self, _header: &JournalHeader) -> Result<usize, ReplayError> {
        Err(ReplayError::Settings("a pool of vLLM's has no image to restart from".into()))
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn digest(&mut self) -> u64 {
        0
    }

    /// Checks nothing. vLLM may reorder the free queue and overwrite reference counts directly, which
    /// breaks invariants temporarily. Therefore a replay of this pool only compares answers.
    fn check(&mut self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

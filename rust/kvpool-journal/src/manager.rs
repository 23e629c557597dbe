//! Replays the calls of a journal on a [`CacheManager`].

use crate::calls::{ManagerCall, Mention, Moved, Slot, Slots};
use crate::{IdRecord, JournalHeader, Name, PlanRecord, PromptRecord, Rows};
use kvpool::hash::{HashCursor, Verify};
use kvpool::{BlockPool, CacheManager, InvariantViolation, ManagerConfig, StepPlan};

use crate::contents::Contents;
use crate::error::ReplayError;
use crate::journaled::{Journaled, Recordable};
use crate::numbers::Numbers;
use crate::observers::{Observed, Observers};
use crate::requests::Requests;
use crate::subject::{Subject, memory};
use crate::value::Answer;
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};

/// A manager on which the calls of a journal are replayed.
#[derive(Debug)]
pub struct ManagerSubject {
    manager: Journaled<CacheManager>,
    requests: Requests,
    /// Maps the recorded block ids and swap ids to those of this run. The map is needed if only some of
    /// the recorded calls run, because the ids of the two runs then differ.
    moved: Moved,
}

/// Returns the settings of the recorded observers, and adds a digest, which the replay compares.
fn watch_config(header: &JournalHeader) -> Result<ManagerWatchConfig, ReplayError> {
    Ok(ManagerWatchConfig { digest: true, ..header.watch_config(kvpool_policies::ALL)? })
}

impl ManagerSubject {
    /// Returns the manager, which the caller can read but not change.
    #[must_use]
    pub fn manager(&self) -> &CacheManager {
        &self.manager
    }

    /// Creates a manager that verifies its hits as the header specifies. If the recorded run compared
    /// tokens, the replay compares fingerprints instead.
    ///
    /// # Errors
    /// [`ReplayError::Settings`] if the settings are invalid.
    pub fn verified_in_full(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::with_verify(header, Verify::Tokens, |manager| Ok(manager.into()))
    }

    /// Makes a prompt from its record.
    ///
    /// # Errors
    /// [`ReplayError`] if the record describes an impossible prompt.
    pub fn cursor(
        &mut self,
        PromptRecord { chain, foreign }: &PromptRecord,
    ) -> Result<HashCursor, ReplayError> {
        self.requests.contents.cursor(chain, *foreign)
    }

    /// Plans the operations of a recorded step. Leaves out the operations that cannot be planned now.
    ///
    /// # Errors
    /// [`ReplayError`] if the record describes an impossible prompt.
    pub fn plan(&mut self, record: &PlanRecord) -> Result<StepPlan, ReplayError> {
        self.requests.plan(&self.manager, record)
    }

    /// Removes all contents. The manager must have no requests and no cached blocks.
    pub fn forget(&mut self) {
        self.requests.clear();
        self.requests.contents.clear();
    }

    /// Runs a call without recording it, as in [`Journaled::unrecorded`].
    pub fn unrecorded<T>(&mut self, call: impl FnOnce(&mut CacheManager) -> T) -> T {
        self.manager.unrecorded(call)
    }

    /// Numbers the contents that the replay has seen. An export uses these numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        self.requests.contents.numbers()
    }

    /// Creates a manager for a replay. If the recorded manager compared tokens, it compares
    /// fingerprints instead, because the tokens of a replay are generated.
    fn made(
        header: &JournalHeader,
        record: impl FnOnce(CacheManager) -> Result<Journaled<CacheManager>, ReplayError>,
    ) -> Result<Self, ReplayError> {
        Self::with_verify(header, Verify::Fingerprint, record)
    }

    /// Creates a manager, with or without a journal. It verifies its hits in the way that the header
    /// specifies, but not more strictly than `most`.
    fn with_verify(
        header: &JournalHeader,
        most: Verify,
        record: impl FnOnce(CacheManager) -> Result<Journaled<CacheManager>, ReplayError>,
    ) -> Result<Self, ReplayError> {
        let config = header.manager_config(kvpool_policies::ALL)?;
        let verify = config.verify.min(most);
        let contents = Contents::new(config.algorithm, config.block_size, verify)?;
        let config = ManagerConfig { verify, ..config };
        let watch = watch_config(header)?;
        let manager = CacheManager::with_hasher(config, contents.hasher().clone())?.watched(&watch)?;
        let (manager, requests) = (record(manager)?, Requests::new(contents));
        Ok(Self { manager, requests, moved: Moved::default() })
    }
}

impl Subject for ManagerSubject {
    type Call = ManagerCall;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::made(header, |manager| Ok(manager.into()))
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let (config, journal) = (header.manager_config(kvpool_policies::ALL)?, memory()?);
        let watch = header.watch_config(kvpool_policies::ALL)?;
        let header_of = CacheManager::header(&config, &watch, journal.config());
        Self::made(header, |manager| Ok(Journaled::begin(manager, &header_of, journal)))
    }

    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError> {
        let recorded = watch_config(header)?;
        let watch = ManagerWatchConfig {
            advisor: observers.advisor.clone().or(recorded.advisor.clone()),
            explain: observers.explain,
            metrics: observers.metrics,
            ..recorded
        };
        Ok(self.manager.unrecorded(|manager| manager.watch(&watch))?)
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Manager(&self.manager)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.manager.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, call: &ManagerCall) -> Result<Answer, ReplayError> {
        let answer = call.run(&mut self.manager, &mut self.requests)?;
        self.requests.enter(&self.manager);
        Ok(answer)
    }

    fn resolve(&mut self, call: &ManagerCall) -> Result<ManagerCall, ReplayError> {
        let mut call = call.clone();
        for mention in call.slots().into_iter().flat_map(Slot::mentions) {
            match mention {
                Mention::Chain(chain) => *chain = self.requests.contents.whole(chain)?,
                Mention::Request(name) => *name = Name::Id(self.requests.id(name)?),
                Mention::Batch(rows) => {
                    *rows = Rows::Ids(self.requests.batch(rows)?.into_iter().map(IdRecord).collect());
                }
                Mention::Block(_)
                | Mention::Blocks(_)
                | Mention::Epoch(_)
                | Mention::Ticket(_)
                | Mention::Swap(_) => {}
            }
        }
        Ok(call)
    }

    fn moved(&mut self) -> &mut Moved {
        &mut self.moved
    }

    fn device(&self) -> &BlockPool {
        self.manager.pool()
    }

    fn is_idle(&self) -> bool {
        let stats = self.device().stats();
        self.manager.num_requests() == 0
            && self.manager.num_swaps() == 0
            && stats.active == 0
            && stats.fenced == 0
    }

    fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError> {
        let image = self.manager.image()?;
        let config = header.manager_config(kvpool_policies::ALL)?;
        let verify = config.verify.min(Verify::Fingerprint);
        let config = ManagerConfig { verify, num_blocks: self.manager.pool().num_blocks(), ..config };
        let hasher = self.requests.contents.hasher().clone();
        let mut manager = CacheManager::with_hasher(config, hasher)?.watched(&watch_config(header)?)?;
        if let Some(now) = self.manager.pool().retention_time() {
            manager.advance_time(now)?;
        }
        let restored = manager.restore(&image, 0.0, |_| true)?;
        self.manager = manager.into();
        self.requests.clear();
        self.moved.clear();
        Ok(restored.blocks)
    }

    fn epoch(&self) -> u64 {
        self.manager.pool().epoch()
    }

    fn digest(&mut self) -> u64 {
        self.manager.unrecorded(Recordable::digest).unwrap_or(0)
    }

    fn check(&mut self) -> Result<(), InvariantViolation> {
        self.manager.check_invariants()
    }
}

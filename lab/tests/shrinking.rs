//! Tests the shrinker and the report of failures. The tests use a world that reports a failure for
//! certain correct calls.

use kvpool_journal::calls::Slot;
use kvpool_journal::{Answer, JournalHeader, Options, PoolCall, PoolSubject, replay};
use kvpool_lab::Failure;
use kvpool_lab::bytes::Bytes;
use kvpool_lab::draw::Weights;
use kvpool_lab::run::random::{Until, random};
use kvpool_lab::run::report::report;
use kvpool_lab::world::World;
use kvpool_lab::world::pool::PoolWorld;

/// A world that reports a failure when the third block after the opening of a fence is allocated.
struct Complaining {
    world: PoolWorld,
    fenced: bool,
    allocated: usize,
}

impl World for Complaining {
    type Subject = PoolSubject;
    type Setting = <PoolWorld as World>::Setting;
    type Draft = <PoolWorld as World>::Draft;
    type Memory = <PoolWorld as World>::Memory;

    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting {
        PoolWorld::setting(bytes)
    }

    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting> {
        PoolWorld::simpler(setting)
    }

    fn is_of_python(setting: &Self::Setting) -> bool {
        PoolWorld::is_of_python(setting)
    }

    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure> {
        Ok(Self { world: PoolWorld::new(setting, memory)?, fenced: false, allocated: 0 })
    }

    fn memory(&self) -> &Self::Memory {
        self.world.memory()
    }

    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure> {
        PoolWorld::header(setting)
    }

    fn weights(&self) -> Weights {
        self.world.weights()
    }

    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool {
        self.world.fill(slot, bytes, draft)
    }

    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool {
        self.world.spoil(slot, bytes)
    }

    fn make(&mut self, call: &PoolCall) -> Result<Answer, Failure> {
        let answer = self.world.make(call)?;
        match call {
            PoolCall::Fence {} => self.fenced = true,
            PoolCall::Allocate { .. } if self.fenced => self.allocated += answer.blocks.len(),
            _ => {}
        }
        assert!(self.allocated < 3, "the third block");
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        self.world.epoch()
    }
}

#[test]
fn a_failure_is_shrunk_to_the_calls_and_blocks_that_it_needs() {
    for seed in 0..5 {
        let failed = random::<Complaining>(seed, Until::Calls(100_000)).failed.unwrap();
        let report = report(&failed).unwrap();
        assert!(report.failure.kind.starts_with("panic at "), "{}", report.failure);
        assert_eq!(report.failure.what, "the third block");
        assert!((2..=3).contains(&report.calls.len()), "{report}");
        assert!(
            report.setting.contains("num_blocks: 4") && report.setting.contains("policy: lru"),
            "{report}"
        );
        assert!(report.test.contains("pool.fence()") && report.test.contains("pool.allocate("), "{report}");
        let replayed = replay(&report.journal, Options::default(), &mut |_| true).unwrap();
        assert_eq!((replayed.operations, replayed.difference), (report.calls.len() as u64, None));
    }
}

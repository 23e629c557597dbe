//! Checks that `Closed` and the ranks call a policy only as `kvpool::evictor::policy` allows.
//! [`Strict`] passes every call to a policy, and fails if the call is not allowed.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use kvpool::{Content, InvariantViolation, Policy, PoolError, Release, Signal};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The block has no content that the policy knows.
    #[default]
    Unknown,
    Admitted,
    /// The policy has returned the block as a victim, or was asked to remove it. The next call puts it
    /// back or removes its content.
    GivenUp,
}

/// A policy that fails on every call that is not allowed in the current state.
#[derive(Clone, Debug)]
pub(crate) struct Strict<P> {
    policy: P,
    states: Vec<State>,
    /// Number of calls in which the policy had to return a victim.
    pops: Arc<AtomicUsize>,
}

impl<P: Policy> Strict<P> {
    pub(crate) fn new(policy: P) -> Self {
        Self::counting(policy, Arc::default())
    }

    pub(crate) fn counting(policy: P, pops: Arc<AtomicUsize>) -> Self {
        Self { policy, states: Vec::new(), pops }
    }

    /// Moves a block from one of the states `from` to the state `to`.
    fn step(&mut self, call: &str, block: BlockId, from: &[State], to: State) {
        let state = std::mem::replace(&mut self.states[block.index()], to);
        assert!(from.contains(&state), "{call} of {block}, which is {state:?}");
    }

    fn state(&self, block: BlockId) -> State {
        self.states[block.index()]
    }
}

impl<P: Policy> Policy for Strict<P> {
    fn name(&self) -> &'static str {
        "strict"
    }
    fn admit(&mut self, block: BlockId, content: Content) {
        self.step("admit", block, &[State::Unknown], State::Admitted);
        self.policy.admit(block, content);
    }
    fn hit(&mut self, block: BlockId) {
        self.step("hit", block, &[State::Admitted, State::GivenUp], self.state(block));
        self.policy.hit(block);
    }
    fn begin_release(&mut self, release: &Release<'_>) {
        self.policy.begin_release(release);
    }
    fn wants_signals(&self) -> bool {
        self.policy.wants_signals()
    }
    fn signal(&mut self, block: BlockId, signal: Signal) {
        self.step("signal", block, &[State::Admitted], State::Admitted);
        self.policy.signal(block, signal);
    }
    fn keeps_time(&self) -> bool {
        self.policy.keeps_time()
    }
    fn set_time(&mut self, now: f64) {
        self.policy.set_time(now);
    }
    fn release(&mut self, block: BlockId) {
        self.step("release", block, &[State::Admitted], State::Admitted);
        self.policy.release(block);
    }
    fn pop(&mut self) -> Option<BlockId> {
        let block = self.policy.pop()?;
        self.pops.fetch_add(1, Ordering::Relaxed);
        self.step("pop", block, &[State::Admitted], State::GivenUp);
        Some(block)
    }
    fn take(&mut self, block: BlockId) {
        self.step("take", block, &[State::Admitted], State::GivenUp);
        self.policy.take(block);
    }
    fn unpop(&mut self, block: BlockId) {
        self.step("unpop", block, &[State::GivenUp], State::Admitted);
        self.policy.unpop(block);
    }
    fn evicted(&mut self, block: BlockId, content: Content) {
        self.step("evicted", block, &[State::GivenUp], State::Unknown);
        self.policy.evicted(block, content);
    }
    fn forget(&mut self, block: BlockId) {
        self.states[block.index()] = State::Unknown;
        self.policy.forget(block);
    }
    fn clear(&mut self) {
        self.states.fill(State::Unknown);
        self.policy.clear();
    }
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.states.resize(num_blocks, State::Unknown);
        self.policy.grow(num_blocks)
    }
    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.policy.check_invariants()
    }
}

//! Calls that must be refused: each with the error that names what is wrong, and without any effect.

use std::sync::Arc;

use kvpool::hash::HasherConfig;
use kvpool::retention::{Retention, Ttl};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, CacheManager, ExtraKeys, HashCursor, ManagerError, PoolError,
    RequestRef, RequestState, RetentionRange, SwapId, TierError,
};

use super::Wrong;
use super::driver::Driver;
use super::meter::{Meter, Operation};

/// An id that no request ever has.
const NOBODY: RequestRef<'static> = RequestRef::Str("nobody");

/// A prompt hashed with other settings than any manager's.
pub(crate) fn foreign_cursor(block_size: usize) -> Result<HashCursor, Wrong> {
    let config = HasherConfig { block_size: block_size + 1, ..HasherConfig::default() };
    let mut cursor = HashCursor::new(Arc::new(BlockHasher::new(config)?), ExtraKeys::default())?;
    cursor.append(&[1, 2, 3]);
    Ok(cursor)
}

type Call<'a> = Box<dyn FnOnce(&mut CacheManager) -> Result<(), ManagerError> + 'a>;

/// A call that is to be refused: what it is, the call, and whether an error is the right one.
type Case<'a> = (&'static str, Call<'a>, fn(&ManagerError) -> bool);

/// A call whose value is of no interest.
fn call<'a, T>(call: impl FnOnce(&mut CacheManager) -> Result<T, ManagerError> + 'a) -> Call<'a> {
    Box::new(move |manager| call(manager).map(drop))
}

impl Driver {
    /// Makes one call that must be refused.
    pub(super) fn invalid(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let kind = self.chance.below(32);
        let orders = self.chance.below(self.settings.orders_every) == 0;
        let before = self.observe(orders);
        let Some((what, call, expected)) = self.case(kind)? else { return Ok(()) };
        let result = meter.time(Operation::Invalid, || call(&mut self.manager));
        self.invalid += 1;
        match &result {
            Err(error) if expected(error) => self.unchanged(&before, what),
            _ => Err(Wrong(format!("{what} gave {result:?}"))),
        }
    }

    /// `None` if there is no request to try it on.
    fn case(&mut self, kind: usize) -> Result<Option<Case<'static>>, Wrong> {
        let wrong_state: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::WrongState { .. });
        let unknown: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::UnknownRequest { .. });
        let bad_count: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::BadComputedCount { .. });
        let bad_length: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::BadLength { .. });
        let mismatch: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::LengthMismatch { .. });
        let twice: fn(&ManagerError) -> bool = |e| matches!(e, ManagerError::NamedTwice { .. });
        let never: fn(&ManagerError) -> bool =
            |e| matches!(e, ManagerError::OutOfBlocks(refusal) if !refusal.can_ever_fit);
        Ok(Some(match kind {
            0 => ("a release of an unknown id", call(|m| m.release(NOBODY, None)), unknown),
            1 => ("a commit of an unknown id", call(|m| m.commit(NOBODY, 1)), unknown),
            2 => (
                "an append to an unknown id",
                call(|m| m.append(&[NOBODY], &[1], kvpool::Computed::AllButLast)),
                unknown,
            ),
            3 => ("a resumption of an unknown id", call(|m| m.resume(NOBODY)), unknown),
            4 => ("a fork of an unknown id", call(|m| m.fork(NOBODY, 1)), unknown),
            5 => ("a roll-back of an unknown id", call(|m| m.truncate(NOBODY, 1, None)), unknown),
            6 => {
                let cursor = self.manager.prepare(&[], ExtraKeys::default())?;
                let empty = |e: &ManagerError| matches!(e, ManagerError::EmptyPrompt { .. });
                ("an empty prompt", call(|m| Ok(m.admit("empty", cursor)?)), empty)
            }
            7 => {
                let Some(cursor) = self.stale.clone() else { return Ok(None) };
                let stale = |e: &ManagerError| matches!(e, ManagerError::Pool(PoolError::StaleEpoch { .. }));
                ("a prompt of an earlier epoch", call(|m| Ok(m.admit("stale", cursor)?)), stale)
            }
            8 => {
                let cursor = self.foreign.clone();
                let foreign = |e: &ManagerError| matches!(e, ManagerError::ForeignCursor);
                ("a foreign prompt", call(|m| Ok(m.admit("foreign", cursor)?)), foreign)
            }
            9 => {
                let unknown =
                    |e: &ManagerError| matches!(e, ManagerError::Tier(TierError::UnknownSwap { .. }));
                (
                    "the end of an unknown swap",
                    call(|m| m.complete_swap(SwapId::from_number(u64::MAX))),
                    unknown,
                )
            }
            10 => {
                let unknown =
                    |e: &ManagerError| matches!(e, ManagerError::Tier(TierError::UnknownSwap { .. }));
                (
                    "the abortion of an unknown swap",
                    call(|m| m.abort_swap(SwapId::from_number(u64::MAX))),
                    unknown,
                )
            }
            11 => {
                let empty =
                    |e: &ManagerError| matches!(e, ManagerError::EmptyGroup | ManagerError::NoHostTier);
                ("a swap of nothing", call(|m| m.begin_swap_out(&[])), empty)
            }
            12 | 13 => {
                let blocks = if kind == 12 { self.blocks - 1 } else { usize::MAX };
                let shrink = |e: &ManagerError| matches!(e, ManagerError::Pool(PoolError::Shrink { .. }));
                ("a resize to too few or too many blocks", call(move |m| m.resize(blocks)), shrink)
            }
            14 => {
                let block = BlockId::new(self.blocks as u32);
                let unknown =
                    |e: &ManagerError| matches!(e, ManagerError::Pool(PoolError::UnknownBlock { .. }));
                ("the eviction of an unknown block", call(move |m| m.drop_cached(&[block])), unknown)
            }
            15 => {
                let null = |e: &ManagerError| matches!(e, ManagerError::Pool(PoolError::NullBlock { .. }));
                ("the eviction of the null block", call(|m| m.drop_cached(&[kvpool::NULL_BLOCK])), null)
            }
            16 => return self.case_of_time().map(Some),
            17 => {
                let Some(key) = self.pick(RequestState::Preempted) else { return Ok(None) };
                let id = self.books.get(key)?.id.clone();
                ("a second preemption", call(move |m| m.preempt(&id, None)), wrong_state)
            }
            18 => {
                let Some(key) = self.pick(RequestState::Swapped) else { return Ok(None) };
                let id = self.books.get(key)?.id.clone();
                (
                    "an append to a request that is swapped out",
                    call(move |m| m.append(&[id.as_ref()], &[1], kvpool::Computed::AllButLast)),
                    wrong_state,
                )
            }
            _ => {
                let Some(key) = self.pick(RequestState::Running) else { return Ok(None) };
                let entry = self.books.get(key)?;
                let (id, computed, tokens) = (entry.id.clone(), entry.computed, entry.tags.len());
                match kind {
                    19 => {
                        let cursor = self.manager.prepare(&[1, 2, 3], ExtraKeys::default())?;
                        let known = |e: &ManagerError| matches!(e, ManagerError::DuplicateRequest { .. });
                        ("an admission of a known id", call(move |m| Ok(m.admit(id, cursor)?)), known)
                    }
                    20 => {
                        let known = |e: &ManagerError| matches!(e, ManagerError::DuplicateRequest { .. });
                        ("a fork to its own id", call(move |m| m.fork(&id, id.clone())), known)
                    }
                    21 => {
                        let ids = move |m: &mut CacheManager| {
                            m.append(&[id.as_ref(); 2], &[1, 2], kvpool::Computed::AllButLast)
                        };
                        ("an append to one request twice", call(ids), twice)
                    }
                    22 => (
                        "an append of too few tokens",
                        call(move |m| m.append(&[id.as_ref()], &[], kvpool::Computed::AllButLast)),
                        mismatch,
                    ),
                    23 => {
                        let counts = [tokens, tokens];
                        let commit = move |m: &mut CacheManager| m.commit_batch(&[id.as_ref()], &counts);
                        ("a commit with too many counts", call(commit), mismatch)
                    }
                    24 => ("a commit of too much", call(move |m| m.commit(&id, tokens + 1)), bad_count),
                    25 if computed > 0 => (
                        "a commit of less than before",
                        call(move |m| m.commit(&id, computed - 1)),
                        bad_count,
                    ),
                    26 => ("a roll-back to nothing", call(move |m| m.truncate(&id, 0, None)), bad_length),
                    27 => {
                        ("a roll-back to more", call(move |m| m.truncate(&id, tokens + 1, None)), bad_length)
                    }
                    28 => ("a resumption of what runs", call(move |m| m.resume(&id)), wrong_state),
                    29 => {
                        let slots = if self.chance.percent(50) {
                            usize::MAX
                        } else {
                            self.blocks * self.block_size()
                        };
                        ("more than the pool", call(move |m| m.append_tokens(&id, &[1], slots)), never)
                    }
                    30 if self.preset.host_share > 0 => (
                        "a swap in of what runs",
                        call(move |m| m.begin_swap_in(&[id.as_ref()])),
                        wrong_state,
                    ),
                    31 if self.preset.host_share > 0 => (
                        "a swap that names one twice",
                        call(move |m| m.begin_swap_out(&[id.as_ref(); 2])),
                        twice,
                    ),
                    _ => ("a second fork", call(move |m| m.fork(&id, id.clone())), |e| {
                        matches!(e, ManagerError::DuplicateRequest { .. })
                    }),
                }
            }
        }))
    }

    /// Times and hints that cannot be.
    fn case_of_time(&mut self) -> Result<Case<'static>, Wrong> {
        let invalid: fn(&ManagerError) -> bool = |e| {
            let ManagerError::Pool(error) = e else { return false };
            matches!(
                error,
                PoolError::TimeBackwards { .. }
                    | PoolError::InvalidConfig { .. }
                    | PoolError::NoRetention { .. }
            )
        };
        let range = |start, end, ttl| {
            vec![RetentionRange { start, end, retention: Retention { ttl, ..Retention::NORMAL } }]
        };
        let ranges = match self.chance.below(5) {
            0 => return Ok(("a time that is no number", call(|m| m.advance_time(f64::NAN)), invalid)),
            1 if self.time > 0.0 => {
                return Ok(("time going backwards", call(|m| m.advance_time(0.0)), invalid));
            }
            2 => range(4, Some(4), None),
            3 => range(0, None, Some(Ttl::Absolute(-1.0))),
            _ => range(0, None, Some(Ttl::Idle(f64::INFINITY))),
        };
        let cursor = self.manager.prepare(&[1, 2, 3], ExtraKeys::default())?;
        let hints = AdmitOptions { ranges, ..AdmitOptions::default() };
        Ok(("a hint that cannot be", call(move |m| Ok(m.admit_with("hinted", cursor, &hints)?)), invalid))
    }
}

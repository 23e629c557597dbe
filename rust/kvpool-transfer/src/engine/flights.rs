//! `Flights`: the transfers that an engine keeps, and how many they may be.
//!
//! Kept are transfers under way, and ended ones whose end was told to nobody. Of the latter the oldest
//! are forgotten: so many as [`UNTOLD`] stay. The former push back: when [`KEPT`] transfers are kept,
//! whoever submits the next one waits for the oldest of those under way, until no more than half of
//! [`UNTOLD`] are. So at no moment are more than [`KEPT`] kept, however slow the worker or the device
//! is.
//!
//! Nobody waits with a lock held, and what is waited for was submitted before: it waits for nothing
//! that comes later, unless the caller lets it (a stream that waits for what the same thread does after
//! this call).
//!
//! Costs: a constant number of looks at kept transfers per transfer.

use std::sync::{Arc, PoisonError};

use super::transfer::{Remains, Transfer};
use crate::error::TransferError;
use crate::sync::{Mutex, MutexGuard, thread};

/// Fewest entries to look through.
const SWEEP: usize = 64;

/// Ends that `poll` may tell at once: who neither waits nor polls loses the oldest. Few in a model,
/// whose schedules are to see them all.
const UNTOLD: usize = if cfg!(shuttle) { 2 } else { 1 << 16 };

/// The most transfers that are kept.
const KEPT: usize = 2 * UNTOLD;

#[derive(Default)]
struct List {
    kept: Vec<Arc<Transfer>>,
    /// Room that was given and is not used yet.
    promised: usize,
    /// From so many entries on, a new one looks for those that can be forgotten.
    sweep_at: usize,
    #[cfg(test)]
    looks: usize,
}

impl List {
    fn len(&self) -> usize {
        self.kept.len() + self.promised
    }

    /// Forgets what need not be kept. Returns what has to end before there is room for another one.
    fn sweep(&mut self, remains: &mut Remains) -> Vec<Arc<Transfer>> {
        #[cfg(test)]
        {
            self.looks += self.kept.len();
        }
        let mut untold = 0;
        let mut ended = Vec::with_capacity(self.kept.len());
        // Ends that were told need no poll.
        self.kept.retain(|one| {
            let over = one.has_ended_leaving(remains);
            let keep = !over || !one.was_told();
            if keep {
                ended.push(over);
                untold += usize::from(over);
            }
            keep
        });
        let under_way = self.kept.len() - untold;
        let mut excess = untold.saturating_sub(UNTOLD);
        let mut over = ended.iter();
        self.kept.retain(|_| {
            let forget = excess > 0 && over.next() == Some(&true);
            excess -= usize::from(forget);
            !forget
        });
        if self.len() > KEPT - UNTOLD / 2 {
            let ahead = under_way.saturating_sub(UNTOLD / 2);
            let pending = self.kept.iter().filter(|one| !one.has_ended_leaving(remains));
            let pending: Vec<_> = pending.take(ahead).cloned().collect();
            if !pending.is_empty() {
                return pending;
            }
        }
        // Twice as many until the next look: a constant number of looks per transfer.
        self.sweep_at = SWEEP.max(2 * self.len()).min(KEPT);
        Vec::new()
    }
}

/// Transfers under way, and those whose end was told to nobody.
#[derive(Default)]
pub(super) struct Flights(Mutex<List>);

/// Room for one more transfer.
pub(super) struct Room<'a>(&'a Flights);

impl Room<'_> {
    /// Keeps a transfer in it.
    pub(super) fn keep(self, transfer: &Arc<Transfer>) {
        self.0.lock().kept.push(transfer.clone());
    }
}

impl Drop for Room<'_> {
    /// Used or not.
    fn drop(&mut self) {
        self.0.lock().promised -= 1;
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for one more, to be asked for before anything is enqueued and without a lock: it waits if
    /// too many are under way.
    ///
    /// # Errors
    /// [`TransferError::Forked`] if what has to end is of another process.
    pub(super) fn room(&self) -> Result<Room<'_>, TransferError> {
        loop {
            let mut remains = Remains::default();
            let mut list = self.lock();
            if list.sweep_at == 0 {
                list.sweep_at = SWEEP.min(KEPT);
            }
            if list.len() < list.sweep_at {
                list.promised += 1;
                return Ok(Room(self));
            }
            let pending = list.sweep(&mut remains);
            let full = pending.is_empty() && list.len() >= KEPT;
            drop(list);
            // What ended transfers held may be the last of somebody's memory: it goes without a lock.
            drop(remains);
            pending.iter().try_for_each(|transfer| transfer.sleep(None))?;
            if full {
                thread::yield_now(); // all room is promised to others, who are about to use it
            }
        }
    }

    /// Transfers that have not ended, as far as anybody has looked.
    pub(super) fn num_under_way(&self) -> usize {
        let mut remains = Remains::default();
        let list = self.lock();
        let count = list.kept.iter().filter(|transfer| !transfer.has_ended_leaving(&mut remains)).count();
        drop(list);
        count
    }

    /// All that are kept.
    pub(super) fn all(&self) -> Vec<Arc<Transfer>> {
        self.lock().kept.clone()
    }

    /// Takes those whose end was told to nobody, and tells it.
    pub(super) fn poll(&self) -> Vec<Arc<Transfer>> {
        let (mut ended, mut remains) = (Vec::new(), Remains::default());
        let mut list = self.lock();
        list.kept.retain(|transfer| {
            let over = transfer.has_ended_leaving(&mut remains);
            if over && transfer.tell() {
                ended.push(transfer.clone());
            }
            !over
        });
        drop(list);
        ended
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "stores are made over raw memory")]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::super::{After, EngineConfig, Options, TransferEngine};
    use super::{KEPT, SWEEP, Transfer, UNTOLD};
    use crate::region::Region;
    use crate::store::Store;
    use crate::words::Device;
    use crate::words::Method;

    /// A store of two blocks, and its memory.
    fn store() -> (Arc<Store>, Box<[u8; 8]>) {
        let mut bytes = Box::new([0_u8; 8]);
        let region = Region { base: bytes.as_mut_ptr() as u64, stride: 4, nbytes: 4 };
        // SAFETY: the region is that of `bytes`, which the tests keep longer than engine and store, and
        // do not touch meanwhile.
        let store = unsafe { Store::new(vec![region], 2, Device::Cpu, Vec::new(), false, None) };
        (store.expect("fits"), bytes)
    }

    fn engine() -> Arc<TransferEngine> {
        TransferEngine::new(Device::Cpu, EngineConfig { threads: 1, ..EngineConfig::default() })
            .expect("an engine")
    }

    /// A pipeline that orders by streams never asks for an end, waits or polls: what is kept for it is
    /// bounded, however slow the worker is, and looked through a constant number of times per transfer.
    #[test]
    fn ends_that_nobody_asks_for_cost_nothing() {
        let (store, _bytes) = store();
        let engine = engine();
        let submitted = 4 * UNTOLD;
        for _ in 0..submitted {
            engine.submit(&store, &store, [(0, 1)].into_iter(), &Options::default()).expect("checked");
            let kept = engine.flights.lock().kept.len();
            assert!(kept <= KEPT, "{kept} kept");
        }
        // A sweep at KEPT, one more after a wait, and the search for what is waited for, every UNTOLD /
        // 2 transfers.
        let looks = engine.flights.lock().looks;
        assert!(looks <= 8 * submitted + SWEEP, "{looks} looks for {submitted} transfers");
        engine.wait_all(None).expect("no limit");
        let told = engine.poll().expect("no device");
        assert!((UNTOLD..=KEPT).contains(&told.len()), "{} told", told.len());
        // The last ones, without a gap.
        let ids: Vec<_> = told.iter().map(|one| one.id).collect();
        assert!(
            ids.windows(2).all(|pair| pair[0] + 1 == pair[1]) && ids.last() == Some(&(submitted as u64 - 1))
        );
        engine.close();
    }

    /// While nothing ends, nobody submits more than the bound: the next one waits until the oldest have
    /// ended.
    #[test]
    fn whoever_submits_too_much_waits() {
        let (store, _bytes) = store();
        let engine = engine();
        let gate = Transfer::queued(0, 0, Method::Cpu, Device::Cpu);
        let submits = {
            let (engine, gate) = (engine.clone(), gate.clone());
            move || {
                let first = Options { after: After::Transfer(gate), ..Options::default() };
                let mut ends = Vec::new();
                for at in 0..KEPT + 1 {
                    let options = if at == 0 { first.clone() } else { Options::default() };
                    ends.push(
                        engine.submit(&store, &store, [(0, 1)].into_iter(), &options).expect("checked"),
                    );
                    let kept = engine.flights.lock().kept.len();
                    assert!(kept <= KEPT, "{kept} kept");
                }
                ends
            }
        };
        let submits = thread::spawn(submits);
        // The gate opens when the bound is reached: nothing has ended by then.
        while engine.flights.lock().kept.len() < KEPT && !submits.is_finished() {
            thread::yield_now();
        }
        gate.finish(0.0, None);
        let ends = submits.join().expect("no panic");
        assert!(ends[KEPT - UNTOLD / 2 - 1].has_ended(), "the last one did not wait");
        engine.close();
        assert!(ends.iter().all(|one| one.has_ended() && one.error().is_none()));
    }
}

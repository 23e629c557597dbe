//! `Flights`: the list of the transfers that an engine keeps, and its limits.
//!
//! The list keeps transfers under way, and ended transfers whose end was not reported to the caller. It
//! keeps the latest [`MAX_UNREPORTED`] ended ones and forgets older ones. When the list contains
//! [`MAX_KEPT`] transfers, the next submission waits for the oldest transfers under way, until at most half
//! of [`MAX_UNREPORTED`] are under way. So the list never contains more than [`MAX_KEPT`] transfers, however
//! slow the worker or the device is.
//!
//! No thread waits while it holds a lock. A submission waits only for transfers that were submitted
//! before it, and those do not wait for later work. The exception is a caller's stream that waits for
//! something that the same thread does after this call.
//!
//! Costs: each transfer causes a constant number of looks at kept transfers.

use std::sync::{Arc, PoisonError};

use super::transfer::{EndedStates, Transfer};
use crate::error::TransferError;
use crate::sync::{Mutex, MutexGuard, thread};

/// Smallest number of entries at which the list is swept.
const SWEEP: usize = 64;

/// Number of unreported ends that `poll` can return. Beyond it, a caller that neither waits nor polls
/// loses the oldest ones. It is small in a model, so that the schedules reach the limit.
const MAX_UNREPORTED: usize = if cfg!(shuttle) { 2 } else { 1 << 16 };

/// Largest number of transfers that are kept.
const MAX_KEPT: usize = 2 * MAX_UNREPORTED;

#[derive(Default)]
struct List {
    kept: Vec<Arc<Transfer>>,
    /// Places that were promised and are not used yet.
    promised: usize,
    /// Number of entries at which the next new transfer sweeps the list.
    sweep_at: usize,
    #[cfg(test)]
    looks: usize,
}

impl List {
    fn len(&self) -> usize {
        self.kept.len() + self.promised
    }

    /// Forgets transfers that need not be kept. Returns the transfers that have to end before there is
    /// room for another one.
    fn sweep(&mut self, remains: &mut EndedStates) -> Vec<Arc<Transfer>> {
        #[cfg(test)]
        {
            self.looks += self.kept.len();
        }
        let mut unreported = 0;
        let mut ended = Vec::with_capacity(self.kept.len());
        // `poll` does not report an end twice.
        self.kept.retain(|one| {
            let over = one.has_ended_into(remains);
            let keep = !over || !one.was_reported();
            if keep {
                ended.push(over);
                unreported += usize::from(over);
            }
            keep
        });
        let under_way = self.kept.len() - unreported;
        let mut excess = unreported.saturating_sub(MAX_UNREPORTED);
        let mut over = ended.iter();
        self.kept.retain(|_| {
            let forget = excess > 0 && over.next() == Some(&true);
            excess -= usize::from(forget);
            !forget
        });
        if self.len() > MAX_KEPT - MAX_UNREPORTED / 2 {
            let ahead = under_way.saturating_sub(MAX_UNREPORTED / 2);
            let pending = self.kept.iter().filter(|one| !one.has_ended_into(remains));
            let pending: Vec<_> = pending.take(ahead).cloned().collect();
            if !pending.is_empty() {
                return pending;
            }
        }
        // Sweep again when the list has doubled. So each transfer causes a constant number of looks.
        self.sweep_at = SWEEP.max(2 * self.len()).min(MAX_KEPT);
        Vec::new()
    }
}

/// Transfers under way, and ended transfers whose end was not reported.
#[derive(Default)]
pub(super) struct Flights(Mutex<List>);

/// A reserved place for one more transfer.
pub(super) struct Room<'a>(&'a Flights);

impl Room<'_> {
    /// Stores a transfer in the reserved place.
    pub(super) fn keep(self, transfer: &Arc<Transfer>) {
        self.0.lock().kept.push(transfer.clone());
    }
}

impl Drop for Room<'_> {
    /// Gives the place back, whether or not it was used.
    fn drop(&mut self) {
        self.0.lock().promised -= 1;
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for one more transfer. Waits if too many are under way. Call it without a lock,
    /// before anything is enqueued.
    ///
    /// # Errors
    /// [`TransferError::Forked`] if a transfer that has to end belongs to another process.
    pub(super) fn room(&self) -> Result<Room<'_>, TransferError> {
        loop {
            let mut remains = EndedStates::default();
            let mut list = self.lock();
            if list.sweep_at == 0 {
                list.sweep_at = SWEEP.min(MAX_KEPT);
            }
            if list.len() < list.sweep_at {
                list.promised += 1;
                return Ok(Room(self));
            }
            let pending = list.sweep(&mut remains);
            let full = pending.is_empty() && list.len() >= MAX_KEPT;
            drop(list);
            // Ended transfers may hold the last reference to memory of the caller. Its destructor runs
            // without a lock.
            drop(remains);
            pending.iter().try_for_each(|transfer| transfer.sleep(None))?;
            if full {
                thread::yield_now(); // all room is promised to others, who are about to use it
            }
        }
    }

    /// Checks every transfer in the list, and returns the number of those that have not ended.
    pub(super) fn num_under_way(&self) -> usize {
        let mut remains = EndedStates::default();
        let list = self.lock();
        let count = list.kept.iter().filter(|transfer| !transfer.has_ended_into(&mut remains)).count();
        drop(list);
        count
    }

    /// All transfers of the list.
    pub(super) fn all(&self) -> Vec<Arc<Transfer>> {
        self.lock().kept.clone()
    }

    /// Removes ended transfers from the list, and returns those whose end was not reported yet.
    pub(super) fn poll(&self) -> Vec<Arc<Transfer>> {
        let (mut ended, mut remains) = (Vec::new(), EndedStates::default());
        let mut list = self.lock();
        list.kept.retain(|transfer| {
            let over = transfer.has_ended_into(&mut remains);
            if over && transfer.report_end() {
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
    use super::{MAX_KEPT, MAX_UNREPORTED, SWEEP, Transfer};
    use crate::region::Region;
    use crate::store::Store;
    use crate::words::Device;
    use crate::words::Method;

    /// Returns a store of two blocks, and its memory.
    fn store() -> (Arc<Store>, Box<[u8; 8]>) {
        let mut bytes = Box::new([0_u8; 8]);
        let region = Region { base: bytes.as_mut_ptr() as u64, stride: 4, nbytes: 4 };
        // SAFETY: the region is that of `bytes`. The tests keep `bytes` longer than the engine and the
        // store, and do not touch it meanwhile.
        let store = unsafe { Store::new(vec![region], 2, Device::Cpu, Vec::new(), false, None) };
        (store.expect("fits"), bytes)
    }

    fn engine() -> Arc<TransferEngine> {
        TransferEngine::new(Device::Cpu, EngineConfig { threads: 1, ..EngineConfig::default() })
            .expect("an engine")
    }

    /// A pipeline that orders its work by streams never waits, polls, or queries an end. The list of
    /// its transfers is bounded, however slow the worker is, and each transfer causes a constant number
    /// of looks.
    #[test]
    fn unpolled_ends_are_bounded() {
        let (store, _bytes) = store();
        let engine = engine();
        let submitted = 4 * MAX_UNREPORTED;
        for _ in 0..submitted {
            engine.submit(&store, &store, [(0, 1)].into_iter(), &Options::default()).expect("checked");
            let kept = engine.flights.lock().kept.len();
            assert!(kept <= MAX_KEPT, "{kept} kept");
        }
        // Every MAX_UNREPORTED / 2 transfers there are three passes over the list: a sweep at MAX_KEPT, a
        // sweep after a wait, and the search for the transfers to wait for.
        let looks = engine.flights.lock().looks;
        assert!(looks <= 8 * submitted + SWEEP, "{looks} looks for {submitted} transfers");
        engine.wait_all(None).expect("no limit");
        let reported = engine.poll().expect("no device");
        assert!((MAX_UNREPORTED..=MAX_KEPT).contains(&reported.len()), "{} reported", reported.len());
        // The last ids are present without a gap.
        let ids: Vec<_> = reported.iter().map(|one| one.id).collect();
        assert!(
            ids.windows(2).all(|pair| pair[0] + 1 == pair[1]) && ids.last() == Some(&(submitted as u64 - 1))
        );
        engine.close();
    }

    /// While no transfer ends, at most the bound can be submitted. The next submission waits until the
    /// oldest transfers have ended.
    #[test]
    fn submission_waits_at_the_limit() {
        let (store, _bytes) = store();
        let engine = engine();
        let gate = Transfer::queued(0, 0, Method::Cpu, Device::Cpu);
        let submits = {
            let (engine, gate) = (engine.clone(), gate.clone());
            move || {
                let first = Options { after: After::Transfer(gate), ..Options::default() };
                let mut ends = Vec::new();
                for at in 0..MAX_KEPT + 1 {
                    let options = if at == 0 { first.clone() } else { Options::default() };
                    ends.push(
                        engine.submit(&store, &store, [(0, 1)].into_iter(), &options).expect("checked"),
                    );
                    let kept = engine.flights.lock().kept.len();
                    assert!(kept <= MAX_KEPT, "{kept} kept");
                }
                ends
            }
        };
        let submits = thread::spawn(submits);
        // The gate opens when the bound is reached. No transfer has ended before that.
        while engine.flights.lock().kept.len() < MAX_KEPT && !submits.is_finished() {
            thread::yield_now();
        }
        gate.finish(0.0, None);
        let ends = submits.join().expect("no panic");
        assert!(ends[MAX_KEPT - MAX_UNREPORTED / 2 - 1].has_ended(), "the last one did not wait");
        engine.close();
        assert!(ends.iter().all(|one| one.has_ended() && one.error().is_none()));
    }
}

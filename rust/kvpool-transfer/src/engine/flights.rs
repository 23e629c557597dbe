//! `Flights`: the list of an engine's transfers, with its limits.
//!
//! The list contains the unfinished transfers, and finished transfers whose end was not yet reported to
//! the caller. The list keeps the latest [`MAX_UNREPORTED`] of the finished transfers and drops older
//! ones.
//!
//! If the list contains [`MAX_KEPT`] transfers, the next submission waits for the oldest unfinished
//! transfers, until at most half of [`MAX_UNREPORTED`] are unfinished. Therefore the list never
//! contains more than [`MAX_KEPT`] transfers, even if the worker or the device is slow.
//!
//! No thread waits while it holds a lock. A submission waits only for transfers that were submitted
//! before it, and those do not wait for later work. There is one exception: a caller's stream may wait
//! for work that the same thread submits only after this call.
//!
//! Costs: on average, the state of each transfer is checked a constant number of times.

use std::sync::{Arc, PoisonError};

use super::transfer::{EndedStates, Transfer};
use crate::error::TransferError;
use crate::sync::{Mutex, MutexGuard, thread};

/// Smallest length of the list at which `room` removes finished transfers from it.
const SWEEP: usize = 64;

/// Largest number of unreported transfers that `poll` can return. If a caller neither waits nor polls,
/// older ones are dropped. The number is small under `shuttle`, so that the tested schedules reach the
/// limit.
const MAX_UNREPORTED: usize = if cfg!(shuttle) { 2 } else { 1 << 16 };

/// Largest number of transfers in the list.
const MAX_KEPT: usize = 2 * MAX_UNREPORTED;

#[derive(Default)]
struct List {
    kept: Vec<Arc<Transfer>>,
    /// Number of places that are reserved for transfers which are not in the list yet.
    promised: usize,
    /// Length of the list at which `room` next removes finished transfers.
    sweep_at: usize,
    #[cfg(test)]
    looks: usize,
}

impl List {
    fn len(&self) -> usize {
        self.kept.len() + self.promised
    }

    /// Removes reported transfers, and the oldest unreported ones above the limit. Returns the
    /// transfers that have to finish before there is room for another one.
    fn sweep(&mut self, remains: &mut EndedStates) -> Vec<Arc<Transfer>> {
        #[cfg(test)]
        {
            self.looks += self.kept.len();
        }
        let mut unreported = 0;
        let mut ended = Vec::with_capacity(self.kept.len());
        // `poll` reports each end only once, so the list does not need reported transfers.
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
        // Clean up again when the list has doubled, so that the cost per transfer is constant.
        self.sweep_at = SWEEP.max(2 * self.len()).min(MAX_KEPT);
        Vec::new()
    }
}

/// The list of an engine's transfers: those that have not finished, and those whose end was not
/// reported yet.
#[derive(Default)]
pub(super) struct Flights(Mutex<List>);

/// A reserved place in the list for one more transfer.
pub(super) struct Room<'a>(&'a Flights);

impl Room<'_> {
    /// Adds a transfer to the list, in the reserved place.
    pub(super) fn keep(self, transfer: &Arc<Transfer>) {
        self.0.lock().kept.push(transfer.clone());
    }
}

impl Drop for Room<'_> {
    /// Ends the reservation. If the transfer was added, it now counts as an item of the list.
    fn drop(&mut self) {
        self.0.lock().promised -= 1;
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for one more transfer. Waits if too many transfers are under way. Call it
    /// without holding a lock, before anything is enqueued.
    ///
    /// # Errors
    /// [`TransferError::Forked`] if it has to wait for a transfer that belongs to another process.
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
            // Drop finished transfers without holding the lock. They may hold the last reference to
            // memory of the caller, and its destructor may call the engine.
            drop(remains);
            pending.iter().try_for_each(|transfer| transfer.sleep(None))?;
            if full {
                thread::yield_now(); // other threads are about to use the reserved places
            }
        }
    }

    /// Returns the number of transfers that have not finished. Checks every transfer in the list.
    pub(super) fn num_under_way(&self) -> usize {
        let mut remains = EndedStates::default();
        let list = self.lock();
        let count = list.kept.iter().filter(|transfer| !transfer.has_ended_into(&mut remains)).count();
        drop(list);
        count
    }

    pub(super) fn all(&self) -> Vec<Arc<Transfer>> {
        self.lock().kept.clone()
    }

    /// Removes finished transfers from the list, and returns those whose end was not yet reported.
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

    /// Returns a store of two blocks, and the memory that it uses.
    fn store() -> (Arc<Store>, Box<[u8; 8]>) {
        let mut bytes = Box::new([0_u8; 8]);
        let region = Region { base: bytes.as_mut_ptr() as u64, stride: 4, nbytes: 4 };
        // SAFETY: the region is the content of `bytes`. The tests keep `bytes` alive longer than the
        // engine and the store, and do not access it meanwhile.
        let store = unsafe { Store::new(vec![region], 2, Device::Cpu, Vec::new(), false, None) };
        (store.expect("fits"), bytes)
    }

    fn engine() -> Arc<TransferEngine> {
        TransferEngine::new(Device::Cpu, EngineConfig { threads: 1, ..EngineConfig::default() })
            .expect("an engine")
    }

    /// The list of transfers is bounded even if its caller never waits or polls, because it orders its
    /// work with streams. This also holds for a slow worker. Each transfer is checked a constant number
    /// of times.
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
        // After every MAX_UNREPORTED / 2 transfers, the engine checks the whole list three times: when it
        // reaches MAX_KEPT, to find the transfers to wait for, and after the wait. So the number of checks
        // is proportional to the number of transfers.
        let looks = engine.flights.lock().looks;
        assert!(looks <= 8 * submitted + SWEEP, "{looks} looks for {submitted} transfers");
        engine.wait_all(None).expect("no limit");
        let reported = engine.poll().expect("no device");
        assert!((MAX_UNREPORTED..=MAX_KEPT).contains(&reported.len()), "{} reported", reported.len());
        // `poll` returns the transfers that were submitted last, without a gap in their ids.
        let ids: Vec<_> = reported.iter().map(|one| one.id).collect();
        assert!(
            ids.windows(2).all(|pair| pair[0] + 1 == pair[1]) && ids.last() == Some(&(submitted as u64 - 1))
        );
        engine.close();
    }

    /// If no transfer finishes, a submission at the limit waits until the oldest transfers have
    /// finished.
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
        // Keep all transfers from finishing until the limit is reached.
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

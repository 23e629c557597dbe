//! `Guards`: the blocks of a host store that are being read or written. They ensure that no two threads
//! access a block at the same time.
//!
//! Owns: the accesses under way. An access of the processor waits while another access writes a block
//! that it reads, or accesses a block that it writes. An access of a device waits only for accesses of
//! the processor. Streams order the accesses of devices among themselves.
//!
//! Invariants:
//! - The processor accesses a block of a host store only while it holds a [`Guard`].
//! - A [`Claim`] acquires the guards of its stores in the order of their handles, and all blocks of a
//!   store at once. The owner of a guard waits only for guards of stores with higher handles. Therefore
//!   two claims never wait for each other.
//!
//! A guard belongs to a store, not to memory: two stores over the same memory do not exclude each other
//! ([`Store::new`]).
//!
//! Costs: two locks per access. If other accesses of the store are under way, also O(blocks of all of
//! them).

use std::fmt;
use std::ops::Range;
use std::process;
use std::sync::{Arc, PoisonError};

use hashbrown::HashMap;

use super::Store;
use crate::driver::Event;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::words::{Device, Pair};

/// Whether the processor or a device accesses the blocks of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accessor {
    Processor,
    Device,
}

/// The blocks that a processor or a device accesses.
#[derive(Debug)]
struct Access {
    /// The access reads the blocks `src` and writes the blocks `dst` of these pairs. `None` means any
    /// block.
    pairs: Option<Arc<Vec<Pair>>>,
    regions: Range<usize>,
    reads: bool,
    writes: bool,
    accessor: Accessor,
}

impl Access {
    /// Iterates over the accessed blocks. The flag is true if the block is written.
    fn blocks(pairs: &[Pair], reads: bool, writes: bool) -> impl Iterator<Item = (u32, bool)> + '_ {
        let read = pairs.iter().filter(move |_| reads).map(|pair| (pair.src, false));
        read.chain(pairs.iter().filter(move |_| writes).map(|pair| (pair.dst, true)))
    }

    /// Whether the two accesses must not happen at the same time.
    fn excludes(&self, other: &Self) -> bool {
        let apart = self.regions.end <= other.regions.start || other.regions.end <= self.regions.start;
        let devices = self.accessor == Accessor::Device && other.accessor == Accessor::Device;
        if apart || devices || !(self.writes || other.writes) {
            return false;
        }
        let (Some(own), Some(others)) = (&self.pairs, &other.pairs) else { return true };
        let own: HashMap<u32, bool> = Self::blocks(own, self.reads, self.writes).collect();
        Self::blocks(others, other.reads, other.writes)
            .any(|(block, written)| own.get(&block).is_some_and(|&own_written| own_written || written))
    }
}

impl Store {
    /// Guards a block that the processor reads or writes, against transfers and other calls.
    pub(super) fn guard(&self, block: u64, writes: bool) -> Guard {
        let block = block as u32; // checked against the number of blocks, which is below 2^31
        self.guards.enter(Access {
            pairs: Some(Arc::new(vec![Pair { src: block, dst: block }])),
            regions: 0..self.regions.len(),
            reads: !writes,
            writes,
            accessor: Accessor::Processor,
        })
    }
}

/// An access that has begun.
#[derive(Debug)]
struct Entry {
    access: Access,
    /// Id of the process whose thread or stream makes the access.
    process: u32,
    /// The event after which the device no longer accesses the blocks. `None` until it is recorded.
    end: Option<Arc<Event>>,
}

/// The reason why an access has to wait.
enum Obstacle {
    /// An access whose end is notified through the condition variable: one by the processor, or one
    /// whose event is not recorded yet.
    Announced,
    /// An access by a device, which ends at this event.
    Event(Arc<Event>),
}

#[derive(Default)]
struct List {
    next: u64,
    entries: HashMap<u64, Entry>,
    /// Number of times that a thread had to wait for another access.
    #[cfg(test)]
    waits: usize,
}

impl List {
    /// Begins an access, or returns the obstacle that it has to wait for.
    fn enter(&mut self, access: Access) -> Result<u64, (Access, Obstacle)> {
        let this = process::id();
        let mut obstacle = None;
        self.entries.retain(|_, entry| {
            // A child of a `fork` has its own memory, but neither the threads nor the streams of its
            // parent. Therefore entries of another process are ignored.
            if entry.process != this {
                return false;
            }
            if obstacle.is_some() || !access.excludes(&entry.access) {
                return true;
            }
            obstacle = match &entry.end {
                None => Some(Obstacle::Announced),
                // If the event returns an error, the context is lost, so its device no longer accesses
                // memory.
                Some(end) if end.is_done().unwrap_or(true) => return false,
                Some(end) => Some(Obstacle::Event(end.clone())),
            };
            true
        });
        if let Some(obstacle) = obstacle {
            return Err((access, obstacle));
        }
        self.next += 1;
        self.entries.insert(self.next, Entry { access, process: this, end: None });
        Ok(self.next)
    }
}

/// The accesses to the blocks of a store that have begun and not ended.
#[derive(Default)]
pub(super) struct Guards {
    list: Mutex<List>,
    /// Notified when an access has ended, or when its event is recorded.
    changed: Condvar,
}

impl Guards {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.lock().entries.is_empty()
    }

    /// Begins an access. Waits for other accesses first.
    fn enter(self: &Arc<Self>, mut access: Access) -> Guard {
        let mut list = self.lock();
        loop {
            let obstacle = match list.enter(access) {
                Ok(id) => return Guard { guards: self.clone(), id },
                Err((back, obstacle)) => {
                    access = back;
                    obstacle
                }
            };
            #[cfg(test)]
            {
                list.waits += 1;
            }
            list = match obstacle {
                Obstacle::Announced => self.changed.wait(list).unwrap_or_else(PoisonError::into_inner),
                Obstacle::Event(end) => {
                    drop(list);
                    // Ignore errors here, because the next attempt to enter reports them.
                    let _ = end.synchronize();
                    self.lock()
                }
            };
        }
    }

    /// Begins an access, or returns `None` instead of waiting.
    fn try_enter(self: &Arc<Self>, access: Access) -> Option<Guard> {
        let id = self.lock().enter(access).ok()?;
        Some(Guard { guards: self.clone(), id })
    }
}

/// An access under way. Dropping the guard ends the access.
pub(super) struct Guard {
    guards: Arc<Guards>,
    id: u64,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({})", self.id)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = self.guards.lock().entries.remove(&self.id);
        self.guards.changed.notify_all();
        drop(entry);
    }
}

/// The guards for the blocks of a copy: one for each of its two stores that is in host memory.
#[derive(Debug)]
pub(crate) struct Claim {
    guards: Vec<Guard>,
}

impl Claim {
    /// Acquires the guards of a copy. Waits while another access conflicts. If `pairs` is `None`, the
    /// guards apply to all blocks.
    pub(crate) fn take(
        [src, dst]: [&Store; 2],
        pairs: Option<&Arc<Vec<Pair>>>,
        regions: &Range<usize>,
        accessor: Accessor,
    ) -> Self {
        let accesses = Self::accesses([src, dst], pairs, regions, accessor);
        let guards = accesses.map(|(store, access)| store.guards.enter(access)).collect();
        Self { guards }
    }

    /// Acquires the guards of a copy, or returns `None` instead of waiting.
    pub(crate) fn try_take(
        stores: [&Store; 2],
        pairs: &Arc<Vec<Pair>>,
        regions: &Range<usize>,
        accessor: Accessor,
    ) -> Option<Self> {
        let accesses = Self::accesses(stores, Some(pairs), regions, accessor);
        let guards = accesses.map(|(store, access)| store.guards.try_enter(access)).collect::<Option<_>>()?;
        Some(Self { guards })
    }

    /// Returns the accesses to the host stores of a copy, in the order of the stores' handles.
    fn accesses<'a>(
        [src, dst]: [&'a Store; 2],
        pairs: Option<&Arc<Vec<Pair>>>,
        regions: &Range<usize>,
        accessor: Accessor,
    ) -> impl Iterator<Item = (&'a Store, Access)> {
        let same = src.handle == dst.handle;
        let access = |reads, writes| Access {
            pairs: pairs.cloned(),
            regions: regions.clone(),
            reads,
            writes,
            accessor,
        };
        let mut both = [(src, access(true, same)), (dst, access(false, true))];
        if dst.handle < src.handle {
            both.reverse();
        }
        let stores = both.into_iter().take(if same { 1 } else { 2 });
        stores.filter(|(store, _)| store.device == Device::Cpu)
    }

    /// Records the event after which the device no longer uses the blocks. The event remains valid
    /// after the claim was dropped.
    pub(crate) fn ends_with(&self, end: &Arc<Event>) {
        for Guard { guards, id } in &self.guards {
            if let Some(entry) = guards.lock().entries.get_mut(id) {
                entry.end = Some(end.clone());
            }
            guards.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::store::HostOptions;

    /// Creates a store that owns its host memory. It has four blocks, and two regions of one byte each.
    fn store() -> Arc<Store> {
        let regions = [0, 1].map(|base| crate::region::Region { base, stride: 2, nbytes: 1 });
        let options = HostOptions { pinned: Some(false), ..HostOptions::default() };
        Store::host(4, &Store::view(regions.into(), 4), &options).expect("memory")
    }

    fn claim(
        src: &Store,
        dst: &Store,
        pairs: &[(u32, u32)],
        regions: Range<usize>,
        by: Accessor,
    ) -> Option<Claim> {
        let pairs = pairs.iter().map(|&(src, dst)| Pair { src, dst }).collect();
        Claim::try_take([src, dst], &Arc::new(pairs), &regions, by)
    }

    #[test]
    fn copies_exclude_each_other_where_one_writes_what_the_other_touches() {
        use Accessor::{Device, Processor};
        let (a, b) = (store(), store());
        let held = claim(&a, &b, &[(0, 1), (2, 3)], 0..1, Processor).expect("nothing is under way");
        let free =
            |src: &Store, dst: &Store, pair, regions, by| claim(src, dst, &[pair], regions, by).is_some();
        assert!(free(&a, &b, (0, 0), 0..2, Processor), "both read block 0 of a");
        assert!(free(&a, &b, (1, 2), 0..2, Processor), "other blocks");
        assert!(free(&b, &a, (1, 0), 1..2, Processor), "other regions");
        assert!(!free(&a, &b, (1, 1), 0..2, Processor), "both write block 1 of b");
        assert!(!free(&b, &a, (3, 1), 0..2, Processor), "reads block 3 of b, which is written");
        assert!(!free(&b, &a, (2, 2), 0..2, Processor), "writes block 2 of a, which is read");
        assert!(!free(&a, &a, (1, 0), 0..2, Processor), "within one store: writes block 0 of a");
        assert!(!free(&a, &b, (1, 1), 0..2, Device), "a device waits for the processor");
        drop(held);
        let held = claim(&a, &b, &[(0, 1)], 0..2, Device).expect("the other one has ended");
        assert!(free(&b, &a, (1, 0), 0..2, Device), "streams order what devices do");
        assert!(!free(&b, &a, (1, 2), 0..2, Processor), "the processor waits for a device");
        drop(held);
        let any = Claim::take([&a, &b], None, &(0..2), Device);
        assert!(!free(&b, &a, (2, 2), 0..2, Processor), "a device may write any block of b");
        assert!(free(&a, &a, (2, 2), 0..2, Device));
        drop(any);
        assert!(free(&a, &b, (0, 1), 0..2, Processor));
        assert!(a.guards.lock().entries.is_empty() && b.guards.lock().entries.is_empty());
    }

    #[test]
    fn reads_and_writes_wait_for_a_copy_of_their_block() {
        let (a, b) = (store(), store());
        b.write_block(1, &[7, 8]).expect("a block");
        let held = claim(&a, &b, &[(0, 1)], 0..2, Accessor::Processor).expect("nothing is under way");
        assert_eq!(a.read_block(0), Ok(vec![0, 0]), "who reads does not wait for who reads");
        thread::scope(|scope| {
            let waits = |store: &Arc<Store>, number: usize, one: &thread::ScopedJoinHandle<'_, ()>| {
                while store.guards.lock().waits < number {
                    assert!(!one.is_finished(), "it did not wait");
                    thread::yield_now();
                }
            };
            let reads = scope.spawn(|| assert_eq!(b.read_block(1), Ok(vec![7, 8])));
            waits(&b, 1, &reads);
            let writes = scope.spawn(|| a.write_block(0, &[1, 2]).expect("a block"));
            waits(&a, 1, &writes);
            drop(held);
        });
        assert_eq!(a.read_block(0), Ok(vec![1, 2]));
    }
}

//! `EventPublisher`, which publishes the changes of a manager, a pool or a feed with
//! `kvpool_observe::publish`.
//!
//! The state of a publisher has its own lock. A thread takes it detached, and never while it holds a
//! manager's lock, so no step waits for a publisher. The content of a feed is moved out while the manager's
//! lock is held, in O(1), and is encoded without the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_observe::publish::{Batch, Digest, Form, Group, Keys, Publisher, PublisherError, SinkConfig};
use kvpool_observe::{FeedBatch, ManagerWatch};
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{Int, count};
use crate::enter::{LONG, Locked, enter_sized};
use crate::errors::{OrRaise, ToPyErr, raise};
use crate::manager::PyCacheManager;
use crate::pool::PyBlockPool;
use crate::python::prelude::*;
use crate::vllm::PyVllmFeed;

impl ToPyErr for PublisherError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "InvalidArgumentError", self.to_string())
    }
}

/// The object whose changes are published.
enum Source {
    Manager(Py<PyCacheManager>),
    Pool(Py<PyBlockPool>),
    Vllm(Py<PyVllmFeed>),
}

/// The changes of one tier since the last call, and the extra keys of new contents.
#[derive(Default)]
struct Taken {
    tier: u8,
    batch: FeedBatch,
    keys: Vec<(Digest, u16, Keys)>,
}

impl Taken {
    /// Passes the changes of all tiers to the publisher, which makes events of them.
    fn all_into(all: &[Self], publisher: &mut Publisher) {
        for Self { tier, batch, keys } in all {
            publisher.take_in(*tier, batch);
            keys.iter().for_each(|(digest, group, keys)| {
                publisher.learned(*group, *digest, None, None, Some(keys));
            });
        }
    }
}

impl Source {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(manager) = object.cast::<PyCacheManager>() {
            return Ok(Self::Manager(manager.clone().unbind()));
        }
        if let Ok(pool) = object.cast::<PyBlockPool>() {
            return Ok(Self::Pool(pool.clone().unbind()));
        }
        if let Ok(feed) = object.cast::<PyVllmFeed>() {
            return Ok(Self::Vllm(feed.clone().unbind()));
        }
        let name = object.get_type().name()?;
        let message = format!("source is a {name}: must be a CacheManager or a BlockPool");
        Err(raise(object.py(), "ArgumentTypeError", message))
    }

    /// Makes the source record its changes in a feed. Returns its groups.
    fn follow(&self, py: Python<'_>, capacity: usize) -> PyResult<Vec<Group>> {
        match self {
            Self::Manager(manager) => {
                let kept = manager.get().enter(py, LONG, |manager| {
                    manager.unrecorded(|manager| manager.keep_feed(capacity)).map(|()| Group::all_of(manager))
                });
                kept?.or_raise(py)
            }
            Self::Pool(pool) => Ok(vec![Group::full(pool.get().keep_feed(py, capacity)?)]),
            Self::Vllm(feed) => feed.get().groups().ok_or_else(|| {
                raise(py, "InvalidArgumentError", "source has no groups: call set_groups first")
            }),
        }
    }

    /// Takes the changes since the last call: one batch per tier, which replaces a used batch. The slowest
    /// tier comes first, so that content that moves between tiers is always reported in some tier.
    fn take(&self, py: Python<'_>, taken: &mut Vec<Taken>) -> PyResult<()> {
        match self {
            Self::Manager(manager) => manager.get().enter(py, 0, |manager| {
                manager.unrecorded(|manager| {
                    let tiers = manager.tiers().len().min(usize::from(kvpool_observe::publish::MAX_TIERS));
                    taken.resize_with(tiers, Taken::default);
                    for (tier, taken) in (0..tiers).rev().zip(taken) {
                        taken.tier = tier as u8;
                        manager.take_feed(tier, &mut taken.batch);
                    }
                });
            }),
            Self::Pool(pool) => {
                taken.resize_with(1, Taken::default);
                taken.iter_mut().try_for_each(|taken| pool.get().take_feed(py, &mut taken.batch))
            }
            Self::Vllm(feed) => {
                taken.resize_with(1, Taken::default);
                for taken in taken {
                    feed.get().take(&mut taken.batch, &mut taken.keys);
                }
                Ok(())
            }
        }
    }
}

#[pyclass(frozen, module = "kvpool._core.events", name = "EventPublisher")]
pub(crate) struct PyEventPublisher {
    source: Source,
    inner: Locked<Publisher>,
    /// Batches whose changes have been published. The next call reuses their memory.
    spent: Mutex<Vec<Taken>>,
}

/// A snapshot in Python's form: the publisher's `base`, the number of the last batch that the snapshot
/// includes, and its batches.
type SnapshotTuple<'py> = (u64, Option<u64>, Vec<Bound<'py, PyBytes>>);

impl PyEventPublisher {
    fn spent(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the source's changes since the last call. Reuses the memory of batches that are already
    /// published.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Taken>> {
        let mut taken = std::mem::take(&mut *self.spent());
        self.source.take(py, &mut taken)?;
        Ok(taken)
    }

    /// Runs a call on the publisher, without the interpreter because it may be long.
    fn run<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Publisher) -> R + Send) -> R {
        enter_sized(py, &self.inner, LONG, call)
    }
}

#[pymethods]
impl PyEventPublisher {
    #[new]
    #[pyo3(signature = (source, base, *, rank=0, capacity=1_048_576))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        base: Int,
        rank: i128,
        capacity: i128,
    ) -> PyResult<Self> {
        let source = Source::of(source)?;
        let below = |name: &str, value: i128, end: i128| {
            let message = || format!("{name} is {value}: must be from 0 to {}", end - 1);
            u64::try_from(value)
                .ok()
                .filter(|_| value < end)
                .ok_or_else(|| raise(py, "InvalidArgumentError", message()))
        };
        let rank = below("rank", rank, 1 << 32)? as u32;
        // The first number is below half of the 64-bit range, so that later batch numbers cannot overflow.
        let base = below("base", base.into(), 1 << 63)?;
        let groups = source.follow(py, count(py, "capacity", capacity)?)?;
        let publisher = Publisher::new(groups, rank, base).or_raise(py)?;
        Ok(Self { source, inner: Locked::new(publisher), spent: Mutex::default() })
    }

    #[pyo3(signature = (form="vllm", *, replay_batches=10_000, replay_bytes=67_108_864))]
    fn add_sink(
        &self,
        py: Python<'_>,
        form: &str,
        replay_batches: i128,
        replay_bytes: i128,
    ) -> PyResult<usize> {
        let form: Form =
            form.parse().map_err(|error| raise(py, "InvalidArgumentError", format!("form: {error}")))?;
        let replay_batches = count(py, "replay_batches", replay_batches)?;
        let replay_bytes = count(py, "replay_bytes", replay_bytes)?;
        Ok(self.run(py, |publisher| publisher.add(SinkConfig { form, replay_batches, replay_bytes })))
    }

    fn flush<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        heartbeat: f64,
    ) -> PyResult<Vec<(usize, u64, Bound<'py, PyBytes>)>> {
        let taken = self.take(py)?;
        // The work is done in one call, because each time a thread attaches to the interpreter again, a
        // scheduler's thread may have to wait.
        let batches = self.run(py, |publisher| {
            Taken::all_into(&taken, publisher);
            publisher.flush(now, heartbeat)
        });
        *self.spent() = taken;
        let object = |Batch { sink, number, payload }| (sink, number, PyBytes::new(py, &payload));
        Ok(batches.into_iter().map(object).collect())
    }

    fn pass_on(&self, py: Python<'_>, batch: &[u8]) {
        let batch = batch.to_vec();
        self.run(py, |publisher| publisher.pass_on(batch));
    }

    fn lost(&self, py: Python<'_>, sink: Int) -> PyResult<()> {
        let sink = count(py, "sink", sink)?;
        self.run(py, |publisher| publisher.lost(sink)).or_raise(py)
    }

    fn hold(&self, py: Python<'_>, sink: Int, held: bool) -> PyResult<()> {
        let sink = count(py, "sink", sink)?;
        self.run(py, |publisher| publisher.hold(sink, held)).or_raise(py)
    }

    #[pyo3(signature = (sink, start, limit=1_048_576, most_bytes=None))]
    fn replay<'py>(
        &self,
        py: Python<'py>,
        sink: Int,
        start: Int,
        limit: i128,
        most_bytes: Option<Int>,
    ) -> PyResult<Vec<(u64, Bound<'py, PyBytes>)>> {
        let (sink, limit) = (count(py, "sink", sink)?, count(py, "limit", limit)?);
        let most = most_bytes.map_or(Ok(usize::MAX), |bytes| count(py, "most_bytes", bytes))?;
        let start = count(py, "start", start)? as u64;
        let kept = self.run(py, |publisher| {
            let kept = publisher.replay(sink, start)?;
            let mut before = 0_usize;
            let fits = |(_, payload): &(u64, &Arc<[u8]>)| {
                let is_first = before == 0;
                before = before.saturating_add(payload.len());
                is_first || before <= most
            };
            let kept = kept.take(limit).take_while(fits);
            let kept = kept.map(|(number, payload)| (number, Arc::clone(payload)));
            Ok::<Vec<_>, PublisherError>(kept.collect())
        });
        let kept = kept.or_raise(py)?;
        Ok(kept.into_iter().map(|(number, payload)| (number, PyBytes::new(py, &payload))).collect())
    }

    fn snapshot<'py>(&self, py: Python<'py>, sink: Int, now: f64) -> PyResult<SnapshotTuple<'py>> {
        let sink = count(py, "sink", sink)?;
        let snapshot = self.run(py, |publisher| publisher.snapshot(sink, now)).or_raise(py)?;
        let payloads = snapshot.payloads.iter().map(|payload| PyBytes::new(py, payload)).collect();
        Ok((snapshot.epoch, snapshot.cut, payloads))
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (contents, untold, ignored) = self.run(py, |publisher| {
            let contents = publisher.contents();
            let tiers: Vec<_> =
                (0..kvpool_observe::publish::MAX_TIERS).map(|tier| contents.len(tier)).collect();
            (tiers, contents.untold(), contents.ignored())
        });
        let counts = PyDict::new(py);
        counts.set_item("contents", contents)?;
        counts.set_item("untold", untold)?;
        counts.set_item("ignored", ignored)?;
        Ok(counts)
    }
}

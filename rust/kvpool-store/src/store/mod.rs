//! `Store`: the parts that all back ends have in common. It checks, bounds, admits and evicts objects,
//! and never waits.
//!
//! Owns: jobs, tasks in flight, deadlines. One thread calls the store. All decisions are made in these
//! calls, in their order. Workers only move and check bytes, and [`Store::poll`] processes their
//! results. Therefore no call waits for a back end. Callers and workers share one lock, which is held
//! only for a push or a pop.
//!
//! The caller passes the time. Any clock that never goes back is suitable, but all calls must use the
//! same clock.

mod flights;
mod landing;
mod offers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hashbrown::HashMap;

use self::flights::{Flight, Job, Kind};
use crate::admission::{Admission, Answers};
use crate::arena::Arena;
use crate::backend::{self, Backend};
use crate::breaker::Breaker;
use crate::calls::{Completion, JobId, Presence, StoreConfig};
use crate::directory::Directory;
use crate::ends::{Ended, Waiter, ends};
use crate::error::{BackendError, StoreError, Why};
use crate::generation::Generation;
use crate::header::{Header, HeaderError};
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{ObjectKey, ObjectName};
use crate::offered::OfferedBlocks;
use crate::queue::{Queue, StagedSlot, Task, Work};
use crate::staging::{self, Staging};
use crate::stats::Stats;
use crate::transfer::Memory;
use crate::worker;

/// Largest number of keys in one question to the back end.
const ASKED_AT_ONCE: usize = 128;
/// Largest number of workers of a store. Each is a thread.
const MAX_WORKERS: usize = 1024;
/// Largest number of tasks for which the store reserves memory when it opens.
const RESERVED: usize = 1024;

/// A bounded store on top of one back end.
#[derive(Debug)]
pub struct Store {
    backend: Arc<dyn Backend>,
    arena: Arc<Arena>,
    config: StoreConfig,
    /// Digest of the namespace that the caller passed, without the generation that the store adds.
    served: NamespaceDigest,
    /// Earlier namespaces whose objects have to become invalid, but whose new generation the back end
    /// has not recorded yet because it failed.
    unrecorded: Vec<NamespaceDigest>,
    /// The namespace with its generation. `namespace` is its digest, which is in every stored object.
    stored_namespace: Namespace,
    namespace: NamespaceDigest,
    directory: Directory,
    admission: Admission,
    answers: Answers,
    breaker: Breaker,
    queue: Arc<Queue>,
    ended: Ended,
    workers: Vec<JoinHandle<()>>,
    flights: HashMap<u64, Flight>,
    /// Deadlines and numbers of the tasks, in the order in which the tasks were sent. The deadlines are
    /// ascending, unless the caller's clock goes back.
    deadlines: VecDeque<(Duration, u64)>,
    clearing: usize,
    staged: bool,
    jobs: BTreeMap<JobId, Job>,
    next_job: u64,
    next_task: u64,
    stats: Stats,
}

impl Store {
    /// Opens a store on a back end, and reads which objects exist. Waits for the back end. The only
    /// other calls that wait are [`Self::wait`], [`Self::renew`] and [`Self::close`].
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::NoMemory`]; [`StoreError::Backend`] if the objects
    /// cannot be listed; [`StoreError::Worker`].
    pub fn open(
        backend: Arc<dyn Backend>,
        arena: Arc<Arena>,
        namespace: &Namespace,
        config: StoreConfig,
    ) -> Result<Self, StoreError> {
        let least = [
            ("workers", config.workers as u64),
            ("queue", config.queue as u64),
            ("breaker.failures", u64::from(config.breaker.failures)),
            ("places", u64::from(backend.places())),
        ];
        if let Some((field, _)) = least.into_iter().find(|&(_, value)| value == 0) {
            return Err(StoreError::InvalidConfig { field, value: "0".into(), expected: "at least 1" });
        }
        if config.workers > MAX_WORKERS {
            let value = config.workers.to_string();
            return Err(StoreError::InvalidConfig { field: "workers", value, expected: "at most 1024" });
        }
        if !kvpool_policies::in_full(config.eviction).has_order() {
            return Err(StoreError::InvalidConfig {
                field: "eviction",
                value: config.eviction.name().into(),
                expected: "a policy that defines an order of eviction",
            });
        }
        let no_memory = |error: kvpool::PoolError| StoreError::NoMemory {
            bytes: u64::from(backend.places()) * 200,
            error: error.to_string(),
        };
        check_namespace(namespace)?;
        let (served, stored_namespace) =
            (namespace.digest(), backend::current_namespace(backend.as_ref(), namespace)?);
        let last_error = backend.describe(&stored_namespace).err();
        let namespace = stored_namespace.digest();
        let mut directory = Directory::new(backend.places(), config.eviction, config.tell_gone, namespace)
            .map_err(no_memory)?;
        let admission = Admission::new(config.remembered_offers).map_err(no_memory)?;
        let last_error = last_error.map(|error| error.to_string());
        let mut stats = Stats { last_error, ..Stats::default() };
        let mut foreign = Vec::new();
        backend.restore(namespace, &mut |place, bytes| match Header::decode(bytes) {
            Ok(header) if header.namespace == namespace && header.len <= backend.max_payload() => {
                let (key, depth) = (header.key, header.tokens.depth());
                stats.restored += u64::from(directory.restore(place, key, header.len, depth));
            }
            Err(HeaderError::Absent) => {}
            _ => foreign.push(place),
        })?;
        stats.foreign = foreign.len() as u64;
        directory.restored(&foreign);
        let queue = Arc::new(Queue::default());
        let (ends, ended) = ends()?;
        let mut store = Self {
            answers: Answers::new(config.remembered_offers, config.believed_for),
            breaker: Breaker::new(config.breaker),
            workers: Vec::with_capacity(config.workers),
            flights: HashMap::with_capacity(config.queue.min(RESERVED)),
            deadlines: VecDeque::with_capacity(config.queue.min(RESERVED)),
            jobs: BTreeMap::new(),
            clearing: 0,
            staged: config.staged || !arena.is_paged(),
            next_job: 0,
            next_task: 0,
            backend,
            arena,
            config,
            served,
            unrecorded: Vec::new(),
            stored_namespace,
            namespace,
            directory,
            admission,
            queue,
            ended,
            stats,
        };
        let longest = store.arena.slot_bytes().min(store.backend.max_payload());
        let staging = store.staged.then(|| Staging::new(longest, config.workers)).transpose()?.map(Arc::new);
        for nth in 0..config.workers {
            let (memory, share) = (Memory::new(staging.clone()), staging::AT_ONCE / config.workers as u64);
            let (queue, backend, ends) = (Arc::clone(&store.queue), Arc::clone(&store.backend), ends.clone());
            let thread = thread::Builder::new().name(format!("kvpool-store-{nth}"));
            let worker = thread.spawn(move || worker::run(&queue, &backend, &ends, memory, share));
            store.workers.push(worker.map_err(StoreError::Worker)?);
        }
        Ok(store)
    }

    /// Asks the back end whether objects exist. The job's result is [`Ok`] or [`Why::Absent`] for each
    /// object. A back end that only this store uses is not asked, because the store knows everything in
    /// it. A shared back end is asked about all objects, even about known ones. The store uses its
    /// answers for a limited time ([`Self::contains`]).
    pub fn probe(&mut self, keys: &[ObjectKey], now: Duration) -> JobId {
        let job = self.begin(keys.len());
        for (nth, asked) in keys.chunks(ASKED_AT_ONCE).enumerate() {
            let first = nth * ASKED_AT_ONCE;
            let room = if self.backend.is_shared() { self.has_room(now) } else { Ok(()) };
            if self.backend.is_shared() && room.is_ok() {
                self.breaker.pass(now);
                let report = Some((job, first));
                let flight = Flight { asked: asked.to_vec(), report, ..Flight::of(Kind::Probe) };
                self.send(flight, now, Work::Probe { keys: asked.to_vec() });
                continue;
            }
            for (at, key) in asked.iter().enumerate() {
                let known = match self.directory.find(key) {
                    Some(found) if found.held => Ok(()),
                    Some(_) => Err(Why::Pending),
                    None => Err(Why::Absent),
                };
                self.settle(job, first + at, room.and(known));
            }
        }
        job
    }

    /// Marks objects as the most recently used, as a load does, but does not load them. Unknown keys
    /// are ignored.
    pub fn touch(&mut self, keys: &[ObjectKey]) {
        let found = keys.iter().filter_map(|key| self.directory.find(key));
        let mut held: Vec<_> = found.filter(|found| found.held).map(|found| (found.place, false)).collect();
        self.directory.touch(&mut held);
    }

    /// Returns the keys of the objects that were evicted, removed or found damaged since the previous
    /// call. The list is empty unless [`StoreConfig::tell_gone`] is set. If it is set, the caller MUST
    /// call this regularly, because the list grows.
    pub fn take_gone(&mut self) -> Vec<ObjectKey> {
        self.directory.take_gone()
    }

    /// Returns what the store knows about a key, without calling the back end.
    #[must_use]
    pub fn contains(&self, key: &ObjectKey, now: Duration) -> Presence {
        match self.directory.find(key) {
            _ if !self.breaker.would_pass(now) => Presence::Absent,
            Some(found) if found.held => Presence::Here,
            Some(_) => Presence::Pending,
            None if !self.backend.is_shared() || self.directory.is_leaving(key) => Presence::Absent,
            None => match self.answers.of(key, now) {
                Some(true) => Presence::Here,
                Some(false) => Presence::Absent,
                None => Presence::Unknown,
            },
        }
    }

    /// Returns the record of the blocks that were offered to this store. The store updates it when it
    /// refuses or loses an object. Do not call the store while you hold the lock.
    #[must_use]
    pub fn offered(&self) -> Arc<Mutex<OfferedBlocks>> {
        Arc::clone(self.directory.offered())
    }

    /// Removes objects. The store no longer finds them, and clears their bytes in the background.
    /// Returns the number of objects that this store knew. For the other keys, a shared back end is
    /// asked once to remove the objects.
    pub fn remove(&mut self, keys: &[ObjectKey], now: Duration) -> usize {
        let found: Vec<_> = keys.iter().filter_map(|key| self.directory.find(key)).collect();
        if self.backend.is_shared() {
            self.remove_unknown(keys, now);
        }
        let before = self.stats.removed;
        for object in found {
            self.stats.removed += u64::from(self.directory.doom(object.place));
        }
        self.clear_next(now);
        (self.stats.removed - before) as usize
    }

    /// Returns the namespace that objects contain: the served namespace with its generation.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.stored_namespace
    }

    /// Serves a namespace from now on, for example after an update of the weights. It may be the
    /// namespace that is already served.
    ///
    /// Every object of the old namespace is lost. This store does not find it any more, and neither
    /// does a store that is opened later, even if this process is killed. Transfers that have not
    /// finished are misses ([`Why::Absent`]). This store finds the objects that other engines have
    /// stored in the new namespace.
    ///
    /// Other engines that share the back end see no change until they open or renew a store.
    ///
    /// Waits for the back end, which records the renewal before this returns. O(places).
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`] for a namespace with a generation; the store is then unchanged.
    /// [`StoreError::NotRenewed`] if the back end fails. This store then no longer finds any older
    /// object, and the next renewal also records this renewal.
    pub fn renew(&mut self, namespace: &Namespace, now: Duration) -> Result<(), StoreError> {
        check_namespace(namespace)?;
        self.unrecorded.push(self.served);
        self.served = namespace.digest();
        let stored_namespace = self.record_renewal(namespace);
        self.stored_namespace = match &stored_namespace {
            Ok(stored_namespace) => stored_namespace.clone(),
            // The new generation is random, so no older object has it and none can be found.
            Err(_) => namespace.of_generation(Generation::fresh()),
        };
        self.forget_all(now);
        stored_namespace.map(drop).map_err(StoreError::NotRenewed)
    }

    /// Writes a new generation for each namespace that was served so far, which invalidates its
    /// objects. Returns the new namespace with its generation.
    fn record_renewal(&mut self, namespace: &Namespace) -> Result<Namespace, BackendError> {
        while let Some(&ended) = self.unrecorded.last() {
            self.backend.record_generation(ended, Generation::fresh(), true)?;
            self.unrecorded.pop();
        }
        let stored_namespace = backend::current_namespace(self.backend.as_ref(), namespace)?;
        self.stats.last_error = self
            .backend
            .describe(&stored_namespace)
            .err()
            .map(|error| error.to_string())
            .or(self.stats.last_error.take());
        Ok(stored_namespace)
    }

    fn forget_all(&mut self, now: Duration) {
        let before = self.directory.held();
        self.namespace = self.stored_namespace.digest();
        self.directory.renew(self.namespace);
        self.answers.forget_all();
        self.stats.removed += before as u64;
        let mut missed = Vec::new();
        for flight in self.flights.values_mut() {
            drop(flight.staged_slot.as_ref().and_then(StagedSlot::take));
            let objects = flight.objects();
            missed.extend(flight.report.take().map(|target| (target, flight.kind, objects)));
        }
        for ((job, first), kind, objects) in missed {
            self.stats.misses += u64::from(kind == Kind::Read);
            (first..first + objects).for_each(|at| self.settle(job, at, Err(Why::Absent)));
        }
        self.clear_next(now);
    }

    /// Processes finished tasks and passed deadlines. Appends the jobs that are now complete to `out`,
    /// oldest first.
    pub fn poll(&mut self, now: Duration, out: &mut Vec<Completion>) {
        self.ended.clear_event();
        while let Some(done) = self.ended.take() {
            self.process_end(done, now);
        }
        self.expire(now);
        self.clear_next(now);
        self.stats.opened = self.breaker.opened();
        let ended = self.jobs.iter().filter(|(_, job)| job.left == 0).map(|(&job, _)| job);
        for job in ended.collect::<Vec<_>>() {
            out.extend(self.jobs.remove(&job).map(|ended| Completion { job, objects: ended.objects }));
        }
    }

    /// Like [`Self::poll`], but waits up to `at_most` for a task to end, if any task is in flight. Use
    /// it for a shutdown, or on a thread of your own. A scheduler calls [`Self::poll`].
    pub fn wait(&mut self, now: Duration, at_most: Duration, out: &mut Vec<Completion>) {
        if !self.flights.is_empty() && self.jobs.values().all(|job| job.left > 0) {
            let deadline = self.deadlines.front().map(|&(deadline, _)| deadline.saturating_sub(now));
            self.waiter().wait(deadline.map_or(at_most, |left| left.min(at_most)));
        }
        self.poll(now, out);
    }

    /// Returns a file descriptor that is readable when [`Self::poll`] has something to process. A
    /// thread or an event loop can wait for it while others call the store. Deadlines do not make it
    /// readable.
    #[must_use]
    pub fn waiter(&self) -> Waiter {
        self.ended.waiter()
    }

    /// Whether no task is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Returns counters and sizes of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            objects: self.directory.held() as u64,
            bytes: self.directory.taken() as u64 * self.backend.object_bytes(),
            capacity_bytes: u64::from(self.backend.places()) * self.backend.object_bytes(),
            in_flight: self.flights.len() as u64,
            quarantined: self
                .flights
                .values()
                .filter(|flight| flight.report.is_none() && flight.kind != Kind::Clear)
                .count() as u64,
            ..self.stats.clone()
        }
    }

    /// Recomputes every count and compares it with the stored value, for tests and tools. O(places).
    ///
    /// # Errors
    /// A text that describes the first inconsistency.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.directory.check_invariants()
    }

    /// Closes the store. Drops the tasks that no worker has begun, and waits for the others as long as
    /// the back end takes. Dropping a store does not wait.
    pub fn close(mut self) {
        self.queue.close();
        for worker in self.workers.drain(..) {
            drop(worker.join()); // a worker that panicked has reported it
        }
    }

    fn check_len(&self, len: u32) -> Result<(), StoreError> {
        let most = self.arena.slot_bytes().min(self.backend.max_payload());
        if len == 0 || len > most { Err(StoreError::PayloadLength { len, most }) } else { Ok(()) }
    }

    fn begin(&mut self, objects: usize) -> JobId {
        let job = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(job, Job { objects: vec![Err(Why::Pending); objects], left: objects });
        job
    }

    /// Sets the result of the object with index `at` in a job.
    fn settle(&mut self, job: JobId, at: usize, result: Result<(), Why>) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.objects[at] = result;
            job.left -= 1;
        }
    }

    /// Checks whether the circuit breaker and the queue allow another task. Clearings do not count,
    /// because [`Self::clear_next`] limits them separately.
    fn has_room(&mut self, now: Duration) -> Result<(), Why> {
        if !self.breaker.would_pass(now) {
            self.stats.unavailable += 1;
            return Err(Why::Unavailable);
        }
        if self.flights.len() - self.clearing >= self.config.queue {
            self.stats.busy += 1;
            return Err(Why::Busy);
        }
        Ok(())
    }

    fn send(&mut self, flight: Flight, now: Duration, work: Work) {
        let id = self.next_task;
        self.next_task += 1;
        self.clearing += usize::from(flight.kind == Kind::Clear);
        self.flights.insert(id, flight);
        self.deadlines.push_back((now.saturating_add(self.config.deadline), id));
        self.queue.push(Task { id, namespace: self.namespace, work });
    }

    /// Sends tasks that clear the places of removed or damaged objects, unless the circuit breaker is
    /// open. If a task fails, its place is cleared again later.
    fn clear_next(&mut self, now: Duration) {
        while self.clearing < self.config.queue
            && self.breaker.would_pass(now)
            && let Some((place, names)) = self.directory.next_to_clear()
        {
            self.breaker.pass(now);
            let asked = names.iter().map(|name| name.key).collect();
            let flight = Flight { asked, place: Some(place), ..Flight::of(Kind::Clear) };
            self.send(flight, now, Work::Clear { place: Some(place), names });
        }
    }

    /// Records whether a shared back end has an object.
    fn record_answer(&mut self, key: ObjectKey, there: bool, now: Duration) {
        if !there {
            self.directory.lose(&key);
        }
        self.answers.report(key, there, now, self.next_task);
    }

    /// Asks a shared back end to remove objects that have no place in this store.
    fn remove_unknown(&mut self, keys: &[ObjectKey], now: Duration) {
        let namespace = self.namespace;
        let unknown = keys.iter().filter(|key| self.directory.find(key).is_none());
        let names: Vec<_> = unknown.map(|&key| ObjectName { namespace, key }).collect();
        for names in names.chunks(ASKED_AT_ONCE) {
            names.iter().for_each(|name| self.record_answer(name.key, false, now));
            if self.has_room(now).is_ok() {
                self.breaker.pass(now);
                let asked: Vec<_> = names.iter().map(|name| name.key).collect();
                asked.iter().for_each(|&key| self.directory.set_leaving(key, true));
                let flight = Flight { asked, ..Flight::of(Kind::Clear) };
                self.send(flight, now, Work::Clear { place: None, names: names.to_vec() });
            }
        }
    }
}

/// Returns an error if the caller's namespace has a generation, because only the back end chooses
/// generations.
fn check_namespace(namespace: &Namespace) -> Result<(), StoreError> {
    if !namespace.has_generation() {
        return Ok(());
    }
    Err(StoreError::InvalidConfig {
        field: "namespace.extra",
        value: "a namespace with a generation".into(),
        expected: "the namespace of the engine, without the generation that a store adds",
    })
}

impl Drop for Store {
    fn drop(&mut self) {
        self.queue.close();
    }
}

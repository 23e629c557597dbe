//! `TransferEngine`: copies between stores, asynchronously or in the order of a stream.
//!
//! Owns: the streams and staging buffers of one device, a worker thread, and the list of transfers
//! under way. On the CPU, the worker thread replaces the streams of a device. Programs therefore behave
//! the same on both: `submit` returns at once, and transfers finish in order.
//!
//! Every check is done before anything is enqueued. The engine refuses closed stores, stores whose
//! blocks differ, ids out of range, duplicates, overlaps, and methods that cannot do the copy.
//!
//! Costs: O(pairs * regions), plus a microsecond. A kernel needs one launch per 480 pairs, for any
//! number of regions.

mod bounce;
mod calibrate;
mod copy;
mod cuda;
mod flights;
mod job;
mod plan;
mod submit;
mod transfer;
mod worker;

use std::ops::Range;
use std::process;
use std::sync::{Arc, LazyLock, Mutex as StaticMutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;

use bounce::Bounce;
pub use calibrate::{Calibration, Card, Measurement};
use cuda::Cuda;
use flights::Flights;
use job::Job;
pub use plan::Move;
pub use transfer::Transfer;
use worker::Worker;

use crate::cpu;
use crate::driver::{Context, Event, StreamHandle};
use crate::error::TransferError;
use crate::mapping;
use crate::planner::{Direction, Question, Thresholds};
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::words::Device;
use crate::words::Method;

/// The work that has to finish before a submitted copy begins.
#[derive(Clone, Debug)]
pub enum After {
    /// Nothing, because the caller has already ordered the work.
    Nothing,
    /// All work that is on this stream when `submit` is called.
    Stream(StreamHandle),
    /// An event, by its driver handle (`torch.cuda.Event.cuda_event`).
    Event(u64),
    /// Another transfer.
    Transfer(Arc<Transfer>),
}

/// Options of a submitted copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// The work that has to finish before the copy begins.
    pub after: After,
    /// First region to copy, and the index after the last one. `None` copies all regions.
    pub regions: Option<(usize, usize)>,
    /// The method of the copy.
    pub method: Method,
}

impl Default for Options {
    fn default() -> Self {
        Self { after: After::Nothing, regions: None, method: Method::Auto }
    }
}

/// Settings of an engine.
///
/// ```
/// use kvpool_transfer::{Device, EngineConfig, TransferEngine};
/// let engine = TransferEngine::new(Device::Cpu, EngineConfig { threads: 2, ..EngineConfig::default() })?;
/// assert_eq!(engine.num_in_flight(), 0);
/// engine.close();
/// # Ok::<(), kvpool_transfer::TransferError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Number of threads that share one copy by the processor.
    pub threads: usize,
    /// Size in bytes of each staging buffer. A device has four of them.
    pub staging_bytes: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = cpu::default_threads();
        Self { threads, staging_bytes: 32 << 20 }
    }
}

/// Copies blocks between the stores of one device and the host.
pub struct TransferEngine {
    device: Device,
    process: u32,
    threads: usize,
    cuda: Option<Mutex<Cuda>>,
    thresholds: RwLock<Thresholds>,
    worker: Worker,
    bounce: Mutex<Option<Bounce>>,
    flights: Flights,
    next_id: AtomicU64,
    closed: AtomicBool,
}

type Engines = StaticMutex<HashMap<Device, Arc<TransferEngine>>>;

static ENGINES: LazyLock<Engines> = LazyLock::new(Engines::default);

impl TransferEngine {
    /// Creates an engine for a device.
    ///
    /// # Errors
    /// [`TransferError::Unavailable`], [`TransferError::Cuda`], [`TransferError::Argument`].
    pub fn new(device: Device, config: EngineConfig) -> Result<Arc<Self>, TransferError> {
        let refuse = |name, value: String, expected: &str| {
            Err(TransferError::Argument { name, value, expected: expected.into() })
        };
        if config.threads == 0 || config.threads > 1024 {
            return refuse("threads", config.threads.to_string(), "1 to 1024");
        }
        if config.staging_bytes < 4096 || config.staging_bytes > 1 << 40 {
            return refuse("staging_bytes", config.staging_bytes.to_string(), "4 KiB to 1 TiB");
        }
        let cuda = match device {
            Device::Cpu => None,
            Device::Cuda(ordinal) => Some(Cuda::new(Context::of(ordinal)?, config.staging_bytes)?),
        };
        let coherent = cuda.as_ref().is_some_and(|cuda| cuda.context.coherent);
        let thresholds = if coherent { Thresholds::coherent() } else { Thresholds::default() };
        Ok(Arc::new(Self {
            device,
            process: process::id(),
            threads: config.threads,
            cuda: cuda.map(Mutex::new),
            thresholds: RwLock::new(thresholds),
            worker: Worker::new(),
            bounce: Mutex::new(None),
            flights: Flights::default(),
            next_id: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }))
    }

    /// Returns the default engine of a device, for operations that do not specify an engine. The first
    /// call creates it.
    ///
    /// # Errors
    /// Like [`Self::new`].
    pub fn shared(device: Device) -> Result<Arc<Self>, TransferError> {
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        match engines.get(&device) {
            Some(engine) if engine.process == process::id() => Ok(engine.clone()),
            _ => {
                let engine = Self::new(device, EngineConfig::default())?;
                let former = engines.insert(device, engine.clone());
                // Release the lock first, then drop the engine of the process before the fork. That
                // engine holds stores, and the destructor of a store's owner may call this function.
                drop(engines);
                drop(former);
                Ok(engine)
            }
        }
    }

    /// The device of the engine.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns the thresholds that the planner uses.
    #[must_use]
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Chooses the method of a copy. Also returns the number of thread blocks for a kernel that crosses
    /// the link between host and device.
    fn choose(&self, question: Question, method: Method) -> Result<(Method, u32), TransferError> {
        let thresholds = self.thresholds.read().unwrap_or_else(PoisonError::into_inner);
        Ok((question.choose(method, &thresholds)?, thresholds.link_ctas))
    }

    fn link_ctas(&self) -> u32 {
        self.thresholds.read().unwrap_or_else(PoisonError::into_inner).link_ctas
    }

    /// Returns the number of copies that have not finished. Checks every copy in the list.
    #[must_use]
    pub fn num_in_flight(&self) -> usize {
        self.flights.num_under_way()
    }

    fn check_open(&self) -> Result<(), TransferError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(TransferError::EngineClosed);
        }
        let this = process::id();
        if this == self.process { Ok(()) } else { Err(TransferError::Forked { made_by: self.process, this }) }
    }

    /// Checks all arguments of a copy. Returns a job that only has to be enqueued.
    fn check(
        &self,
        src: &Arc<Store>,
        dst: &Arc<Store>,
        raw: impl ExactSizeIterator<Item = (i64, i64)>,
        regions: Option<(usize, usize)>,
    ) -> Result<Job, TransferError> {
        self.check_open()?;
        let range = Self::check_stores(src, dst, regions)?;
        let pairs = mapping::check(src, dst, raw, &range)?;
        Ok(Job { src: src.clone(), dst: dst.clone(), pairs: Arc::new(pairs), range })
    }

    fn check_stores(
        src: &Store,
        dst: &Store,
        regions: Option<(usize, usize)>,
    ) -> Result<Range<usize>, TransferError> {
        src.check_open()?;
        dst.check_open()?;
        src.check_alike(dst)?;
        let count = src.regions().len();
        match regions {
            None => Ok(0..count),
            Some((first, end)) if first < end && end <= count => Ok(first..end),
            Some((first, end)) => Err(TransferError::Argument {
                name: "regions",
                value: format!("({first}, {end})"),
                expected: format!("the first and the end of a range within the {count} regions, not empty"),
            }),
        }
    }

    /// Returns the direction of a copy between two stores on this engine. `None` means a copy by the
    /// processor.
    fn direction(&self, src: &Store, dst: &Store) -> Result<Option<Direction>, TransferError> {
        let refuse = TransferError::Devices { engine: self.device, src: src.device(), dst: dst.device() };
        match (src.device(), dst.device()) {
            (Device::Cpu, Device::Cpu) => Ok(None),
            (from, to) if from == self.device && to == self.device => Ok(Some(Direction::OnDevice)),
            (Device::Cpu, to) if to == self.device => Ok(Some(Direction::ToDevice)),
            (from, Device::Cpu) if from == self.device => Ok(Some(Direction::ToHost)),
            _ => Err(refuse),
        }
    }

    /// Returns an error for a method that a copy between two host stores does not support.
    fn check_cpu_method(method: Method) -> Result<(), TransferError> {
        match method {
            Method::Auto | Method::Cpu => Ok(()),
            method => Err(TransferError::Method { method, reason: "both stores are on the cpu" }),
        }
    }

    /// Locks the device side of the engine for new work. `close` waits for threads that hold this lock.
    fn open_cuda(&self) -> Result<MutexGuard<'_, Cuda>, TransferError> {
        let cuda = self.cuda()?;
        self.check_open()?;
        Ok(cuda)
    }

    fn cuda(&self) -> Result<MutexGuard<'_, Cuda>, TransferError> {
        let cuda = self.cuda.as_ref().ok_or(TransferError::EngineClosed)?;
        Ok(cuda.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks this thread until all work of a stream has finished. Does nothing on the CPU, which has
    /// no streams.
    fn wait_for_stream(&self, stream: StreamHandle) -> Result<(), TransferError> {
        let Some(cuda) = &self.cuda else { return Ok(()) };
        let context = cuda.lock().unwrap_or_else(PoisonError::into_inner).context.clone();
        Ok(Event::record(&context, stream)?.synchronize()?)
    }

    /// Returns the transfers that have finished or failed since the last call, at most the latest
    /// 65,536. Omits the transfers whose end `wait` or `is_done` has already reported.
    ///
    /// # Errors
    /// [`TransferError::DeviceIndex`] if a mapping on the device contained ids out of range. The next
    /// call returns the transfers.
    pub fn poll(&self) -> Result<Vec<Arc<Transfer>>, TransferError> {
        if let Some(cuda) = &self.cuda
            && cuda.lock().unwrap_or_else(PoisonError::into_inner).context.take_status()
        {
            return Err(TransferError::DeviceIndex);
        }
        Ok(self.flights.poll())
    }

    /// Waits until all transfers submitted so far have finished. `poll` still returns these transfers
    /// afterwards.
    ///
    /// # Errors
    /// [`TransferError::Timeout`].
    pub fn wait_all(&self, timeout: Option<Duration>) -> Result<(), TransferError> {
        let start = std::time::Instant::now();
        let all = self.flights.all();
        all.iter().try_for_each(|transfer| {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            transfer.sleep(left)
        })
    }

    /// Closes the engine: refuses new work, waits for the work under way, and stops the worker thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.process == process::id() {
            // Take and release the locks of the device side and of the worker. Threads that began a
            // submission before the engine was closed hold them, so all of their work is enqueued after
            // this.
            drop(self.cuda());
            self.worker.join();
            let _ = self.wait_all(None);
        }
    }

    /// Whether the engine was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for TransferEngine {
    /// Waits for the transfers that are on a stream, because they use the memory of stores. No job is
    /// in the worker's queue now, because a queued job holds a reference to the engine. The worker
    /// thread itself may drop the last reference, so it may run this.
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        if self.process == process::id() {
            for transfer in self.flights.all().iter().filter(|transfer| transfer.is_enqueued()) {
                let _ = transfer.sleep(None);
            }
            self.worker.join();
        }
    }
}

//! `TransferEngine`: copies between stores, asynchronously or in the order of a stream.
//!
//! Owns: the streams and staging buffers of one device, a worker thread, and the list of what is under
//! way. On the CPU the worker thread is what a stream is on a device, so programs behave alike:
//! `submit` returns at once, transfers end in order.
//!
//! Whatever can be refused is refused before anything is enqueued: closed stores, stores that differ,
//! ids out of range, duplicates, overlaps, methods that cannot do the copy.
//!
//! Costs: O(pairs * regions), and a microsecond; with a kernel one launch per 480 pairs, whatever the
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

/// What a submitted copy waits for.
#[derive(Clone, Debug)]
pub enum After {
    /// Nothing: whoever submits has seen to it.
    Nothing,
    /// What is on a stream now.
    Stream(StreamHandle),
    /// An event, by its driver handle (`torch.cuda.Event.cuda_event`).
    Event(u64),
    /// Another transfer.
    Transfer(Arc<Transfer>),
}

/// How to submit a copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it waits for.
    pub after: After,
    /// Which regions are copied: all of them, unless told otherwise.
    pub regions: Option<(usize, usize)>,
    /// How.
    pub method: Method,
}

impl Default for Options {
    fn default() -> Self {
        Self { after: After::Nothing, regions: None, method: Method::Auto }
    }
}

/// How to make an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Threads of a copy by the processor.
    pub threads: usize,
    /// Bytes of one of the four staging buffers on a device.
    pub staging_bytes: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = cpu::default_threads();
        Self { threads, staging_bytes: 32 << 20 }
    }
}

/// Copies between the stores of one device and the host.
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
    /// An engine of a device.
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

    /// The engine of a device that ops use which name none, made when first asked for.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn shared(device: Device) -> Result<Arc<Self>, TransferError> {
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        match engines.get(&device) {
            Some(engine) if engine.process == process::id() => Ok(engine.clone()),
            _ => {
                let engine = Self::new(device, EngineConfig::default())?;
                let former = engines.insert(device, engine.clone());
                // The engine of a process before a fork, with stores whose owners may ask for an engine
                // as they go.
                drop(engines);
                drop(former);
                Ok(engine)
            }
        }
    }

    /// Its device.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// What the planner goes by.
    #[must_use]
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The method for a copy, and the thread blocks of a kernel that crosses the link.
    fn choose(&self, question: Question, method: Method) -> Result<(Method, u32), TransferError> {
        let thresholds = self.thresholds.read().unwrap_or_else(PoisonError::into_inner);
        Ok((question.choose(method, &thresholds)?, thresholds.link_ctas))
    }

    fn link_ctas(&self) -> u32 {
        self.thresholds.read().unwrap_or_else(PoisonError::into_inner).link_ctas
    }

    /// Copies that have not ended, as far as anybody has looked.
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

    /// Checks everything that can be refused; what is left is to enqueue.
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
                expected: format!("first and end of a part of the {count} regions, not empty"),
            }),
        }
    }

    /// Which way a job goes here: `None` for the processor.
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

    /// The processor's copies know one method.
    fn check_cpu_method(method: Method) -> Result<(), TransferError> {
        match method {
            Method::Auto | Method::Cpu => Ok(()),
            method => Err(TransferError::Method { method, reason: "both stores are on the cpu" }),
        }
    }

    /// The device's side for new work: `close` waits for those who are in here.
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

    /// Waits on this thread for what is on a stream; the CPU has none.
    fn wait_for_stream(&self, stream: StreamHandle) -> Result<(), TransferError> {
        let Some(cuda) = &self.cuda else { return Ok(()) };
        let context = cuda.lock().unwrap_or_else(PoisonError::into_inner).context.clone();
        Ok(Event::record(&context, stream)?.synchronize()?)
    }

    /// Transfers that ended since the last time (the last 65,536 of them), failed ones included; those
    /// that `wait` or `is_done` told of are left out.
    ///
    /// # Errors
    /// [`TransferError::DeviceIndex`] if a mapping on the device held ids out of range. The next call
    /// goes on.
    pub fn poll(&self) -> Result<Vec<Arc<Transfer>>, TransferError> {
        if let Some(cuda) = &self.cuda
            && cuda.lock().unwrap_or_else(PoisonError::into_inner).context.take_status()
        {
            return Err(TransferError::DeviceIndex);
        }
        Ok(self.flights.poll())
    }

    /// Waits until everything submitted so far has ended, and tells nobody.
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

    /// Refuses new work, waits for what is under way, and ends the worker thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.process == process::id() {
            // Who found the engine open has enqueued by the time that both locks were taken once.
            drop(self.cuda());
            self.worker.join();
            let _ = self.wait_all(None);
        }
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for TransferEngine {
    /// What is queued holds the engine, so there is none of it now; the last of it may be what drops
    /// the engine, on the worker thread itself. What is on the device is waited for: its stores are
    /// held here.
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

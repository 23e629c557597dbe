//! `TransferEngine`: copies between stores, asynchronously or in the order of a stream.
//!
//! Owns: the streams and staging buffers of one device, a worker thread, and the list of what is under way. On the CPU the
//! worker thread is what a stream is on a device, so programs behave alike: `submit` returns at once, transfers end in order.
//!
//! Whatever can be refused is refused before anything is enqueued: closed stores, stores that differ, ids out of range,
//! duplicates, overlaps, methods that cannot do the copy.
//!
//! Costs: O(pairs * regions), and a microsecond; with a kernel one launch per 480 pairs, whatever the number of regions.

mod calibrate;
mod cuda;
mod plan;
mod transfer;
mod worker;

use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hashbrown::HashMap;

pub use calibrate::{Calibration, Card, Measurement};
use cuda::{Bounce, Cuda, Job, SLOTS, Shape, Way, bounce_copy};
pub use plan::Move;
use transfer::Held;
pub use transfer::Transfer;
use worker::Worker;

use crate::cpu;
use crate::driver::{Context, Event, StreamHandle};
use crate::error::TransferError;
use crate::mapping;
use crate::memory::Span;
use crate::planner::{Direction, Method, Thresholds};
use crate::store::{Device, Store};

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
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Threads of a copy by the processor.
    pub threads: usize,
    /// Bytes of one of the four staging buffers on a device.
    pub staging_bytes: u64,
    /// What the planner goes by.
    pub thresholds: Thresholds,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = cpu::default_threads();
        Self { threads, staging_bytes: 32 << 20, thresholds: Thresholds::default() }
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
    in_flight: Mutex<Vec<Arc<Transfer>>>,
    next_id: AtomicU64,
    closed: AtomicBool,
}

static ENGINES: LazyLock<Mutex<HashMap<Device, Arc<TransferEngine>>>> = LazyLock::new(Mutex::default);

/// From so many entries on, a new transfer looks for those that need no poll.
const SWEEP: usize = 64;

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
            Device::Cuda(ordinal) => {
                Some(Mutex::new(Cuda::new(Context::of(ordinal)?, config.staging_bytes)?))
            }
        };
        Ok(Arc::new(Self {
            device,
            process: process::id(),
            threads: config.threads,
            cuda,
            thresholds: RwLock::new(config.thresholds),
            worker: Worker::default(),
            bounce: Mutex::new(None),
            in_flight: Mutex::default(),
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
                engines.insert(device, engine.clone());
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

    /// Copies that have not ended, as far as anybody has looked.
    #[must_use]
    pub fn num_in_flight(&self) -> usize {
        self.flights().iter().filter(|transfer| !transfer.has_ended()).count()
    }

    fn flights(&self) -> MutexGuard<'_, Vec<Arc<Transfer>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
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
        Ok(Job { src: src.clone(), dst: dst.clone(), pairs, range })
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

    fn cuda(&self) -> Result<MutexGuard<'_, Cuda>, TransferError> {
        let cuda = self.cuda.as_ref().ok_or(TransferError::EngineClosed)?;
        Ok(cuda.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn remember(&self, transfer: &Arc<Transfer>) {
        let mut flights = self.flights();
        if flights.len() >= SWEEP {
            // Ends that were told need no poll.
            flights.retain(|one| one.is_news());
        }
        flights.push(transfer.clone());
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a copy and returns at once. Transfers of one direction end in the order in which they were submitted.
    ///
    /// # Errors
    /// Every [`TransferError`] but those that only a transfer ends with; nothing has been enqueued then.
    pub fn submit(
        self: &Arc<Self>,
        src: &Arc<Store>,
        dst: &Arc<Store>,
        raw: impl ExactSizeIterator<Item = (i64, i64)>,
        options: &Options,
    ) -> Result<Arc<Transfer>, TransferError> {
        let direction = self.direction(src, dst)?;
        let job = self.check(src, dst, raw, options.regions)?;
        if let After::Transfer(other) = &options.after {
            other.check_process()?;
        }
        self.start(job, direction, options)
    }

    /// Starts a checked copy.
    fn start(
        self: &Arc<Self>,
        job: Job,
        direction: Option<Direction>,
        options: &Options,
    ) -> Result<Arc<Transfer>, TransferError> {
        let Some(direction) = direction else {
            Self::check_cpu_method(options.method)?;
            return self.start_on_worker(job, None, Method::Cpu, options);
        };
        let mut cuda = self.cuda()?;
        if let After::Stream(stream) = options.after
            && cuda.context.is_capturing(stream)?
        {
            return Err(TransferError::Capturing(
                "a submitted copy runs on the engine's own streams; use copy",
            ));
        }
        cuda.context.check_alive()?;
        let question = cuda.question(&job, direction, None, false);
        let thresholds = self.thresholds();
        let method = match options.method {
            Method::Auto => question.answer(&thresholds)?,
            forced => question.obstacle(forced).map_or(Ok(forced), Err)?,
        };
        if job.pairs.is_empty() {
            return Ok(self.empty(method));
        }
        let pageable = direction != Direction::OnDevice && !question.pinned && method == Method::Staged;
        let waits = matches!(&options.after, After::Transfer(other) if !other.is_enqueued());
        if pageable || waits || self.worker.is_busy() {
            // In order behind what the worker has; a stream or an event is waited for on the device, from now on.
            let stream = cuda.stream(direction);
            let options =
                Options { after: Self::wait_now(&cuda.context, stream, &options.after)?, ..options.clone() };
            drop(cuda);
            return self.start_on_worker(job, Some(direction), method, &options);
        }
        let settled = !matches!(options.after, After::Event(_) | After::Transfer(_))
            && job.src.writers.load(Ordering::Acquire) == 0;
        let way = Way { direction, method, inline: None, settled, link_ctas: thresholds.link_ctas };
        let stream = cuda.stream(direction);
        Self::wait_now(&cuda.context, stream, &options.after)?;
        let held = Held::new(&job.src, &job.dst);
        let context = cuda.context.clone();
        let start = Event::record(&context, stream)?;
        cuda.enqueue(&job, way)?;
        let end = Event::record(&context, stream)?;
        let transfer = Transfer::enqueued(self.id(), job.nbytes(), method, self.device, [start, end], held);
        self.remember(&transfer);
        Ok(transfer)
    }

    /// Makes a stream of the engine wait for what the device knows of, and returns what it does not know of.
    fn wait_now(context: &Arc<Context>, stream: StreamHandle, after: &After) -> Result<After, TransferError> {
        match after {
            After::Nothing => {}
            After::Stream(other) => context.wait(stream, Event::record(context, *other)?.raw())?,
            After::Event(event) => context.wait(stream, *event)?,
            After::Transfer(other) if other.is_enqueued() => other.wait_on(stream)?,
            After::Transfer(_) => return Ok(after.clone()),
        }
        Ok(After::Nothing)
    }

    fn empty(&self, method: Method) -> Arc<Transfer> {
        let transfer = Transfer::empty(self.id(), method, self.device);
        self.remember(&transfer);
        transfer
    }

    /// Starts a copy that the processor makes, or has a part in.
    fn start_on_worker(
        self: &Arc<Self>,
        job: Job,
        direction: Option<Direction>,
        method: Method,
        options: &Options,
    ) -> Result<Arc<Transfer>, TransferError> {
        let transfer = Transfer::queued(self.id(), job.nbytes(), method, self.device);
        let held = Held::new(&job.src, &job.dst);
        let after = options.after.clone();
        let engine = self.clone();
        let work = move || {
            let _held = held;
            match after {
                After::Transfer(other) => other.sleep(None)?,
                After::Stream(stream) => engine.wait_for_stream(stream)?,
                After::Event(event) => engine.wait_for_event(event)?,
                After::Nothing => {}
            }
            match direction {
                None => {
                    cpu::copy(&job.src, &job.dst, &job.pairs, job.range.clone(), engine.threads);
                    Ok(())
                }
                Some(direction) => engine.cross(&job, direction, method),
            }
        };
        self.worker.queue(transfer.clone(), work)?;
        self.remember(&transfer);
        Ok(transfer)
    }

    /// Waits on this thread for what is on a stream; the CPU has none.
    fn wait_for_stream(&self, stream: StreamHandle) -> Result<(), TransferError> {
        let Some(cuda) = &self.cuda else { return Ok(()) };
        let context = cuda.lock().unwrap_or_else(PoisonError::into_inner).context.clone();
        Ok(Event::record(&context, stream)?.synchronize()?)
    }

    /// Waits on this thread for an event; the CPU has none.
    fn wait_for_event(&self, event: u64) -> Result<(), TransferError> {
        let Some(cuda) = &self.cuda else { return Ok(()) };
        let cuda = cuda.lock().unwrap_or_else(PoisonError::into_inner);
        let (context, stream) = (cuda.context.clone(), cuda.stream(Direction::OnDevice));
        context.wait(stream, event)?;
        let reached = Event::record(&context, stream)?;
        drop(cuda);
        Ok(reached.synchronize()?)
    }

    /// The worker's part of a copy between the device and the host: has ended on return.
    fn cross(&self, job: &Job, direction: Direction, method: Method) -> Result<(), TransferError> {
        let link_ctas = self.thresholds().link_ctas;
        let way = Way { direction, method, inline: None, settled: false, link_ctas };
        let host = if direction == Direction::ToHost { &job.dst } else { &job.src };
        if direction == Direction::OnDevice || host.is_pinned() || method != Method::Staged {
            let mut cuda = self.cuda()?;
            cuda.enqueue(job, way)?;
            let (context, stream) = (cuda.context.clone(), cuda.stream(direction));
            let end = Event::record(&context, stream)?;
            drop(cuda);
            return Ok(end.synchronize()?);
        }
        let to_host = direction == Direction::ToHost;
        let shape = Shape::of(host);
        let (context, slot_bytes) = {
            let cuda = self.cuda()?;
            (cuda.context.clone(), cuda.slot_bytes(&shape))
        };
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let bounce = Bounce::of(&mut bounce, &context, slot_bytes)?;
        let parts: Vec<_> = job.pairs.chunks((slot_bytes / shape.stride) as usize).collect();
        let mut ends: Vec<Arc<Event>> = Vec::with_capacity(parts.len());
        let result = (0..parts.len() + 1).try_for_each(|index| {
            // Buffers take turns: the processor works on one while the device works on the other.
            if index < parts.len() {
                let (part, buffer) = (parts[index], bounce.slot(index));
                if !to_host {
                    if index >= SLOTS {
                        ends[index - SLOTS].synchronize()?;
                    }
                    bounce_copy(host, buffer.address(), &shape, part, &job.range, false, self.threads);
                }
                let nbytes = part.len() as u64 * shape.stride;
                let host = buffer.device_address;
                let span = |slot| {
                    let (src, dst) = if to_host { (slot, host) } else { (host, slot) };
                    vec![Span { src, dst, nbytes }]
                };
                ends.push(self.cuda()?.stage(job, way, &shape, part, span)?);
            }
            if to_host && index > 0 {
                ends[index - 1].synchronize()?;
                let buffer = bounce.slot(index - 1).address();
                bounce_copy(host, buffer, &shape, parts[index - 1], &job.range, true, self.threads);
            }
            Ok(())
        });
        // Buffers and stores are free again only when the device has done with them, even after an error.
        let ended: Result<(), TransferError> = ends.iter().try_for_each(|end| Ok(end.synchronize()?));
        result.and(ended)
    }

    /// Copies in the order of the caller's stream: enqueued on return, and done if both stores are on the CPU.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn copy(
        &self,
        src: &Arc<Store>,
        dst: &Arc<Store>,
        raw: impl ExactSizeIterator<Item = (i64, i64)>,
        stream: StreamHandle,
        method: Method,
    ) -> Result<(), TransferError> {
        let direction = self.direction(src, dst)?;
        let job = self.check(src, dst, raw, None)?;
        self.copy_checked(&job, direction, stream, method)
    }

    fn copy_checked(
        &self,
        job: &Job,
        direction: Option<Direction>,
        stream: StreamHandle,
        method: Method,
    ) -> Result<(), TransferError> {
        let Some(direction) = direction else {
            Self::check_cpu_method(method)?;
            if self.cuda.is_some() {
                // The processor follows no stream: whatever moves host blocks has to end first.
                self.wait_for_stream(stream)?;
                self.wait_all(None)?;
            }
            cpu::copy(&job.src, &job.dst, &job.pairs, job.range.clone(), self.threads);
            return Ok(());
        };
        let mut cuda = self.cuda()?;
        let context = cuda.context.clone();
        context.check_alive()?;
        let capturing = context.is_capturing(stream)?;
        let question = cuda.question(job, direction, Some(stream), capturing);
        let thresholds = self.thresholds();
        let method = match method {
            Method::Auto => question.answer(&thresholds)?,
            forced => question.obstacle(forced).map_or(Ok(forced), Err)?,
        };
        if job.pairs.is_empty() {
            return Ok(());
        }
        self.check_tables(job, capturing, method)?;
        let way =
            Way { direction, method, inline: Some(stream), settled: false, link_ctas: thresholds.link_ctas };
        self.hold(&context, job, stream, capturing, || cuda.enqueue(job, way))
    }

    /// As [`Self::copy`], of `n` rows of two 64-bit ids on the device, which the host never reads. Rows with a negative id are
    /// left out; so are ids out of range, which the next [`Self::poll`] reports. Duplicates and overlaps are not looked for.
    ///
    /// # Errors
    /// As [`Self::submit`], but for what only a look at the ids could tell.
    pub fn copy_mapped(
        &self,
        src: &Arc<Store>,
        dst: &Arc<Store>,
        address: u64,
        n: u64,
        stream: StreamHandle,
    ) -> Result<(), TransferError> {
        self.check_open()?;
        let range = Self::check_stores(src, dst, None)?;
        let Some(direction) = self.direction(src, dst)? else {
            let reason = "the mapping is on a device, and both stores are on the cpu";
            return Err(TransferError::Method { method: Method::Kernel, reason });
        };
        if n > i32::MAX as u64 {
            return Err(TransferError::Argument {
                name: "mapping",
                value: format!("of {n} rows"),
                expected: format!("at most {} rows", i32::MAX),
            });
        }
        let job = Job { src: src.clone(), dst: dst.clone(), pairs: Vec::new(), range };
        let cuda = self.cuda()?;
        let context = cuda.context.clone();
        context.check_alive()?;
        let capturing = context.is_capturing(stream)?;
        let question = cuda.question(&job, direction, Some(stream), capturing);
        question.obstacle(Method::Kernel).map_or(Ok(()), Err)?;
        if n == 0 {
            return Ok(());
        }
        self.check_tables(&job, capturing, Method::Kernel)?;
        let link_ctas = self.thresholds().link_ctas;
        self.hold(&context, &job, stream, capturing, || {
            cuda.enqueue_mapped(&job, stream, link_ctas, address, n)
        })
    }

    /// Region tables are uploaded with a call that no capture allows.
    fn check_tables(&self, job: &Job, capturing: bool, method: Method) -> Result<(), TransferError> {
        let Device::Cuda(ordinal) = self.device else { return Ok(()) };
        let there = job.src.has_table(ordinal) && job.dst.has_table(ordinal);
        if capturing && method == Method::Kernel && !there {
            return Err(TransferError::Capturing(
                "a store's region table is not on the device yet; copy once before the capture",
            ));
        }
        Ok(())
    }

    /// Enqueues on the caller's stream, and keeps the stores until that is done.
    fn hold(
        &self,
        context: &Arc<Context>,
        job: &Job,
        stream: StreamHandle,
        capturing: bool,
        enqueue: impl FnOnce() -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        if capturing {
            // No event of a capture can be asked for; the graph's owner keeps the stores open.
            job.src.captured.store(true, Ordering::Release);
            job.dst.captured.store(true, Ordering::Release);
            return enqueue();
        }
        let held = Held::new(&job.src, &job.dst);
        let start = Event::record(context, stream)?;
        enqueue()?;
        let end = Event::record(context, stream)?;
        let transfer = Transfer::enqueued(self.id(), 0, Method::Auto, self.device, [start, end], held);
        transfer.tell();
        self.remember(&transfer);
        Ok(())
    }

    /// Transfers that ended since the last time, failed ones included; those that `wait` or `is_done` told of are left out.
    ///
    /// # Errors
    /// [`TransferError::DeviceIndex`] if a mapping on the device held ids out of range. The next call goes on.
    pub fn poll(&self) -> Result<Vec<Arc<Transfer>>, TransferError> {
        if let Some(cuda) = &self.cuda
            && cuda.lock().unwrap_or_else(PoisonError::into_inner).context.take_status()
        {
            return Err(TransferError::DeviceIndex);
        }
        let mut ended = Vec::new();
        self.flights().retain(|transfer| {
            let over = transfer.has_ended();
            if over && transfer.tell() {
                ended.push(transfer.clone());
            }
            !over
        });
        Ok(ended)
    }

    /// Waits until everything submitted so far has ended, and tells nobody.
    ///
    /// # Errors
    /// [`TransferError::Timeout`].
    pub fn wait_all(&self, timeout: Option<Duration>) -> Result<(), TransferError> {
        let start = std::time::Instant::now();
        let all = self.flights().clone();
        all.iter().try_for_each(|transfer| {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            transfer.sleep(left)
        })
    }

    /// Refuses new work, waits for what is under way, and ends the worker thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.process == process::id() {
            let _ = self.wait_all(None);
            self.worker.join();
        }
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for TransferEngine {
    /// What is queued holds the engine, so there is none of it now; the last of it may be what drops the engine, on the worker
    /// thread itself. What is on the device is waited for: its stores are held here.
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        if self.process == process::id() {
            let flights = std::mem::take(&mut *self.flights());
            for transfer in flights.iter().filter(|transfer| transfer.is_enqueued()) {
                let _ = transfer.sleep(None);
            }
            self.worker.join();
        }
    }
}

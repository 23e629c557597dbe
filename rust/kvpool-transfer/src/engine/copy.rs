//! Copies that are ordered by the caller's stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::TransferEngine;
use super::cuda::Way;
use super::flights::Room;
use super::job::Job;
use super::transfer::{Held, Transfer};
use crate::cpu;
use crate::driver::{Context, Event, StreamHandle};
use crate::error::TransferError;
use crate::planner::Direction;
use crate::store::{Accessor, Claim, Store};
use crate::words::{Device, DeviceMapping, Method};

impl TransferEngine {
    /// Copies blocks in the order of the caller's stream. When this returns, the copy is enqueued. If
    /// both stores are on the CPU, the copy is finished.
    ///
    /// # Errors
    /// Like [`Self::submit`].
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

    pub(super) fn copy_checked(
        &self,
        job: &Job,
        direction: Option<Direction>,
        stream: StreamHandle,
        method: Method,
    ) -> Result<(), TransferError> {
        let Some(direction) = direction else {
            Self::check_cpu_method(method)?;
            if self.cuda.is_some() {
                if self.open_cuda()?.context.is_capturing(stream)? {
                    return Err(TransferError::Capturing(
                        "copies by the processor cannot be part of a graph",
                    ));
                }
                // The processor does not follow the order of streams. Therefore wait for all work that
                // may access the host blocks.
                self.wait_for_stream(stream)?;
                self.wait_all(None)?;
            }
            let claim = job.claim(Accessor::Processor);
            cpu::copy(&claim, &job.src, &job.dst, &job.pairs, job.range.clone(), self.threads);
            return Ok(());
        };
        // Reserve the place in the list of transfers, and acquire the guards, before taking any lock.
        // Both calls may wait.
        let room = self.flights.room()?;
        let claim = job.claim(Accessor::Device);
        let mut cuda = self.open_cuda()?;
        let context = cuda.context.clone();
        context.check_alive()?;
        let capturing = context.is_capturing(stream)?;
        let question = cuda.question(job, direction, Some(stream), capturing);
        let (method, link_ctas) = self.choose(question, method)?;
        if job.pairs.is_empty() {
            return Ok(());
        }
        self.check_tables(job, capturing, method)?;
        let way = Way { direction, method, inline: Some(stream), settled: false, link_ctas };
        self.hold((room, claim), &context, job, stream, capturing, || cuda.enqueue(job, way))
    }

    /// Copies the rows of a mapping on the device, like [`Self::copy`]. The host never reads the rows.
    /// Rows with -1 are skipped. Rows with ids out of range are also skipped, and the next
    /// [`Self::poll`] reports them. Duplicates and overlaps are not checked.
    ///
    /// # Errors
    /// Like [`Self::submit`], except for errors that would require reading the ids.
    pub fn copy_mapped(
        &self,
        src: &Arc<Store>,
        dst: &Arc<Store>,
        mapping: DeviceMapping,
        stream: StreamHandle,
        method: Method,
    ) -> Result<(), TransferError> {
        let n = mapping.rows;
        if !matches!(method, Method::Auto | Method::Kernel) {
            return Err(TransferError::Method { method, reason: "a mapping on a device takes the kernel" });
        }
        self.check_open()?;
        let range = Self::check_stores(src, dst, None)?;
        let Some(direction) = self.direction(src, dst)? else {
            let reason = "the mapping is on a device, and both stores are on the cpu";
            return Err(TransferError::Method { method: Method::Kernel, reason });
        };
        if mapping.device != self.device {
            return Err(TransferError::MappingDevice { mapping: mapping.device, engine: self.device });
        }
        if n > i32::MAX as u64 {
            return Err(TransferError::Argument {
                name: "mapping",
                value: format!("of {n} rows"),
                expected: format!("at most {} rows", i32::MAX),
            });
        }
        let job = Job { src: src.clone(), dst: dst.clone(), pairs: Arc::default(), range };
        // Reserve the place in the list of transfers, and acquire the guards, before taking any lock.
        // Both calls may wait.
        let room = self.flights.room()?;
        let claim = Claim::take([src, dst], None, &job.range, Accessor::Device);
        let cuda = self.open_cuda()?;
        let context = cuda.context.clone();
        context.check_alive()?;
        let capturing = context.is_capturing(stream)?;
        let question = cuda.question(&job, direction, Some(stream), capturing);
        let (method, link_ctas) = self.choose(question, Method::Kernel)?;
        if n == 0 {
            return Ok(());
        }
        self.check_tables(&job, capturing, method)?;
        let way = Way { direction, method, inline: Some(stream), settled: false, link_ctas };
        let enqueue = || cuda.enqueue_mapped(&job, way, stream, mapping);
        self.hold((room, claim), &context, &job, stream, capturing, enqueue)
    }

    /// Returns an error if a region table is missing on the device while the stream is being captured,
    /// because a capture allows no uploads.
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

    /// Enqueues a copy on the caller's stream. Keeps the stores and the guards of their blocks until
    /// the copy has finished.
    fn hold(
        &self,
        (room, claim): (Room<'_>, Claim),
        context: &Arc<Context>,
        job: &Job,
        stream: StreamHandle,
        capturing: bool,
        enqueue: impl FnOnce() -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        if capturing {
            // During a capture, the engine cannot find out when the copy ends. The owner of the graph
            // has to keep the stores open.
            job.src.captured.store(true, Ordering::Release);
            job.dst.captured.store(true, Ordering::Release);
            return enqueue();
        }
        let held = Held::new(&job.src, &job.dst, Some(claim));
        let start = Event::record(context, stream)?;
        enqueue()?;
        let end = Event::record(context, stream).inspect_err(|_| {
            let _ = context.synchronize(stream);
        })?;
        let transfer = Transfer::enqueued(self.id(), 0, Method::Auto, self.device, [start, end], held);
        transfer.report_end();
        room.keep(&transfer);
        Ok(())
    }
}

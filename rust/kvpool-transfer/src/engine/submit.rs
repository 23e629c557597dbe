//! Copies that run concurrently with the caller: on the engine's streams, or on its worker thread.

use std::sync::{Arc, PoisonError};

use super::bounce::{Bounce, bounce_copy};
use super::cuda::{SLOTS, Way};
use super::flights::Room;
use super::job::{Job, Shape};
use super::transfer::{Held, Transfer};
use super::{After, Options, TransferEngine};
use crate::cpu;
use crate::driver::{Context, Event, StreamHandle};
use crate::error::TransferError;
use crate::memory::Span;
use crate::planner::Direction;
use crate::store::{Accessor, Store};
use crate::sync::atomic::Ordering;
use crate::words::Method;

/// The event or transfer that has to finish before a job on the worker thread begins.
enum Gate {
    Open,
    Event(Event),
    Transfer(Arc<Transfer>),
}

impl Gate {
    fn pass(self) -> Result<(), TransferError> {
        match self {
            Self::Open => Ok(()),
            Self::Event(event) => Ok(event.synchronize()?),
            Self::Transfer(other) => {
                other.sleep(None)?;
                other.error().map_or(Ok(()), Err)
            }
        }
    }
}

impl TransferEngine {
    /// Starts a copy and returns at once. Transfers of one direction finish in the order of their
    /// submission.
    ///
    /// An engine keeps at most 131,072 transfers: those under way, and finished ones that were not yet
    /// polled. At this limit, the call first waits until at most 32,768 are under way. These transfers
    /// must not depend on anything that the same thread does later.
    ///
    /// # Errors
    /// Every [`TransferError`], except those that only occur while a transfer runs. If the call fails,
    /// nothing is enqueued.
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

    pub(super) fn start(
        self: &Arc<Self>,
        job: Job,
        direction: Option<Direction>,
        options: &Options,
    ) -> Result<Arc<Transfer>, TransferError> {
        if let After::Transfer(other) = &options.after
            && let Some(error) = other.error()
        {
            // The earlier transfer has failed. This copy would read what that transfer should have written.
            return Err(error);
        }
        // Reserve a place in the list here: before any lock is taken, because this call may wait, and
        // before the copy is on a stream.
        let room = self.flights.room()?;
        let Some(direction) = direction else {
            Self::check_cpu_method(options.method)?;
            return self.start_on_worker(room, job, None, Method::Cpu, self.gate(&options.after)?);
        };
        let mut cuda = self.open_cuda()?;
        cuda.context.check_alive()?;
        Self::check_capture(&cuda.context, &options.after)?;
        let question = cuda.question(&job, direction, None, false);
        let (method, link_ctas) = self.choose(question, options.method)?;
        if job.pairs.is_empty() {
            let transfer = Transfer::empty(self.id(), method, self.device);
            room.keep(&transfer);
            return Ok(transfer);
        }
        let pageable = direction != Direction::OnDevice && !question.pinned && method == Method::Staged;
        let waits = matches!(&options.after, After::Transfer(other) if other.is_queued());
        let queued = pageable || waits || self.worker.is_busy();
        let claim = if queued { None } else { job.try_claim(Accessor::Device) };
        let Some(claim) = claim else {
            // The processor does a part of this copy, so the copy becomes a job of the worker thread,
            // after earlier jobs. If it has to wait for a transfer of the worker, the worker waits. If
            // it has to wait for a stream or an event, the engine's stream waits, from now on.
            let gate = match &options.after {
                After::Transfer(other) if waits => Gate::Transfer(other.clone()),
                after => {
                    Self::wait_now(&cuda.context, cuda.stream(direction), after)?;
                    Gate::Open
                }
            };
            drop(cuda);
            return self.start_on_worker(room, job, Some(direction), method, gate);
        };
        // The source is settled only if no other transfer writes to it, and if the caller passes no
        // work to wait for. Such work may write to the source.
        let settled = matches!(options.after, After::Nothing) && job.src.writers.load(Ordering::Acquire) == 0;
        let way = Way { direction, method, inline: None, settled, link_ctas };
        let stream = cuda.stream(direction);
        Self::wait_now(&cuda.context, stream, &options.after)?;
        let held = Held::new(&job.src, &job.dst, Some(claim));
        let context = cuda.context.clone();
        let start = Event::record(&context, stream)?;
        cuda.enqueue(&job, way)?;
        let end = Event::record(&context, stream).inspect_err(|_| cuda.drain(direction, None))?;
        let transfer = Transfer::enqueued(self.id(), job.nbytes(), method, self.device, [start, end], held);
        room.keep(&transfer);
        Ok(transfer)
    }

    /// Returns an error if the work to wait for is being captured. Otherwise the engine's streams would
    /// become part of the capture.
    fn check_capture(context: &Context, after: &After) -> Result<(), TransferError> {
        let captured = match *after {
            After::Stream(stream) => context.is_capturing(stream)?,
            After::Event(event) => context.is_captured(event)?,
            After::Nothing | After::Transfer(_) => false,
        };
        let what = "a submitted copy runs on the engine's own streams; use copy";
        if captured { Err(TransferError::Capturing(what)) } else { Ok(()) }
    }

    /// Makes a stream of the engine wait for the work that is already on the device.
    fn wait_now(context: &Arc<Context>, stream: StreamHandle, after: &After) -> Result<(), TransferError> {
        match after {
            // Handle 0 is an event that was never recorded, so there is no work to wait for.
            After::Nothing | After::Event(0) => {}
            After::Stream(other) => Event::record(context, *other)?.let_follow(stream)?,
            After::Event(event) => context.wait(stream, *event)?,
            After::Transfer(other) => other.let_follow(stream)?,
        }
        Ok(())
    }

    /// Returns what the worker thread has to wait for before a copy within the host begins. For a
    /// stream, this is an event that is recorded now.
    fn gate(&self, after: &After) -> Result<Gate, TransferError> {
        match after {
            After::Transfer(other) => Ok(Gate::Transfer(other.clone())),
            After::Stream(_) | After::Event(_) if self.cuda.is_some() => {
                let cuda = self.open_cuda()?;
                Self::check_capture(&cuda.context, after)?;
                let stream = cuda.stream(Direction::OnDevice);
                Self::wait_now(&cuda.context, stream, after)?;
                Ok(Gate::Event(Event::record(&cuda.context, stream)?))
            }
            _ => Ok(Gate::Open),
        }
    }

    /// Starts a copy of which the processor does all or a part. It becomes a job of the worker thread.
    fn start_on_worker(
        self: &Arc<Self>,
        room: Room<'_>,
        job: Job,
        direction: Option<Direction>,
        method: Method,
        gate: Gate,
    ) -> Result<Arc<Transfer>, TransferError> {
        let transfer = Transfer::queued(self.id(), job.nbytes(), method, self.device);
        let held = Held::new(&job.src, &job.dst, None);
        let engine = self.clone();
        let work = move || {
            let _held = held;
            gate.pass()?;
            match direction {
                None => {
                    let claim = job.claim(Accessor::Processor);
                    cpu::copy(&claim, &job.src, &job.dst, &job.pairs, job.range.clone(), engine.threads);
                    Ok(())
                }
                Some(direction) => engine.cross(&job, direction, method),
            }
        };
        self.worker.queue(transfer.clone(), work)?;
        room.keep(&transfer);
        Ok(transfer)
    }

    /// Copies the blocks of a job between the device and the host, on the worker thread. The copy is
    /// finished when this returns.
    fn cross(&self, job: &Job, direction: Direction, method: Method) -> Result<(), TransferError> {
        let link_ctas = self.link_ctas();
        let way = Way { direction, method, inline: None, settled: false, link_ctas };
        let host = if direction == Direction::ToHost { &job.dst } else { &job.src };
        if direction == Direction::OnDevice || host.is_pinned() || method != Method::Staged {
            let _claim = job.claim(Accessor::Device);
            let mut cuda = self.cuda()?;
            cuda.enqueue(job, way)?;
            let (context, stream) = (cuda.context.clone(), cuda.stream(direction));
            let end = Event::record(&context, stream).inspect_err(|_| cuda.drain(direction, None))?;
            drop(cuda);
            return Ok(end.synchronize()?);
        }
        let claim = job.claim(Accessor::Processor);
        let to_host = direction == Direction::ToHost;
        let shape = Shape::of(host);
        let (context, slot_bytes) = {
            let cuda = self.cuda()?;
            (cuda.context.clone(), cuda.slot_bytes(&shape))
        };
        self.cuda()?.begin(way)?;
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let bounce = Bounce::of(&mut bounce, &context, slot_bytes)?;
        let parts: Vec<_> = job.pairs.chunks((slot_bytes / shape.stride) as usize).collect();
        let mut ends: Vec<Arc<Event>> = Vec::with_capacity(parts.len());
        let result = (0..parts.len() + 1).try_for_each(|index| {
            // The two buffers alternate: the processor works on one while the device works on the
            // other.
            if index < parts.len() {
                let (part, buffer) = (parts[index], bounce.slot(index));
                if !to_host {
                    if index >= SLOTS {
                        ends[index - SLOTS].synchronize()?;
                    }
                    bounce_copy(&claim, job, buffer.address(), &shape, part, false, self.threads);
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
                bounce_copy(&claim, job, buffer, &shape, parts[index - 1], true, self.threads);
            }
            Ok(())
        });
        // Wait for all events, even after an error. Only then does the device no longer use the buffers
        // and stores.
        let ended: Result<(), TransferError> = ends.iter().try_for_each(|end| Ok(end.synchronize()?));
        if result.is_err() {
            self.cuda()?.drain(direction, None);
        }
        result.and(ended)
    }
}

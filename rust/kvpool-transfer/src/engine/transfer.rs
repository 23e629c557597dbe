//! `Transfer`: a copy under way.
//!
//! A transfer keeps its two stores alive until it has finished, so that their memory is not freed
//! during the copy. It finishes once, either with its duration in seconds or with an error. The first
//! query after that stores the final state.

use std::process;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::{Event, StreamHandle};
use crate::error::TransferError;
use crate::store::{Claim, Store};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::words::Device;
use crate::words::Method;

/// The stores of a copy under way, and the guards of its blocks if it has acquired them.
#[derive(Debug)]
pub(crate) struct Held {
    _src: Arc<Store>,
    dst: Arc<Store>,
    claim: Option<Claim>,
}

impl Held {
    pub(crate) fn new(src: &Arc<Store>, dst: &Arc<Store>, claim: Option<Claim>) -> Self {
        dst.writers.fetch_add(1, Ordering::AcqRel);
        Self { _src: src.clone(), dst: dst.clone(), claim }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.dst.writers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
enum State {
    /// The transfer is in the queue of the worker thread.
    Queued,
    /// The transfer is on a stream.
    Enqueued { start: Event, end: Arc<Event>, _held: Held },
    /// The transfer has finished, with or without an error.
    Ended { seconds: f64, error: Option<TransferError> },
}

/// The states that finished transfers had before. They may own memory of the caller, so the engine
/// drops them only after it has released its lock.
#[derive(Default)]
pub(super) struct EndedStates(Vec<State>);

/// A copy that was submitted.
#[derive(Debug)]
pub struct Transfer {
    /// Number of the transfer. An engine numbers its transfers in the order of their submission.
    pub id: u64,
    /// Number of bytes that the transfer copies.
    pub nbytes: u64,
    /// Method of the copy.
    pub method: Method,
    device: Device,
    process: u32,
    state: Mutex<State>,
    ended: Condvar,
    /// Whether the end was reported to the caller. If true, `poll` does not report it again.
    reported: AtomicBool,
}

/// Longest sleep between two queries of an event.
const NAP: Duration = Duration::from_micros(200);

impl Transfer {
    pub(super) fn queued(id: u64, nbytes: u64, method: Method, device: Device) -> Arc<Self> {
        Arc::new(Self::with(id, nbytes, method, device, State::Queued))
    }

    pub(super) fn enqueued(
        id: u64,
        nbytes: u64,
        method: Method,
        device: Device,
        events: [Event; 2],
        held: Held,
    ) -> Arc<Self> {
        let [start, end] = events;
        let end = Arc::new(end);
        if let Some(claim) = &held.claim {
            claim.ends_with(&end);
        }
        let state = State::Enqueued { start, end, _held: held };
        Arc::new(Self::with(id, nbytes, method, device, state))
    }

    /// Creates a transfer of no blocks, which is already finished.
    pub(super) fn empty(id: u64, method: Method, device: Device) -> Arc<Self> {
        Arc::new(Self::with(id, 0, method, device, State::Ended { seconds: 0.0, error: None }))
    }

    fn with(id: u64, nbytes: u64, method: Method, device: Device, state: State) -> Self {
        Self {
            id,
            nbytes,
            method,
            device,
            process: process::id(),
            state: Mutex::new(state),
            ended: Condvar::new(),
            reported: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the final state of the transfer. The worker calls this after success and after failure.
    pub(super) fn finish(&self, seconds: f64, error: Option<TransferError>) {
        *self.lock() = State::Ended { seconds, error };
        self.ended.notify_all();
    }

    /// Returns an error if this is a child of the process that submitted the transfer. A child has
    /// neither the threads nor the streams of its parent, so the transfer would never finish there.
    pub(super) fn check_process(&self) -> Result<(), TransferError> {
        let (made_by, this) = (self.process, process::id());
        if this == made_by { Ok(()) } else { Err(TransferError::Forked { made_by, this }) }
    }

    /// Checks whether the transfer has finished. If so, returns its former state. The caller has to
    /// drop this state without holding a lock. It may hold the last reference to memory of another
    /// owner, whose destructor may query this transfer.
    fn settle(&self, state: &mut State) -> Option<State> {
        let State::Enqueued { start, end, .. } = state else { return None };
        let outcome = match end.is_done() {
            Ok(false) => return None,
            Ok(true) => State::Ended { seconds: end.seconds_since(start), error: None },
            Err(error) => State::Ended { seconds: 0.0, error: Some(error.into()) },
        };
        self.ended.notify_all();
        Some(std::mem::replace(state, outcome))
    }

    /// Sets the transfer's state to finished if the copy has ended, and then calls `read` with the
    /// state.
    fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let mut state = self.lock();
        let held = self.settle(&mut state);
        let seen = read(&state);
        drop(state);
        drop(held);
        seen
    }

    /// Returns whether the transfer has finished. The engine holds a lock during this call. Therefore
    /// the state that the transfer had before is moved to `held`, so that the engine can drop it later.
    pub(super) fn has_ended_into(&self, held: &mut EndedStates) -> bool {
        let mut state = self.lock();
        held.0.extend(self.settle(&mut state));
        matches!(*state, State::Ended { .. })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.look(|state| matches!(state, State::Ended { .. }))
    }

    /// Whether the transfer is on a stream, so that other work can wait for its event.
    pub(super) fn is_enqueued(&self) -> bool {
        matches!(*self.lock(), State::Enqueued { .. })
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(*self.lock(), State::Queued)
    }

    /// Makes a stream wait for the transfer, if the transfer is on another stream and has not finished.
    /// This does not report a failure of the transfer.
    pub(super) fn let_follow(&self, stream: StreamHandle) -> Result<(), TransferError> {
        match &*self.lock() {
            State::Enqueued { end, .. } => Ok(end.let_follow(stream)?),
            _ => Ok(()),
        }
    }

    pub(super) fn was_reported(&self) -> bool {
        self.reported.load(Ordering::Acquire)
    }

    /// Marks the end as reported. Returns true if it was not reported before.
    pub(super) fn report_end(&self) -> bool {
        !self.reported.swap(true, Ordering::AcqRel)
    }

    /// Returns the device of the engine.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Whether the transfer has finished, with or without an error.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let done = self.has_ended();
        if done {
            self.report_end();
        }
        done
    }

    /// Returns the duration of the copy in seconds. Uses the device's clock if there is one. `None`
    /// before the end and after a failure.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.look(|state| match *state {
            State::Ended { seconds, error: None } => Some(seconds),
            _ => None,
        })
    }

    /// Returns the error of the transfer, if it failed.
    #[must_use]
    pub fn error(&self) -> Option<TransferError> {
        self.look(|state| match state {
            State::Ended { error, .. } => error.clone(),
            _ => None,
        })
    }

    /// Waits until the transfer has finished.
    ///
    /// # Errors
    /// The error of the transfer. [`TransferError::Timeout`] if it takes longer than `timeout`.
    /// [`TransferError::Forked`] in a child of the process that submitted it.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), TransferError> {
        self.sleep(timeout)?;
        self.report_end();
        self.error().map_or(Ok(()), Err)
    }

    /// Waits until the transfer has finished, without marking its end as reported.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> Result<(), TransferError> {
        let start = Instant::now();
        let mut state = self.lock();
        let mut nap = Duration::from_micros(10);
        loop {
            let held = self.settle(&mut state);
            if matches!(*state, State::Ended { .. }) {
                drop(state);
                drop(held);
                return Ok(());
            }
            self.check_process()?;
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if let (Some(Duration::ZERO), Some(timeout)) = (left, timeout) {
                return Err(TransferError::Timeout { id: self.id, timeout });
            }
            state = match (&*state, left) {
                (State::Enqueued { end, .. }, None) => {
                    // Release the lock, so that other threads can query the transfer meanwhile. If the
                    // wait fails, the next query finds the error.
                    let end = end.clone();
                    drop(state);
                    let _ = end.synchronize();
                    self.lock()
                }
                (State::Enqueued { .. }, Some(left)) => {
                    let (state, _) =
                        self.ended.wait_timeout(state, nap.min(left)).unwrap_or_else(PoisonError::into_inner);
                    nap = (nap * 2).min(NAP);
                    state
                }
                (_, None) => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                (_, Some(left)) => {
                    self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Makes a stream wait until the transfer has finished. If the worker thread runs the transfer,
    /// this call itself waits.
    ///
    /// # Errors
    /// The error of the transfer. [`TransferError::Unavailable`] and [`TransferError::Cuda`] if the
    /// driver refuses the stream.
    pub fn wait_on(&self, stream: StreamHandle) -> Result<(), TransferError> {
        if self.is_queued() {
            self.sleep(None)?;
        }
        if self.has_ended() {
            return self.error().map_or(Ok(()), Err);
        }
        if let State::Enqueued { end, .. } = &*self.lock()
            && end.is_outside_of(stream)?
        {
            return Err(TransferError::Capturing(
                "it cannot wait for a copy that was begun outside; wait before the capture",
            ));
        }
        self.let_follow(stream)
    }
}

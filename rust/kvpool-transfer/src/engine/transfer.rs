//! `Transfer`: a copy under way.
//!
//! Owns the stores that it copies between until it has ended, so that nobody's memory goes away under a
//! copy. It ends once, with the seconds that it took or with an error, and whoever asks first finds
//! out.

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

/// The stores of a copy under way, and the guards of its blocks if they are taken.
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

/// Where a transfer is.
#[derive(Debug)]
enum State {
    /// With the worker thread.
    Queued,
    /// On a stream.
    Enqueued { start: Event, end: Arc<Event>, _held: Held },
    /// Over.
    Ended { seconds: f64, error: Option<TransferError> },
}

/// What ended transfers held.
#[derive(Default)]
pub(super) struct Remains(Vec<State>);

/// A copy that was submitted.
#[derive(Debug)]
pub struct Transfer {
    /// Its number: an engine's transfers are numbered in the order in which they were submitted.
    pub id: u64,
    /// Bytes that it copies.
    pub nbytes: u64,
    /// How it copies them.
    pub method: Method,
    device: Device,
    process: u32,
    state: Mutex<State>,
    ended: Condvar,
    /// Its end was told to somebody: `poll` need not tell it again.
    told: AtomicBool,
}

/// Longest nap between two looks at an event.
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

    /// A transfer of nothing.
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
            told: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker has done it, or could not.
    pub(super) fn finish(&self, seconds: f64, error: Option<TransferError>) {
        *self.lock() = State::Ended { seconds, error };
        self.ended.notify_all();
    }

    /// Refuses in a child of the process that submitted it: threads and streams stay behind in a fork,
    /// and nothing would ever end it there.
    pub(super) fn check_process(&self) -> Result<(), TransferError> {
        let (made_by, this) = (self.process, process::id());
        if this == made_by { Ok(()) } else { Err(TransferError::Forked { made_by, this }) }
    }

    /// Looks whether it has ended. What it held then is returned, to be dropped without a lock: it may
    /// be the last owner of somebody's memory, whose destructor may ask this very transfer.
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

    /// Reads its state after a look whether it has ended.
    fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let mut state = self.lock();
        let held = self.settle(&mut state);
        let seen = read(&state);
        drop(state);
        drop(held);
        seen
    }

    /// Whether it has ended, asked by the engine under a lock: what it held goes to `held`, to be
    /// dropped after that.
    pub(super) fn has_ended_leaving(&self, held: &mut Remains) -> bool {
        let mut state = self.lock();
        held.0.extend(self.settle(&mut state));
        matches!(*state, State::Ended { .. })
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.look(|state| matches!(state, State::Ended { .. }))
    }

    /// Whether it is on a stream, so that others can wait for its event.
    pub(super) fn is_enqueued(&self) -> bool {
        matches!(*self.lock(), State::Enqueued { .. })
    }

    /// Whether it is with the worker thread.
    pub(super) fn is_queued(&self) -> bool {
        matches!(*self.lock(), State::Queued)
    }

    /// Makes a stream follow it, if it is on another one. Whether it failed is told to those who ask.
    pub(super) fn let_follow(&self, stream: StreamHandle) -> Result<(), TransferError> {
        match &*self.lock() {
            State::Enqueued { end, .. } => Ok(end.let_follow(stream)?),
            _ => Ok(()),
        }
    }

    /// Whether its end was told to somebody.
    pub(super) fn was_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// Whether nobody was told yet that it has ended; from now on somebody was.
    pub(super) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// The device of its engine.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Whether it has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let done = self.has_ended();
        if done {
            self.tell();
        }
        done
    }

    /// Seconds that the copy took, on the device's clock where there is one; `None` before its end.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.look(|state| match *state {
            State::Ended { seconds, error: None } => Some(seconds),
            _ => None,
        })
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<TransferError> {
        self.look(|state| match state {
            State::Ended { error, .. } => error.clone(),
            _ => None,
        })
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// What it failed with; [`TransferError::Timeout`] if it goes on for longer;
    /// [`TransferError::Forked`] in a child of the process that submitted it.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), TransferError> {
        self.sleep(timeout)?;
        self.tell();
        self.error().map_or(Ok(()), Err)
    }

    /// Waits until it has ended, and does not count as telling.
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
                    // Not under the lock: others may look meanwhile. An error shows at the next look.
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

    /// Makes a stream wait until it has ended. What is still with the worker thread is waited for here.
    ///
    /// # Errors
    /// What it failed with; [`TransferError::Unavailable`] and [`TransferError::Cuda`] if the stream's
    /// driver refuses.
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

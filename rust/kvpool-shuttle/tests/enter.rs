//! Tests how the Python bindings lock their state. The test includes the source file of the bindings
//! and runs it under shuttle with a simulated interpreter. The interpreter either has a global lock, or
//! is free-threaded and has a garbage collector that stops all threads.
//!
//! With the global lock, an attached thread prevents other threads from running. Without it, an
//! attached thread prevents the collector from stopping the threads. A thread that waits for a lock
//! while it is attached can therefore block all other threads. Shuttle reports this as a deadlock.

#![expect(clippy::expect_used, reason = "helpers of tests may panic as tests do")]

// The included file has `use pyo3::prelude::*`. This declaration makes `pyo3` refer to the simulated
// module below.
extern crate self as pyo3;

mod common;
#[path = "../../kvpool-py/src/enter.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "the bindings use all of it")]
mod enter;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use common::{check, together};
use enter::{LONG, Locked, enter, enter_guarded, enter_measured, enter_sized, raise_after};
use prelude::{PyErr, PyResult, Python};
use shuttle::sync::{Condvar, Mutex};

std::thread_local! {
    /// Number of calls that have begun. A plain cell is sufficient, because shuttle runs all threads of
    /// a model on one thread of the operating system.
    static BEGUN: Cell<usize> = const { Cell::new(0) };
}

shuttle::thread_local! {
    /// Whether this thread is attached to the simulated interpreter.
    static ATTACHED: Cell<bool> = Cell::new(false);
    /// The number of calls that had begun when the present call of this thread began to wait.
    static WAITS_SINCE: Cell<Option<usize>> = Cell::new(None);
}

mod python {
    /// In the bindings, the function of this name prevents problems while the interpreter shuts down.
    /// It does nothing here, because the simulated interpreter never shuts down.
    pub(crate) fn protect() {}
}

mod sync {
    pub(crate) use shuttle::sync::{Condvar, MutexGuard, PoisonError, TryLockError};
    pub(crate) use shuttle::thread_local;

    /// A mutex that panics if a thread calls `lock` while it is attached, because the call might wait.
    /// A mutex over `()` is an exception, because it is held only for a short time.
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::LockResult<MutexGuard<'_, T>> {
            let waits = size_of::<T>() > 0;
            assert!(!waits || !crate::ATTACHED.with(std::cell::Cell::get), "waits while attached");
            self.0.lock()
        }

        pub(crate) fn try_lock(&self) -> shuttle::sync::TryLockResult<MutexGuard<'_, T>> {
            self.0.try_lock()
        }
    }

    pub(crate) mod atomic {
        pub(crate) use shuttle::sync::atomic::Ordering;

        /// The counter of the queue's tickets. A thread that increments it takes a ticket, and counts
        /// as waiting from then on.
        pub(crate) struct AtomicUsize(shuttle::sync::atomic::AtomicUsize);

        impl AtomicUsize {
            pub(crate) fn new(value: usize) -> Self {
                Self(shuttle::sync::atomic::AtomicUsize::new(value))
            }

            pub(crate) fn load(&self, ordering: Ordering) -> usize {
                self.0.load(ordering)
            }

            pub(crate) fn fetch_add(&self, value: usize, ordering: Ordering) -> usize {
                let before = self.0.fetch_add(value, ordering);
                crate::WAITS_SINCE.with(|since| since.set(Some(crate::BEGUN.get())));
                before
            }

            pub(crate) fn store(&self, value: usize, ordering: Ordering) {
                self.0.store(value, ordering);
            }
        }
    }
}

mod errors {
    use crate::prelude::{PyErr, Python};

    pub(crate) fn raise(_: Python<'_>, class: &'static str, _: &str) -> PyErr {
        PyErr(class)
    }
}

/// A simulated interpreter.
#[derive(Default)]
struct Interpreter {
    global_lock: bool,
    threads: Mutex<Threads>,
    changed: Condvar,
}

#[derive(Default)]
struct Threads {
    attached: usize,
    stopped: bool,
}

pub mod prelude {
    //! The items of pyo3 that the included file uses.

    /// A Python exception, represented by the name of its class.
    #[derive(Debug, PartialEq, Eq)]
    pub struct PyErr(pub &'static str);

    /// The return value or the exception of a call.
    pub type PyResult<T> = Result<T, PyErr>;

    /// Proof that a thread is attached to the interpreter, like `Python<'py>` of pyo3.
    #[derive(Clone, Copy)]
    pub struct Python<'py>(pub(crate) &'py crate::Interpreter);

    impl Python<'_> {
        /// Runs `call` while the thread is detached from the interpreter.
        pub fn detach<R: Send>(self, call: impl FnOnce() -> R + Send) -> R {
            self.0.leave();
            let result = call();
            self.0.come();
            result
        }
    }
}

impl Interpreter {
    fn come(&self) {
        let mut threads = self.threads.lock().expect("no panic");
        while threads.stopped || (self.global_lock && threads.attached > 0) {
            threads = self.changed.wait(threads).expect("no panic");
        }
        threads.attached += 1;
        ATTACHED.with(|attached| attached.set(true));
    }

    fn leave(&self) {
        ATTACHED.with(|attached| attached.set(false));
        self.threads.lock().expect("no panic").attached -= 1;
        self.changed.notify_all();
    }

    fn attach<R>(&self, call: impl FnOnce(Python<'_>) -> R) -> R {
        self.come();
        let result = call(Python(self));
        self.leave();
        result
    }

    /// Simulates Python code that this thread runs: other threads can run, and so can the collector.
    fn run_python(&self) {
        self.leave();
        if !self.global_lock {
            let mut threads = self.threads.lock().expect("no panic");
            while threads.stopped {
                threads = self.changed.wait(threads).expect("no panic");
            }
            threads.stopped = true;
            while threads.attached > 0 {
                threads = self.changed.wait(threads).expect("no panic");
            }
            threads.stopped = false;
            drop(threads);
            self.changed.notify_all();
        }
        self.come();
    }
}

/// The state that the lock protects. It panics if two calls use it at the same time.
#[derive(Default)]
struct State {
    busy: bool,
    calls: usize,
}

impl State {
    fn call(&mut self, within: impl FnOnce()) {
        assert!(!std::mem::replace(&mut self.busy, true), "two calls at once");
        within();
        shuttle::thread::yield_now();
        self.calls += 1;
        self.busy = false;
    }
}

type Shared = Arc<(Interpreter, Locked<State>)>;

fn shared(global_lock: bool) -> Shared {
    BEGUN.set(0);
    Arc::new((Interpreter { global_lock, ..Interpreter::default() }, Locked::new(State::default())))
}

fn thread(shared: &Shared, calls: impl Fn(Python<'_>, &Shared) + Send + 'static) -> Box<dyn FnOnce() + Send> {
    let shared = shared.clone();
    Box::new(move || shared.0.attach(|py| calls(py, &shared)))
}

fn calls_of_every_kind(global_lock: bool) {
    let shared = shared(global_lock);
    let calls = |py: Python<'_>, shared: &Shared| {
        enter(py, &shared.1, |state| state.call(|| ()));
        enter_sized(py, &shared.1, LONG, |state| state.call(|| ()));
        enter_measured(py, &shared.1, |state| state.calls % 2 * LONG, |state| state.call(|| ()));
        py.0.run_python();
    };
    together((0..4).map(|_| thread(&shared, calls)).collect());
    assert_eq!(shared.0.attach(|py| enter(py, &shared.1, |state| state.calls)), 12);
}

#[test]
fn calls_are_one_after_the_other_with_a_global_lock() {
    check(|| calls_of_every_kind(true));
}

#[test]
fn calls_are_one_after_the_other_without_a_global_lock() {
    check(|| calls_of_every_kind(false));
}

/// A step whose policy is written in Python runs while the lock is held. If the policy, its destructor
/// or code that the collector runs calls the same object again, that call raises an exception. Only the
/// calling thread gets this exception, after its call.
fn step_with_policy(py: Python<'_>, shared: &Shared) {
    struct Destructor<'a>(Python<'a>, &'a Shared);
    impl Drop for Destructor<'_> {
        fn drop(&mut self) {
            self.0.0.run_python();
            let refused = |again: PyResult<()>| assert_eq!(again, Err(PyErr("PolicyError")));
            refused(enter_guarded(self.0, &self.1.1, |_| ()));
        }
    }
    let policy = |state: &mut State| {
        state.call(|| {
            drop(Destructor(py, shared)); // dropped during the call, like a temporary value
            raise_after(PyErr("KeyboardInterrupt"));
            raise_after(PyErr("SystemExit"));
        });
        Destructor(py, shared) // dropped after the call, like a copy
    };
    let copies = |state: &mut State| drop(policy(state));
    let raised = enter_guarded(py, &shared.1, copies);
    assert_eq!(raised, Err(PyErr("KeyboardInterrupt")));
    enter_guarded(py, &shared.1, |state| state.call(|| ())).expect("it was raised");
}

fn policies(global_lock: bool) {
    let shared = shared(global_lock);
    let others = |py: Python<'_>, shared: &Shared| {
        for _ in 0..2 {
            enter_guarded(py, &shared.1, |state| state.call(|| ())).expect("not inside of a policy");
        }
    };
    together(vec![
        thread(&shared, step_with_policy),
        thread(&shared, step_with_policy),
        thread(&shared, others),
    ]);
    assert_eq!(shared.0.attach(|py| enter(py, &shared.1, |state| state.calls)), 6);
}

#[test]
fn only_a_reentrant_policy_is_refused_with_a_global_lock() {
    check(|| policies(true));
}

#[test]
fn only_a_reentrant_policy_is_refused_without_a_global_lock() {
    check(|| policies(false));
}

/// While a call waits, at most one call of each other thread runs before it. Therefore two schedulers
/// that never pause do not starve a reader, and readers do not starve a scheduler.
#[test]
fn a_call_waits_for_one_call_of_each_other_thread() {
    const THREADS: usize = 3;
    for guarded in [false, true] {
        let (waited, most) = (Arc::new(Counter::new(0)), Arc::new(Counter::new(0)));
        let counts = (waited.clone(), most.clone());
        check(move || {
            let shared = shared(true);
            let counts = counts.clone();
            let calls = move |py: Python<'_>, shared: &Shared| {
                for nth in 0..4 {
                    let call = |state: &mut State| {
                        if let Some(since) = WAITS_SINCE.with(Cell::take) {
                            let overtaken = BEGUN.get() - since;
                            counts.0.fetch_add(1, Ordering::Relaxed);
                            counts.1.fetch_max(overtaken, Ordering::Relaxed);
                            assert!(overtaken < THREADS, "{overtaken} calls of {THREADS} threads went first");
                        }
                        BEGUN.set(BEGUN.get() + 1);
                        // Without a policy, the thread that holds the lock is detached, so another
                        // thread may be attached. With a policy, the thread that holds the lock is
                        // attached.
                        state.call(|| {
                            if guarded {
                                py.0.run_python();
                            }
                        });
                    };
                    let size = if nth % 2 == 0 { LONG } else { 0 };
                    if guarded {
                        enter_guarded(py, &shared.1, call).expect("not inside of a policy");
                    } else {
                        enter_sized(py, &shared.1, size, call);
                    }
                }
            };
            together((0..THREADS).map(|_| thread(&shared, calls.clone())).collect());
        });
        assert!(waited.load(Ordering::Relaxed) > 50, "calls did not wait");
        assert!(most.load(Ordering::Relaxed) > 0, "no call went first: is there anything to bound?");
    }
}

/// Shows why `enter` is needed: without it, the same calls end in a deadlock.
fn waiting_while_attached(global_lock: bool) {
    let shared = Arc::new((Interpreter { global_lock, ..Interpreter::default() }, Mutex::new(())));
    let with_policy = {
        let shared = shared.clone();
        move || {
            shared.0.attach(|py| {
                let _held = shared.1.lock().expect("no panic");
                py.0.run_python();
            });
        }
    };
    let other = move || shared.0.attach(|_| drop(shared.1.lock().expect("no panic")));
    together(vec![Box::new(with_policy), Box::new(other)]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn waiting_while_attached_is_a_deadlock_with_a_global_lock() {
    check(|| waiting_while_attached(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn waiting_while_attached_is_a_deadlock_without_a_global_lock() {
    check(|| waiting_while_attached(false));
}

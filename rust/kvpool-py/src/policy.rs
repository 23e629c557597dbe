//! `PyPolicy`, which makes an eviction policy written in Python a `Policy` of the core, for experiments.
//!
//! A `PyPolicy` owns the bound methods of the caller's object, a safety net, and the policy's [`Health`]. The
//! net is a plain LRU order of the same blocks, which is kept in addition to the policy's own order. Each
//! block that the policy evicts is checked against the net. So a policy cannot break an allocation or an
//! invariant.
//!
//! After the first exception, or the first wrong return value, the policy is no longer used, and the net
//! decides the order. A warning shows the failure at once, and `check_policy()` raises it.
//!
//! Locks: a policy is called, copied and dropped while its pool's lock is held and the interpreter is
//! attached. No thread waits for a lock while attached ([`crate::enter`]), so no waiting thread can
//! keep a policy from the interpreter. A policy that calls its own pool, from a method, a copy or a
//! destructor, is refused by [`crate::enter::enter_guarded`].
//!
//! Interrupts: an exception that is not an `Exception` (`KeyboardInterrupt`, `SystemExit`) ends the
//! policy like any other exception, and then reaches the caller. The call completes with the net's
//! order, releases the lock, and raises the interrupt.
//!
//! Cost: one Python call for each call of the policy, and 19 bytes per block.

use std::ffi::CString;
use std::sync::Arc;

use kvpool::retention::RetentionConfig;
use kvpool::{BlockId, Content, Evictor, InvariantViolation, Policy, PoolError};
use kvpool_policies::Closed;
use kvpool_policies::parts::BlockLists;
use pyo3::exceptions::{PyException, PyRuntimeWarning, PyValueError};
use pyo3::types::{PyBool, PyInt};

use crate::enter::raise_after;
use crate::errors::raise;
use crate::health::{Health, describe};
use crate::python::prelude::*;

/// If an exception is an interrupt, raises it after the current call. Drops any other exception.
fn drop_or_raise_after(py: Python<'_>, error: PyErr) {
    if !error.is_instance_of::<PyException>(py) {
        raise_after(error);
    }
}

/// The object of a policy, its required methods, and those optional methods that its class defines.
#[derive(Debug)]
struct Calls {
    object: Py<PyAny>,
    release: Py<PyAny>,
    pop: Py<PyAny>,
    forget: Py<PyAny>,
    admit: Option<Py<PyAny>>,
    hit: Option<Py<PyAny>>,
    take: Option<Py<PyAny>>,
    unpop: Option<Py<PyAny>>,
    evicted: Option<Py<PyAny>>,
    clear: Option<Py<PyAny>>,
}

impl Calls {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let base = crate::python::import(py, "kvpool.policies")?.getattr("Policy")?;
        // A method that the policy's class only inherits from `Policy` is not called.
        let own = |name: &str| -> PyResult<Option<Py<PyAny>>> {
            let Some(method) = object.getattr_opt(name)? else { return Ok(None) };
            let inherited = match (object.get_type().getattr(name), base.getattr(name)) {
                (Ok(own), Ok(base)) => own.is(&base) && !instance_has(object, name),
                _ => false,
            };
            Ok(if inherited || !method.is_callable() { None } else { Some(method.unbind()) })
        };
        let required = |name: &str| -> PyResult<Py<PyAny>> {
            own(name)?.ok_or_else(|| {
                let found = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
                let message = format!(
                    "eviction is a {found} without {name}(): must be the name of a policy, or a \
                        kvpool.policies.Policy with release, pop and forget"
                );
                raise(py, "ArgumentTypeError", message)
            })
        };
        Ok(Self {
            object: object.clone().unbind(),
            release: required("release")?,
            pop: required("pop")?,
            forget: required("forget")?,
            admit: own("admit")?,
            hit: own("hit")?,
            take: own("take")?,
            unpop: own("unpop")?,
            evicted: own("evicted")?,
            clear: own("clear")?,
        })
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        let copy = crate::python::import(py, "copy")?.call_method1("deepcopy", (&self.object,))?;
        if copy.is(&self.object) {
            return Err(PyValueError::new_err("a deep copy of the policy is the policy itself"));
        }
        Self::new(&copy)
    }
}

fn instance_has(object: &Bound<'_, PyAny>, name: &str) -> bool {
    object.getattr("__dict__").and_then(|own| own.contains(name)).unwrap_or(false)
}

/// A flag of a block: the policy knows the block, because the block has a content.
const KNOWN: u8 = 1;
/// A flag of a block: `pop` or `take` removed it from the policy's order, and `unpop` has not put it back.
const OUT: u8 = 2;

/// A policy written in Python, and its safety net.
pub(crate) struct PyPolicy {
    /// The methods of the policy. `None` once it has failed.
    calls: Option<Calls>,
    health: Arc<Health>,
    /// Whether this is a copy of a policy, which only lists the order of eviction. Failures of a copy are
    /// ignored.
    quiet: bool,
    /// The blocks that the policy may evict, the least recently released first.
    net: BlockLists,
    /// Blocks that the pool returned to a policy that has no method `unpop`. They are evicted next.
    given_back: BlockLists,
    states: Vec<u8>,
}

impl std::fmt::Debug for PyPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PyPolicy").field("failed", &self.calls.is_none()).finish_non_exhaustive()
    }
}

impl Clone for PyPolicy {
    /// Returns a copy that lists the order of eviction. If the object of the policy cannot be copied, the
    /// copy has only the safety net.
    fn clone(&self) -> Self {
        let copy = |calls: &Calls| {
            crate::python::attach(|py| calls.copy(py).map_err(|error| drop_or_raise_after(py, error)).ok())
        };
        Self {
            calls: self.calls.as_ref().and_then(copy),
            health: Arc::default(),
            quiet: true,
            net: self.net.clone(),
            given_back: self.given_back.clone(),
            states: self.states.clone(),
        }
    }
}

impl PyPolicy {
    fn state(&self, block: BlockId) -> u8 {
        self.states.get(block.index()).copied().unwrap_or(0)
    }

    fn set_state(&mut self, block: BlockId, state: u8) {
        if let Some(entry) = self.states.get_mut(block.index()) {
            *entry = state;
        }
    }

    /// Removes a block from the safety net and from the blocks that are evicted next.
    fn remove(&mut self, block: BlockId) {
        self.net.remove(block);
        self.given_back.remove(block);
    }

    /// Calls a method of the policy, unless the policy has failed. After an exception the policy is no longer
    /// used.
    fn call<R>(
        &mut self,
        method: &'static str,
        call: impl FnOnce(Python<'_>, &Calls) -> PyResult<R>,
    ) -> Option<R> {
        let calls = self.calls.take()?;
        crate::python::attach(|py| match call(py, &calls) {
            Ok(answer) => {
                self.calls = Some(calls);
                Some(answer)
            }
            Err(error) => {
                if self.quiet {
                    drop_or_raise_after(py, error);
                } else {
                    report(py, &self.health, method, error);
                }
                drop(calls); // attached: a destructor may run
                None
            }
        })
    }

    /// Calls a method of the policy, if it has it, with a block as the argument.
    fn notify(
        &mut self,
        method: &'static str,
        block: BlockId,
        of: impl FnOnce(&Calls) -> Option<&Py<PyAny>>,
    ) {
        self.call(method, |py, calls| match of(calls) {
            Some(method) => method.bind(py).call1((block.get(),)).map(drop),
            None => Ok(()),
        });
    }

    fn tell_content(
        &mut self,
        method: &'static str,
        block: BlockId,
        content: Content,
        of: impl FnOnce(&Calls) -> Option<&Py<PyAny>>,
    ) {
        self.call(method, |py, calls| match of(calls) {
            Some(method) => method.bind(py).call1((block.get(), content.key, content.depth)).map(drop),
            None => Ok(()),
        });
    }

    /// Returns the block that is evicted next: one that was given back, or the result of `pop`. The result
    /// must be a block of the policy's order.
    fn pop_own(&mut self) -> Option<BlockId> {
        if let Some(block) = self.given_back.pop_front(0) {
            return Some(block);
        }
        let states = std::mem::take(&mut self.states);
        let waiting = self.net.len(0);
        let victim = self.call("pop", |py, calls| {
            let answer = calls.pop.bind(py).call0()?;
            if answer.is_none() {
                return Err(PyValueError::new_err(format!("gave up no block, and has {waiting}")));
            }
            let id = answer.is_instance_of::<PyInt>() && !answer.is_instance_of::<PyBool>();
            let id = if id { answer.extract::<u32>().ok() } else { None };
            match id.filter(|&id| states.get(id as usize).is_some_and(|state| state & (KNOWN | OUT) == KNOWN))
            {
                Some(id) => Ok(BlockId::new(id)),
                None => Err(PyValueError::new_err(format!(
                    "gave up {}, which is no block of its order",
                    answer.repr().map_or_else(|_| "?".into(), |text| text.to_string())
                ))),
            }
        });
        self.states = states;
        victim
    }
}

/// Records the failure after which the policy is no longer used, and shows a warning.
///
/// If Python's settings turn the warning into an exception, the exception is dropped. An interrupt, from the
/// policy or from the code that shows the warning, is raised when the call is done.
fn report(py: Python<'_>, health: &Health, method: &'static str, error: PyErr) {
    let message = CString::new(describe(py, method, &error).replace('\0', "?"));
    let again = error.clone_ref(py);
    health.note(method, error);
    drop_or_raise_after(py, again);
    if let Ok(message) = message
        && let Err(error) = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1)
    {
        drop_or_raise_after(py, error);
    }
}

impl Policy for PyPolicy {
    fn name(&self) -> &'static str {
        "python"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.remove(block);
        self.set_state(block, KNOWN);
        self.tell_content("admit", block, content, |calls| calls.admit.as_ref());
    }

    fn hit(&mut self, block: BlockId) {
        self.remove(block);
        self.notify("hit", block, |calls| calls.hit.as_ref());
    }

    fn release(&mut self, block: BlockId) {
        self.remove(block);
        self.set_state(block, KNOWN);
        self.net.push_back(0, block);
        self.notify("release", block, |calls| Some(&calls.release));
    }

    fn pop(&mut self) -> Option<BlockId> {
        if self.net.is_empty(0) {
            return None; // whatever the policy has left is in use
        }
        let own = if self.calls.is_some() { self.pop_own() } else { None };
        let block = own.or_else(|| self.net.front(0))?;
        self.remove(block);
        self.set_state(block, KNOWN | OUT);
        Some(block)
    }

    fn take(&mut self, block: BlockId) {
        if self.state(block) != KNOWN {
            return;
        }
        self.remove(block);
        self.set_state(block, KNOWN | OUT);
        self.notify("take", block, |calls| Some(calls.take.as_ref().unwrap_or(&calls.forget)));
    }

    fn unpop(&mut self, block: BlockId) {
        if self.state(block) != KNOWN | OUT {
            return;
        }
        self.set_state(block, KNOWN);
        self.net.push_front(0, block);
        if self.calls.as_ref().is_some_and(|calls| calls.unpop.is_some()) {
            self.notify("unpop", block, |calls| calls.unpop.as_ref());
        } else {
            self.given_back.push_front(0, block);
        }
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        self.remove(block);
        self.set_state(block, 0);
        self.tell_content("evicted", block, content, |calls| calls.evicted.as_ref());
    }

    fn forget(&mut self, block: BlockId) {
        self.remove(block);
        if self.state(block) != 0 {
            self.set_state(block, 0);
            self.notify("forget", block, |calls| Some(&calls.forget));
        }
    }

    fn clear(&mut self) {
        self.net.clear();
        self.given_back.clear();
        let states = std::mem::take(&mut self.states);
        self.call("clear", |py, calls| match &calls.clear {
            Some(clear) => clear.bind(py).call0().map(drop),
            None => {
                let mut known = (0..).zip(&states).filter(|&(_, &state)| state != 0);
                known.try_for_each(|(block, _): (u32, _)| calls.forget.bind(py).call1((block,)).map(drop))
            }
        });
        self.states = states;
        self.states.fill(0);
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.net.grow(num_blocks)?;
        self.given_back.grow(num_blocks)?;
        self.states.resize(num_blocks.max(self.states.len()), 0);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.net.check_block(block)?;
        self.given_back.check_block(block)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.net.check_invariants()?;
        self.given_back.check_invariants()?;
        for (index, &state) in (0..).zip(&self.states) {
            let block = BlockId::new(index);
            let (net, back) = (self.net.list_of(block).is_some(), self.given_back.list_of(block).is_some());
            if (net && state != KNOWN) || (back && !net) {
                let detail = format!("{block:?}: state {state}, in the net {net}, given back {back}");
                return Err(InvariantViolation::new(
                    "E4 (a policy's net has the blocks of its order)",
                    detail,
                ));
            }
        }
        Ok(())
    }
}

/// Returns the evictor of a policy's object, and its health.
pub(crate) fn evictor(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    num_blocks: usize,
    retention: Option<&RetentionConfig>,
) -> PyResult<(Box<dyn Evictor>, Arc<Health>)> {
    use crate::errors::OrRaise;
    let health = Arc::<Health>::default();
    let lists = || BlockLists::new(1, num_blocks).or_raise(py);
    let policy = PyPolicy {
        calls: Some(Calls::new(object)?),
        health: health.clone(),
        quiet: false,
        net: lists()?,
        given_back: lists()?,
        states: Vec::new(),
    };
    Ok((Box::new(Closed::new(policy, num_blocks, retention).or_raise(py)?), health))
}

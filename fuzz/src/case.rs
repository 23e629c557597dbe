//! Cases: a setting and operations, run on the core and on what it is compared with.
//!
//! Owns: how bytes become a case, how a case is run, and how a failing one is written as a Rust test. A target is a
//! [`Machine`]; what one operation means is its own affair.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use arbitrary::{Arbitrary, Unstructured};

/// Operations of one case, at most: longer inputs are cut.
pub const MOST_OPERATIONS: usize = 250;

/// What a case found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, the same for two failures of one cause: a comparison, an invariant, a place that panicked.
    pub kind: String,
    /// With the values.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}

impl From<kvpool::InvariantViolation> for Failure {
    fn from(violation: kvpool::InvariantViolation) -> Self {
        let text = violation.to_string();
        // The invariant's name, then blocks and counts.
        let (kind, message) = text.split_once(" is broken: ").unwrap_or((&text, ""));
        Self::new(kind, message)
    }
}

/// Fails unless both are equal.
///
/// # Errors
/// A failure of this kind, with both values.
pub(crate) fn same<T: PartialEq + Debug>(kind: &str, found: &T, expected: &T) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(kind, format!("found {found:?}, the model has {expected:?}")))
}

/// Fails unless `holds`.
///
/// # Errors
/// A failure of this kind.
pub(crate) fn holds(kind: &str, holds: bool, message: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(kind, message())) }
}

/// The calls of a case, as Rust; kept only when somebody asks for them.
#[derive(Debug, Default)]
pub struct Script {
    lines: Option<Vec<String>>,
    /// Lines that operations wrote.
    calls: usize,
}

impl Script {
    /// One that keeps its lines.
    #[must_use]
    pub const fn kept() -> Self {
        Self { lines: Some(Vec::new()), calls: 0 }
    }

    /// Adds a call.
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        self.calls += 1;
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }

    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Adds what is no call: comparisons at the end.
    fn close(&mut self, closing: Vec<String>) {
        if let Some(lines) = &mut self.lines {
            lines.extend(closing);
        }
    }
}

/// A target: a state that operations change and compare.
pub trait Machine: Sized {
    /// What it is made with.
    type Setting: for<'a> Arbitrary<'a> + Clone + Debug + PartialEq;
    /// What is done to it.
    type Operation: for<'a> Arbitrary<'a> + Clone + Debug + PartialEq;

    /// A state as the setting says.
    ///
    /// # Errors
    /// What a setting should not do.
    fn new(setting: &Self::Setting) -> Result<Self, Failure>;

    /// Does one operation on the core and on the model, compares what both say and what they are then, and recounts all
    /// invariants. The calls go to `script`, with the model's answers.
    ///
    /// # Errors
    /// The first difference, or a broken invariant.
    fn apply(&mut self, operation: &Self::Operation, script: &mut Script) -> Result<(), Failure>;

    /// Simpler settings to try, the simplest first.
    fn simpler_settings(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Simpler operations to try in its place, the simplest first.
    fn simpler_operations(operation: &Self::Operation) -> Vec<Self::Operation>;

    /// Imports and helpers that tests may need, each with a word that such tests have.
    const ITEMS: &[(&str, &str)];

    /// Lines that make the state.
    fn opening(setting: &Self::Setting) -> Vec<String>;

    /// Lines that compare the state with what the model says it is.
    fn closing(&self) -> Vec<String>;
}

/// A setting, and what is done then.
#[derive(Debug)]
pub struct Case<M: Machine> {
    /// What the state is made with.
    pub setting: M::Setting,
    /// In order.
    pub operations: Vec<M::Operation>,
}

impl<M: Machine> Clone for Case<M> {
    fn clone(&self) -> Self {
        Self { setting: self.setting.clone(), operations: self.operations.clone() }
    }
}

impl<M: Machine> Case<M> {
    /// The case that these bytes mean: any bytes mean one. `None` if not even a setting can be had.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Self> {
        let mut bytes = Unstructured::new(data);
        let setting = bytes.arbitrary().ok()?;
        let mut operations = Vec::new();
        while !bytes.is_empty() && operations.len() < MOST_OPERATIONS {
            let Ok(operation) = bytes.arbitrary() else { break };
            operations.push(operation);
        }
        Some(Self { setting, operations })
    }

    /// Runs the case.
    ///
    /// # Errors
    /// How many operations went well, and what the next one found; a panic counts as found.
    pub fn run(&self) -> Result<(), (usize, Failure)> {
        self.run_with(&mut Script::default()).map(|_| ())
    }

    fn run_with(&self, script: &mut Script) -> Result<Vec<String>, (usize, Failure)> {
        let done = Cell::new(0);
        let script = RefCell::new(script);
        let closing = RefCell::new(Vec::new());
        let result = guarded(|| {
            let mut machine = M::new(&self.setting)?;
            for operation in &self.operations {
                let result = machine.apply(operation, &mut script.borrow_mut());
                if result.is_err() {
                    closing.replace(machine.closing());
                }
                result?;
                done.set(done.get() + 1);
            }
            closing.replace(machine.closing());
            Ok(())
        });
        match result {
            Ok(()) => Ok(closing.into_inner()),
            Err(failure) => {
                script.borrow_mut().close(closing.into_inner());
                Err((done.get(), failure))
            }
        }
    }

    /// The case as a Rust test: the calls, with the model's answers. Also how many calls there are.
    #[must_use]
    pub fn to_rust(&self, name: &str) -> (String, usize) {
        let mut script = Script::kept();
        let mut comment = String::new();
        let mut closing = Vec::new();
        match self.run_with(&mut script) {
            Ok(lines) => closing = lines,
            Err((_, failure)) => comment = format!("/// {}\n", failure.to_string().replace('\n', "\n/// ")),
        }
        let calls = script.calls;
        let lines =
            M::opening(&self.setting).into_iter().chain(script.lines().iter().cloned()).chain(closing);
        let body: String = lines.map(|line| format!("    {line}\n")).collect();
        let mut test = format!("\n{comment}#[test]\nfn {name}() {{\n{body}}}\n");
        // From the last one on: helpers need those before them.
        for (word, item) in M::ITEMS.iter().rev() {
            if test.contains(word) {
                test.insert_str(0, item);
            }
        }
        (test, calls)
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PANICKED: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Runs something, and makes a failure of a panic, which is told by its place. The hook that was there before is asked only
/// for panics elsewhere, so that a fuzzer's does not end the process before the case can be shrunk.
///
/// # Errors
/// What `call` says, or its panic.
pub fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
                return;
            }
            let place = panic.location().map_or_else(String::new, ToString::to_string);
            // The column is of no use, and the line enough.
            let place = place.rsplit_once(':').map_or(place.as_str(), |(line, _)| line).to_owned();
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let message = text.unwrap_or("no message").to_owned();
            PANICKED.set(Some(Failure::new(format!("panic at {place}"), message)));
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    result.unwrap_or_else(|_| {
        let failure = PANICKED.take().unwrap_or_else(|| Failure::new("panic", "no message"));
        Err(failure)
    })
}

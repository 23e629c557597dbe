//! A case is a setting and a list of operations. It runs on the core and on a model, and the results
//! are compared.
//!
//! This module converts bytes to a case, runs the case, and writes a failing case as a Rust test. A
//! target is a [`Machine`], which defines its operations.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use kvpool_lab::failure::{Failure, guarded};

/// Maximum number of operations of one case. Further operations of an input are ignored.
pub const MOST_OPERATIONS: usize = 250;

/// Collects the calls of a case as Rust code. If no text is needed, the calls are only counted.
#[derive(Debug, Default)]
pub struct Script {
    lines: Option<Vec<String>>,
    /// Number of calls that the script has collected so far.
    calls: usize,
}

impl Script {
    /// Creates a script that stores the Rust code of the calls, instead of only counting them.
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

    /// Returns the lines of Rust code that the script has so far.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Adds lines that are not calls: the comparisons at the end of the test.
    fn close(&mut self, closing: Vec<String>) {
        if let Some(lines) = &mut self.lines {
            lines.extend(closing);
        }
    }
}

/// A fuzz target: a state of the core and of a model, on which operations run.
pub trait Machine: Sized {
    /// The arguments from which the state is created.
    type Setting: for<'a> Arbitrary<'a> + Clone + Debug + PartialEq;
    /// One operation of the target, which changes the state.
    type Operation: for<'a> Arbitrary<'a> + Clone + Debug + PartialEq;

    /// Creates a state from a setting.
    ///
    /// # Errors
    /// A failure. No setting should cause one.
    fn new(setting: &Self::Setting) -> Result<Self, Failure>;

    /// Runs one operation on the core and on the model, compares their results and states, and checks
    /// all invariants. Adds the calls to `script`, with the model's results.
    ///
    /// # Errors
    /// The first difference, or a broken invariant.
    fn apply(&mut self, operation: &Self::Operation, script: &mut Script) -> Result<(), Failure>;

    /// Returns simpler settings, which the shrinker tries, the simplest first.
    fn simpler_settings(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Returns simpler operations, which the shrinker tries in place of this one, the simplest first.
    fn simpler_operations(operation: &Self::Operation) -> Vec<Self::Operation>;

    /// Imports and helper functions for the written tests. Each one has a keyword, and is written to a
    /// test that contains the keyword.
    const ITEMS: &[(&str, &str)];

    /// Returns the lines of a written test that create the state.
    fn opening(setting: &Self::Setting) -> Vec<String>;

    /// Returns the last lines of a written test, which compare the state with the model.
    fn closing(&self) -> Vec<String>;
}

/// The decoded input of a fuzz target: a setting, and the operations to run.
#[derive(Debug)]
pub struct Case<M: Machine> {
    /// The setting from which the state is created.
    pub setting: M::Setting,
    /// The operations to run, in order.
    pub operations: Vec<M::Operation>,
}

impl<M: Machine> Clone for Case<M> {
    fn clone(&self) -> Self {
        Self { setting: self.setting.clone(), operations: self.operations.clone() }
    }
}

impl<M: Machine> Case<M> {
    /// Decodes bytes to a case. Any bytes give a case, or `None` if there are too few for a setting.
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
    /// The number of operations that succeeded, and the failure of the next one. A panic counts as a
    /// failure.
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

    /// Returns the case as a Rust test, with the model's results, and the number of its calls.
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
        // Go from the last item to the first, because a helper may need an earlier one.
        for (word, item) in M::ITEMS.iter().rev() {
            if test.contains(word) {
                test.insert_str(0, item);
            }
        }
        (test, calls)
    }
}

//! Cases: a setting and operations, run on the core and on what it is compared with.
//!
//! Owns: how bytes become a case, how a case is run, and how a failing one is written as a Rust test. A
//! target is a [`Machine`]; what one operation means is its own affair.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use kvpool_lab::failure::{Failure, guarded};

/// Operations of one case, at most: longer inputs are cut.
pub const MOST_OPERATIONS: usize = 250;

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

    /// Does one operation on the core and on the model, compares what both say and what they are then,
    /// and recounts all invariants. The calls go to `script`, with the model's answers.
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

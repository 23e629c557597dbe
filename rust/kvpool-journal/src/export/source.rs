//! Writes the text of an exported test in Rust or Python: its calls, and the answers that it expects.

use std::io::Write;

use crate::{Check, JournalHeader, Kind};

use super::arguments::Arguments;
use super::lines::{self, COLUMNS};
use super::python;
use super::templates;
use super::text::{self, Language};
use crate::error::ReplayError;
use crate::numbers::Numbers;
use crate::value::Answer;
use crate::value::Value;

/// The largest number of operations in one function of a Rust test. Longer tests are divided, because
/// the time to compile a function grows faster than its length.
const PART: u64 = 250;

/// Writes one test.
pub(super) struct Source<'a> {
    language: Language,
    kind: Kind,
    num_blocks: usize,
    /// Whether the manager of the journal has KV-cache groups.
    grouped: bool,
    /// The expression that creates the pool. A Rust test contains it at the end of the file.
    made: String,
    pub(super) arguments: Arguments,
    out: &'a mut dyn Write,
    /// The number of operations of the journal that were written so far.
    operations: u64,
    /// The number of functions into which the Rust test is divided.
    parts: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        language: Language,
        header: &JournalHeader,
        numbers: Numbers,
        out: &'a mut dyn Write,
    ) -> Result<Self, ReplayError> {
        let kind = header.subject;
        let config = header.manager_config(kvpool_policies::ALL)?;
        let events = header.watch_config(kvpool_policies::ALL)?.event_capacity;
        let made = match language {
            Language::Rust => templates::rust_pool(&config, events, kind, header.caching),
            Language::Python => templates::python_pool(&config, events, kind, header.caching),
        };
        let (block_size, verify) = (config.block_size, config.verify.name());
        let mut source = Self {
            language,
            kind,
            num_blocks: config.num_blocks,
            grouped: config.groups.is_some(),
            made,
            arguments: Arguments { language, block_size, verify, numbers },
            out,
            operations: 0,
            parts: 0,
        };
        match language {
            Language::Rust => source.write(templates::rust(kind))?,
            Language::Python => {
                source.write(templates::python(kind))?;
                let made = std::mem::take(&mut source.made);
                source.line(&format!("{} = {made}", source.subject()))?;
                if kind == Kind::Manager {
                    source.line(&format!("columns = {}", if source.grouped { 4 } else { 3 }))?;
                }
            }
        }
        Ok(source)
    }

    pub(super) fn finish(mut self) -> Result<(), ReplayError> {
        if self.language == Language::Python {
            return Ok(self.out.flush()?);
        }
        if self.parts > 0 {
            self.write("}\n\n")?;
        }
        let (subject, made) = (self.subject(), std::mem::take(&mut self.made));
        self.write("#[test]\nfn journal() {\n")?;
        self.line(&format!("let mut {subject} = {made}.unwrap();"))?;
        for part in 0..self.parts {
            self.line(&format!("part_{part}(&mut {subject});"))?;
        }
        self.write("}\n")?;
        Ok(self.out.flush()?)
    }

    pub(super) const fn subject(&self) -> &'static str {
        if matches!(self.kind, Kind::Manager) { "manager" } else { "pool" }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    pub(super) const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    fn write(&mut self, text: &str) -> Result<(), ReplayError> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes a statement of the test. It has several lines if it contains line breaks or is too long.
    pub(super) fn line(&mut self, text: &str) -> Result<(), ReplayError> {
        for line in format!("    {text}").split('\n') {
            lines::code(self.out, line)?;
        }
        Ok(())
    }

    pub(super) fn remark(&mut self, text: &str) -> Result<(), ReplayError> {
        let mark = if self.is_rust() { "//" } else { "#" };
        let comment = format!("    {mark} {}", text::remark(text));
        Ok(lines::comment(self.out, &comment, &format!("    {mark}     "))?)
    }

    /// Handles a call that Python cannot make. If the call was refused, writes a comment instead,
    /// because a refused call changes nothing. Otherwise returns an error.
    pub(super) fn leave_out(
        &mut self,
        number: u64,
        answer: &Answer,
        reason: &'static str,
    ) -> Result<(), ReplayError> {
        if answer.refused {
            return self.remark("Python cannot ask this. The call was refused, and changed nothing.");
        }
        Err(ReplayError::NoCall { operation: number, reason })
    }

    /// Writes the comment before an operation, with the number of the operation and its answer.
    pub(super) fn begin(&mut self, number: u64, answer: &Answer) -> Result<(), ReplayError> {
        if self.is_rust() && self.operations.is_multiple_of(PART) {
            if self.parts > 0 {
                self.write("}\n\n")?;
            }
            let class = templates::class(self.kind);
            self.write(&format!("fn part_{}({}: &mut {class}) {{\n", self.parts, self.subject()))?;
            self.parts += 1;
        }
        self.operations += 1;
        self.remark(&format!("{number}: {}", answer.told))
    }

    /// Writes Rust code that evaluates an expression, compares its answer with the recorded check, and
    /// checks all invariants.
    pub(super) fn expect_rust(&mut self, expression: &str, check: u32) -> Result<(), ReplayError> {
        self.line(&format!("same({expression}, 0x{check:08x});"))?;
        self.recount()
    }

    /// Writes Python code that evaluates an expression, compares its answer with the recorded value,
    /// and checks all invariants.
    pub(super) fn expect_python(&mut self, expression: &str, value: &Value) -> Result<(), ReplayError> {
        let is = if matches!(value, Value::Nothing | Value::Flag(_)) { "is" } else { "==" };
        let (call, value_text) = (format!("assert {expression} {is}"), text::value_in(value, self.grouped));
        // `Self::line` does not break a line before an error message. So put a long message in
        // brackets, on a line of its own.
        let is_long = 4 + call.len() + 1 + value_text.len() > COLUMNS;
        if is_long && matches!(value, Value::Text(_)) {
            self.line(&format!("{call} (\n        {value_text}\n    )"))?;
        } else {
            self.line(&format!("{call} {value_text}"))?;
        }
        self.recount()
    }

    fn recount(&mut self) -> Result<(), ReplayError> {
        match (self.kind, self.language) {
            (Kind::VllmPool, _) => Ok(()),
            (_, Language::Rust) => self.line(&format!("{}.check_invariants().unwrap();", self.subject())),
            (_, Language::Python) => self.line(&format!("{}.diagnose.check_invariants()", self.subject())),
        }
    }

    /// Writes the start of a step's plan. If the recorded plan was made for an earlier state, also
    /// writes a call that changes the state.
    pub(super) fn plan_step(&mut self, stale: bool) -> Result<(), ReplayError> {
        match self.language {
            Language::Rust => self.line("let mut plan = manager.plan_step();")?,
            Language::Python => self.line("plan = manager.plan_step()")?,
        }
        if stale {
            self.remark("This call changes nothing, but makes the plan stale.")?;
            self.line(if self.is_rust() {
                "manager.drop_cached(&[]).unwrap();"
            } else {
                "manager.drop_cached([])"
            })?;
        }
        Ok(())
    }

    /// Writes a call that adds an operation to the plan of a scheduler's step.
    pub(super) fn plan(&mut self, name: &str, arguments: &str) -> Result<(), ReplayError> {
        match self.language {
            Language::Rust => self.line(&format!("let _ = manager.plan_{name}(&mut plan, {arguments});")),
            Language::Python => {
                self.line(&format!("answer(plan.{}, {arguments})", name.trim_end_matches("_with")))
            }
        }
    }

    pub(super) fn call(&mut self, name: &str, arguments: &str, answer: &Answer) -> Result<(), ReplayError> {
        let subject = self.subject();
        match self.language {
            Language::Rust => {
                let expression = match name {
                    "admit_with" => {
                        format!("manager.admit_with({arguments}).map_err(|refused| refused.error)")
                    }
                    _ => format!("{subject}.{name}({arguments})"),
                };
                self.expect_rust(&expression, answer.check)
            }
            Language::Python => {
                let object = if name == "commit_step" { "plan" } else { subject };
                let (method, arguments) = python::call(self.kind, name, arguments);
                let comma = if arguments.is_empty() { "" } else { ", " };
                // The test defines its own function `append_ragged`, which returns the changes of a
                // batch one by one.
                let call =
                    if method == "append_ragged" { method.into() } else { format!("{object}.{method}") };
                self.expect_python(&format!("answer({call}{comma}{arguments})"), &answer.value)
            }
        }
    }

    /// Writes a check of the number of events. The events themselves differ from the recorded ones,
    /// because their digests are of other tokens.
    pub(super) fn take_events(&mut self, value: &Value) -> Result<(), ReplayError> {
        let subject = self.subject();
        match (self.language, value) {
            (Language::Rust, &Value::Number(events)) => {
                self.expect_rust(&format!("{subject}.take_events().events.len()"), Check::of(&events))
            }
            _ => self.expect_python(&format!("len({subject}.take_events()[0])"), value),
        }
    }
}

//! Fuzz targets of kvpool. Each is a function of bytes that returns if all is well, and panics with a
//! report if not.
//!
//! | target | what | compared with |
//! |---|---|---|
//! | [`free_list`] | `FreeBlockList` | a vector |
//! | [`index`] | `PrefixIndex` | a map of contents |
//! | [`pool`] | `BlockPool`: every call, policies, hints, verification | the laboratory: its model and its oracles |
//! | [`manager`] | `CacheManager`, with KV-cache groups or without: every call | the laboratory: its model and its oracles |
//! | [`mod@trace_reader`] | the readers of kvpool-replay, all formats | what it wrote itself |
//! | [`mod@journal_reader`] | the reader and the replay of kvpool-journal | a second replay |
//! | [`vllm_pool`] | `kvpool_vllm::Pool`: every call, policies, hints, writes by hand | the laboratory: its model and its oracles |
//!
//! [`kvpool_lab`] draws calls from the bytes of [`pool`], [`manager`] and [`vllm_pool`], and shrinks a
//! run that fails. The bytes of the other targets are operations ([`Case`]); after each of them
//! results, state and all invariants are compared. A case that fails is shrunk ([`shrink`]) and printed
//! as a Rust test. Who makes the bytes is not this library's affair: libFuzzer (`fuzz_targets`, with
//! the feature `libfuzzer`), the driver [`random`] of the program `kvpool-fuzz`, which needs nothing,
//! or the corpus, which the tests replay.
#![forbid(unsafe_code)]

mod bytes;
mod case;
// That of journals, which test-mutants does not build.
#[path = "../../rust/kvpool-journal/src/minimize.rs"]
mod minimize;
pub mod random;
mod shrink;
mod text;

pub mod targets;

pub use case::{Case, MOST_OPERATIONS, Machine, Script};
pub use kvpool_lab::failure::{Failure, guarded};
use kvpool_lab::world::{World, manager::ManagerWorld, pool::PoolWorld, vllm::VllmWorld};
pub use minimize::minimize;
pub use shrink::shrink;
use targets::{free_list::FreeList, index::Index};
#[cfg(feature = "readers")]
use targets::{journal_reader, trace_reader};

/// What is wrong with an input.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was found.
    pub failure: Failure,
    /// Calls of the shrunk case; 0 for an input that is a file.
    pub operations: usize,
    /// The shrunk case as a Rust test, or the input.
    pub test: String,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { failure, operations, test } = self;
        write!(f, "{failure}\n\nshrunk to {operations} operations:\n\n{test}")
    }
}

/// A target by name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Runs it: a failure, not shrunk.
    pub check: fn(&[u8]) -> Result<(), Failure>,
    /// Runs it; shrinks and writes down what fails.
    pub report: fn(&[u8]) -> Result<(), Box<Report>>,
}

impl Target {
    const fn machine<M: Machine>(name: &'static str) -> Self {
        Self { name, check: check::<M>, report: report::<M> }
    }

    const fn laboratory<W: World>(name: &'static str) -> Self {
        Self { name, check: check_drawn::<W>, report: report_drawn::<W> }
    }
}

const FREE_LIST: Target = Target::machine::<FreeList>("free_list");
const INDEX: Target = Target::machine::<Index>("index");
const POOL: Target = Target::laboratory::<PoolWorld>("pool");
const MANAGER: Target = Target::laboratory::<ManagerWorld>("manager");
#[cfg(feature = "readers")]
const TRACE_READER: Target = Target {
    name: "trace_reader",
    check: trace_reader::run,
    report: |data| report_file(data, trace_reader::run),
};
#[cfg(feature = "readers")]
const JOURNAL_READER: Target = Target {
    name: "journal_reader",
    check: journal_reader::run,
    report: |data| report_file(data, journal_reader::run),
};
const VLLM_POOL: Target = Target::laboratory::<VllmWorld>("vllm_pool");

/// Every target.
pub const TARGETS: &[Target] = &[
    FREE_LIST,
    INDEX,
    POOL,
    MANAGER,
    #[cfg(feature = "readers")]
    TRACE_READER,
    #[cfg(feature = "readers")]
    JOURNAL_READER,
    VLLM_POOL,
];

fn check<M: Machine>(data: &[u8]) -> Result<(), Failure> {
    Case::<M>::decode(data).map_or(Ok(()), |case| case.run().map_err(|(_, failure)| failure))
}

fn report<M: Machine>(data: &[u8]) -> Result<(), Box<Report>> {
    let Some((small, failure)) = Case::<M>::decode(data).and_then(|case| shrink(&case)) else {
        return Ok(());
    };
    let (test, operations) = small.to_rust("shrunk");
    Err(Box::new(Report { failure, operations, test }))
}

fn check_drawn<W: World>(data: &[u8]) -> Result<(), Failure> {
    kvpool_lab::run::report::check::<W>(data)
}

fn report_drawn<W: World>(data: &[u8]) -> Result<(), Box<Report>> {
    let Some(found) = kvpool_lab::run::report::report(&kvpool_lab::run::run::<W>(data)) else {
        return Ok(());
    };
    let test = format!("{}\n{}\n{}", found.setting, found.calls.join("\n"), found.test);
    Err(Box::new(Report { failure: found.failure, operations: found.calls.len(), test }))
}

#[cfg(feature = "readers")]
fn report_file(data: &[u8], run: fn(&[u8]) -> Result<(), Failure>) -> Result<(), Box<Report>> {
    run(data).map_err(|failure| {
        let test = format!("{:?}", data.escape_ascii().to_string());
        Box::new(Report { failure, operations: 0, test })
    })
}

/// Panics with the report of a failing input: that is how a fuzzer is told.
fn tell(target: &Target, data: &[u8]) {
    if let Err(failure) = (target.check)(data) {
        let report = (target.report)(data).err();
        let told = report.map_or_else(|| format!("{failure}, and not again"), |report| report.to_string());
        // The report is one anyway.
        assert!(told.is_empty(), "{}: {told}", target.name);
    }
}

/// `FreeBlockList` by operation bytes.
pub fn free_list(data: &[u8]) {
    tell(&FREE_LIST, data);
}

/// `PrefixIndex` by operation bytes.
pub fn index(data: &[u8]) {
    tell(&INDEX, data);
}

/// `BlockPool` by the bytes that the laboratory draws from.
pub fn pool(data: &[u8]) {
    tell(&POOL, data);
}

/// `CacheManager` by the bytes that the laboratory draws from.
pub fn manager(data: &[u8]) {
    tell(&MANAGER, data);
}

/// The readers of traces.
#[cfg(feature = "readers")]
pub fn trace_reader(data: &[u8]) {
    tell(&TRACE_READER, data);
}

/// The reader and the replay of journals.
#[cfg(feature = "readers")]
pub fn journal_reader(data: &[u8]) {
    tell(&JOURNAL_READER, data);
}

/// `kvpool_vllm::Pool` by the bytes that the laboratory draws from.
pub fn vllm_pool(data: &[u8]) {
    tell(&VLLM_POOL, data);
}

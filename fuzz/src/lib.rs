//! Fuzz targets of kvpool. Each one is a function of bytes. It returns if no fault is found, and panics
//! with a report otherwise.
//!
//! | target | subject | compared with |
//! |---|---|---|
//! | [`free_list`] | `FreeBlockList` | a vector |
//! | [`index`] | `PrefixIndex` | a map of contents |
//! | [`pool`] | `BlockPool`: every call, policies, hints, verification | the laboratory |
//! | [`manager`] | `CacheManager`, with KV-cache groups or without: every call | the laboratory |
//! | [`mod@trace_reader`] | the readers of kvpool-replay, all formats | the traces that it writes itself |
//! | [`mod@journal_reader`] | the reader and the replay of kvpool-journal | a second replay |
//! | [`vllm_pool`] | `kvpool_vllm::Pool`: every call, policies, hints, direct writes | the laboratory |
//!
//! The laboratory is [`kvpool_lab`]: a model, which computes expected answers, and oracles, which check
//! the state. It draws calls from the bytes of [`pool`], [`manager`] and [`vllm_pool`], and shrinks a
//! run that fails. The bytes of the other targets are operations ([`Case`]). After each operation,
//! results, state and all invariants are compared. A case that fails is shrunk ([`shrink`]) and printed
//! as a Rust test. The bytes can have three sources: libFuzzer (`fuzz_targets`, with the feature
//! `libfuzzer`), the driver [`random`] of the program `kvpool-fuzz`, which has no requirements, or the
//! corpus, which the tests replay.
#![forbid(unsafe_code)]

mod bytes;
mod case;
// The minimizer of `kvpool-journal`, as a source file. With the crate as a dependency, the tool that
// plants defects to test the tests would have to build it.
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

/// A failing input.
#[derive(Clone, Debug)]
pub struct Report {
    /// The failure.
    pub failure: Failure,
    /// Number of calls of the shrunk case, or 0 if the input is a file.
    pub operations: usize,
    /// The shrunk case as a Rust test. For an input that is a file, the input.
    pub test: String,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { failure, operations, test } = self;
        write!(f, "{failure}\n\nshrunk to {operations} operations:\n\n{test}")
    }
}

/// A fuzz target with its name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target on the command line.
    pub name: &'static str,
    /// Runs the target on an input. Returns the failure without shrinking it.
    pub check: fn(&[u8]) -> Result<(), Failure>,
    /// Runs the target, and shrinks and writes a failing case.
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

/// Panics with the report of a failing input, because a fuzzer expects a panic.
fn tell(target: &Target, data: &[u8]) {
    if let Err(failure) = (target.check)(data) {
        let report = (target.report)(data).err();
        let told = report.map_or_else(|| format!("{failure}, and not again"), |report| report.to_string());
        // The report of the failure is the whole message of the panic.
        assert!(told.is_empty(), "{}: {told}", target.name);
    }
}

/// Fuzzes `FreeBlockList` with bytes that encode operations.
pub fn free_list(data: &[u8]) {
    tell(&FREE_LIST, data);
}

/// Fuzzes `PrefixIndex` with bytes that encode operations.
pub fn index(data: &[u8]) {
    tell(&INDEX, data);
}

/// Fuzzes `BlockPool` with bytes from which the laboratory draws calls.
pub fn pool(data: &[u8]) {
    tell(&POOL, data);
}

/// Fuzzes `CacheManager` with bytes from which the laboratory draws calls.
pub fn manager(data: &[u8]) {
    tell(&MANAGER, data);
}

/// Fuzzes the readers of traces. The bytes select options and contain the file to read.
#[cfg(feature = "readers")]
pub fn trace_reader(data: &[u8]) {
    tell(&TRACE_READER, data);
}

/// Fuzzes the reader and the replay of journals. The bytes contain the file to read.
#[cfg(feature = "readers")]
pub fn journal_reader(data: &[u8]) {
    tell(&JOURNAL_READER, data);
}

/// Fuzzes `kvpool_vllm::Pool` with bytes from which the laboratory draws calls.
pub fn vllm_pool(data: &[u8]) {
    tell(&VLLM_POOL, data);
}

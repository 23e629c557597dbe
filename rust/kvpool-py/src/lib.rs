//! `kvpool._core`: the Python bindings. They convert, lock and map errors; every decision is the core's.
//!
//! One call from Python is one crossing: whole requests, whole batches, whole steps. No Python object exists per block.
//! Docstrings live in the stub, `python/kvpool/_core.pyi`, which is checked against this module.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments by value")]

mod advice;
mod convert;
mod enter;
mod errors;
mod explain;
mod gather;
mod hashing;
mod health;
mod journal;
mod manager;
mod parts;
mod policy;
mod pool;
mod replay;
mod request;
mod retention;
mod sequences;
mod sizing;
mod stats;
mod step;
mod sync;
mod tiers;
mod trace;
mod transfer;
mod vllm;

use pyo3::prelude::*;

/// The Rust core of kvpool.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::advice::PyAdvisorConfig;
    #[pymodule_export]
    use super::explain::{PyExplainConfig, PyExplanation, PyMissSpan};
    #[pymodule_export]
    use super::hashing::{
        PyBlockHasher, PyChainLink, PyExtraKeys, PyHashChain, PyHashCursor, hash_algorithms, verify_modes,
    };
    #[pymodule_export]
    use super::journal::{
        PyJournal, PyJournalDifference, PyJournalInfo, PyJournalReport, PyJournalStats, PyShrunkJournal,
        bisect_journal, compare_journals, export_journal, read_journal, replay_journal, shrink_journal,
    };
    #[pymodule_export]
    use super::manager::PyCacheManager;
    #[pymodule_export]
    use super::parts::{PyBlockAllocator, PyFreeBlockList, PyLruEvictor, PyPrefixIndex};
    #[pymodule_export]
    use super::pool::PyBlockPool;
    #[pymodule_export]
    use super::replay::PyReplay;
    #[pymodule_export]
    use super::retention::{PyHintReport, PyRetention, PyRetentionConfig, PyRetentionStats, PyTenantLimits};
    #[pymodule_export]
    use super::sequences::PySequences;
    #[pymodule_export]
    use super::sizing::{PyHitCurve, PyPolicyRun, PyReferences, eviction_policies, sampled_lru};
    #[pymodule_export]
    use super::stats::{PyAdmission, PyManagerStats, PyPoolStats, PyProbe, PyRequestInfo, PyScrubReport};
    #[pymodule_export]
    use super::step::PyStep;
    #[pymodule_export]
    use super::tiers::{PySwap, PyTieredPool, PyTransferPlan};
    #[pymodule_export]
    use super::trace::{PyTrace, PyTraceReader, trace_formats};
    #[pymodule_export]
    use super::transfer::{PyBlockStore, PyTransfer, PyTransferEngine, copy_by_handle, cuda_driver_version};
    #[pymodule_export]
    use super::vllm::{PyVllmBlock, PyVllmHasher, PyVllmPool, PyVllmSlots, block_ids};

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // A debug build is many times slower: `kvpool` warns when it is imported.
        module.add("debug_build", cfg!(debug_assertions))
    }
}

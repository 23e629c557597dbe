//! `kvpool._core`: the Python bindings. They convert, lock and map errors; every decision is the core's.
//!
//! One call from Python is one crossing: whole requests, whole batches, whole steps. No Python object exists per block.
//! Each topic is a submodule. Its docstrings live in its stub, `python/kvpool/_core/<topic>.pyi`, which is checked against
//! this module. Engines import none of them: the package `kvpool` has the public names.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments by value")]

mod advice;
mod argument;
mod clock;
mod convert;
mod ended;
mod enter;
mod errors;
mod events;
mod explain;
mod gather;
mod groups;
mod hashing;
mod health;
mod journal;
mod manager;
mod metrics;
mod parts;
mod policy;
mod pool;
mod process;
mod python;
mod replay;
mod request;
mod retention;
mod sequences;
mod sizing;
mod stats;
mod store;
mod sync;
mod tiers;
mod trace;
mod transfer;
mod vllm;

/// The Rust core of kvpool.
#[pyo3::pymodule(module = "kvpool", gil_used = false)]
mod _core {
    use crate::python::prelude::*;
    use pyo3::prelude::{PyModule, PyModuleMethods, pymodule};
    use pyo3::types::PyDict;

    /// What a pool's own traffic says of other sizes and policies.
    #[pymodule]
    mod advisor {
        #[pymodule_export]
        use crate::advice::PyAdvisorConfig;
    }

    /// What routers are told: see kvpool.events.
    #[pymodule]
    mod events {
        #[pymodule_export]
        use crate::events::PyEventPublisher;
    }

    /// Why a prompt missed.
    #[pymodule]
    mod explain {
        #[pymodule_export]
        use crate::explain::{PyExplainConfig, PyExplanation, PyGroupReach, PyMissSpan};
    }

    /// KV-cache groups of hybrid models.
    #[pymodule]
    mod groups {
        #[pymodule_export]
        use crate::groups::{PyGroupFit, PyGroupSpec};
    }

    /// Hash chains: what identifies the prefix that a block holds.
    #[pymodule]
    mod hashing {
        #[pymodule_export]
        use crate::hashing::{
            PyBlockHasher, PyChainLink, PyExtraKeys, PyHashChain, PyHashCursor, hash_algorithms, verify_modes,
        };
    }

    /// Journals: every operation recorded, and run again.
    #[pymodule]
    mod journal {
        #[pymodule_export]
        use crate::journal::{
            PyJournal, PyJournalDifference, PyJournalInfo, PyJournalReport, PyJournalStats, PyJournalView,
            PyShrunkJournal, bisect_journal, compare_journals, export_journal, observe_journal, read_journal,
            replay_journal, shrink_journal,
        };
    }

    /// Requests by id over one block pool: what a scheduler calls.
    #[pymodule]
    mod manager {
        #[pymodule_export]
        use crate::manager::PyCacheManager;
    }

    /// The parts of a block pool, each usable alone.
    #[pymodule]
    mod parts {
        #[pymodule_export]
        use crate::parts::{PyBlockAllocator, PyFreeBlockList, PyLruEvictor, PyPrefixIndex};
    }

    /// The eviction policies that the core has.
    #[pymodule]
    mod policies {
        #[pymodule_export]
        use crate::sizing::eviction_policies;
    }

    /// The block pool: allocation, prefix cache and eviction of one tier.
    #[pymodule]
    mod pool {
        #[pymodule_export]
        use crate::pool::PyBlockPool;
        #[pymodule_export]
        use crate::stats::PyPoolStats;
    }

    /// What a manager answers: steps, admissions, requests, figures.
    #[pymodule]
    mod requests {
        #[pymodule_export]
        use crate::manager::step::PyStep;
        #[pymodule_export]
        use crate::pool::PyMatch;
        #[pymodule_export]
        use crate::stats::{
            PyAdmission, PyAdmissionFit, PyManagerStats, PyProbe, PyRequestInfo, PyScrubReport,
        };
    }

    /// What callers know of the future: priorities, times to live, pins, tenants' limits.
    #[pymodule]
    mod retention {
        #[pymodule_export]
        use crate::retention::{
            PyHintReport, PyRetention, PyRetentionConfig, PyRetentionStats, PyTenantLimits,
        };
    }

    /// Block tables with a mutable tail, by handle.
    #[pymodule]
    mod sequences {
        #[pymodule_export]
        use crate::sequences::PySequences;
    }

    /// Estimators of what a cache of any size would hit: see kvpool.sizing.
    #[pymodule]
    mod sizing {
        #[pymodule_export]
        use crate::sizing::{PyHitCurve, PyPolicyRun, PyReferences, sampled_lru};
    }

    /// Bytes beneath the engine's memory: see kvpool.store.
    #[pymodule]
    mod store {
        #[pymodule_export]
        use crate::store::{
            PyArena, PyCustom, PyDisk, PyNamespace, PyRedis, PySharedFolder, PySlotHeaders, PyStore,
            PyStoreFolder, PyStoreServer, PyStoreStats, PyWarmStart, check_object, load_index, save_index,
        };
    }

    /// One pool per tier, swaps between them, and plans of what is copied.
    #[pymodule]
    mod tiers {
        #[pymodule_export]
        use crate::tiers::{PySwap, PyTieredPool, PyTransferPlan};
    }

    /// Request traces: formats, generation, replay.
    #[pymodule]
    mod traces {
        #[pymodule_export]
        use crate::replay::PyReplay;
        #[pymodule_export]
        use crate::trace::{PyTrace, PyTraceReader, trace_formats};
    }

    /// Moving the bytes of blocks: see kvpool.transfer.
    #[pymodule]
    mod transfer {
        #[pymodule_export]
        use crate::transfer::{
            PyBlockStore, PyTransfer, PyTransferEngine, copy_by_handle, cuda_driver_version,
        };
    }

    /// What kvpool.integrations.vllm is made of.
    #[pymodule]
    mod vllm {
        #[pymodule_export]
        use crate::vllm::{
            PyVllmBlock, PyVllmFeed, PyVllmGroups, PyVllmHasher, PyVllmPool, PyVllmSlots, block_ids,
        };
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // An extension has no path to search: its submodules are imported only if they are known already.
        let known = crate::python::import(module.py(), "sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        for submodule in module.dict().values() {
            if let Ok(submodule) = submodule.cast::<PyModule>() {
                known.set_item(submodule.name()?, submodule)?;
            }
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // A debug build is many times slower: `kvpool` warns when it is imported.
        module.add("debug_build", cfg!(debug_assertions) && !cfg!(feature = "as-tested"))
    }
}

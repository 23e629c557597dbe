//! The extension module `kvpool._core`, which contains the Python bindings. The bindings convert data, lock
//! state and map errors. The core makes every decision.
//!
//! One call from Python passes a whole request, a whole batch or a whole step to Rust. No Python object
//! exists per block.
//!
//! Each topic is a submodule. Its docstrings are in its stub, `python/kvpool/_core/<topic>.pyi`. `build.rs`
//! makes the macro `doc!` of the stubs: `doc!("BlockPool.allocate")` is the docstring of that method. Engines
//! do not import the submodules, because the package `kvpool` has all public names.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments by value")]

// Contains the macro `doc!`, which returns a docstring of the stubs by its name.
include!(concat!(env!("OUT_DIR"), "/docs.rs"));

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
mod sizing;
mod stats;
mod store;
mod sync;
mod tiers;
mod trace;
mod transfer;
mod vllm;

#[doc = doc!("kvpool._core")]
#[pyo3::pymodule(module = "kvpool", gil_used = false)]
mod _core {
    use crate::python::prelude::*;
    use pyo3::prelude::{PyModule, PyModuleMethods, pymodule};
    use pyo3::types::PyDict;

    #[doc = doc!("kvpool._core.advisor")]
    #[pymodule]
    mod advisor {
        #[pymodule_export]
        use crate::advice::PyAdvisorConfig;
    }

    #[doc = doc!("kvpool._core.events")]
    #[pymodule]
    mod events {
        #[pymodule_export]
        use crate::events::PyEventPublisher;
    }

    #[doc = doc!("kvpool._core.explain")]
    #[pymodule]
    mod explain {
        #[pymodule_export]
        use crate::explain::{PyExplainConfig, PyExplanation, PyGroupReach, PyMissSpan};
    }

    #[doc = doc!("kvpool._core.facets")]
    #[pymodule]
    mod facets {
        #[pymodule_export]
        use crate::manager::{
            PyManagerClock, PyManagerDiagnose, PyManagerJournal, PyManagerRetention, PyManagerSwaps,
        };
        #[pymodule_export]
        use crate::pool::{PyPoolClock, PyPoolDiagnose, PyPoolJournal, PyPoolRetention};
    }

    #[doc = doc!("kvpool._core.groups")]
    #[pymodule]
    mod groups {
        #[pymodule_export]
        use crate::groups::{PyGroupFit, PyGroupSpec};
    }

    #[doc = doc!("kvpool._core.hashing")]
    #[pymodule]
    mod hashing {
        #[pymodule_export]
        use crate::hashing::{
            PyBlockHasher, PyChainLink, PyExtraKeys, PyHashChain, PyHashCursor, hash_algorithms, verify_modes,
        };
    }

    #[doc = doc!("kvpool._core.journal")]
    #[pymodule]
    mod journal {
        #[pymodule_export]
        use crate::journal::{
            PyJournal, PyJournalDifference, PyJournalInfo, PyJournalReport, PyJournalStats, PyJournalView,
            PyShrunkJournal, bisect_journal, compare_journals, export_journal, observe_journal, read_journal,
            replay_journal, shrink_journal,
        };
    }

    #[doc = doc!("kvpool._core.manager")]
    #[pymodule]
    mod manager {
        #[pymodule_export]
        use crate::manager::PyCacheManager;
    }

    #[doc = doc!("kvpool._core.parts")]
    #[pymodule]
    mod parts {
        #[pymodule_export]
        use crate::parts::{PyBlockAllocator, PyFreeBlockList, PyLruEvictor, PyPrefixIndex};
    }

    #[doc = doc!("kvpool._core.policies")]
    #[pymodule]
    mod policies {
        #[pymodule_export]
        use crate::sizing::{eviction_policies, policy_removal};
    }

    #[doc = doc!("kvpool._core.pool")]
    #[pymodule]
    mod pool {
        #[pymodule_export]
        use crate::pool::PyBlockPool;
        #[pymodule_export]
        use crate::stats::PyPoolStats;
    }

    #[doc = doc!("kvpool._core.requests")]
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

    #[doc = doc!("kvpool._core.retention")]
    #[pymodule]
    mod retention {
        #[pymodule_export]
        use crate::retention::{
            PyHintReport, PyRetention, PyRetentionConfig, PyRetentionStats, PyTenantLimits,
        };
    }

    #[doc = doc!("kvpool._core.sizing")]
    #[pymodule]
    mod sizing {
        #[pymodule_export]
        use crate::sizing::{PyHitCurve, PyPolicyRun, PyReferences, sampled_lru};
    }

    #[doc = doc!("kvpool._core.store")]
    #[pymodule]
    mod store {
        #[pymodule_export]
        use crate::store::{
            PyArena, PyCustom, PyDisk, PyNamespace, PyRedis, PySharedFolder, PySlotHeaders, PyStore,
            PyStoreFolder, PyStoreServer, PyStoreStats, PyWarmStart, block_names, busy_slots, check_object,
            load_index, offer_blocks, save_index,
        };
    }

    #[doc = doc!("kvpool._core.tiers")]
    #[pymodule]
    mod tiers {
        #[pymodule_export]
        use crate::tiers::{PySwap, PyTieredPool, PyTransferPlan};
    }

    #[doc = doc!("kvpool._core.traces")]
    #[pymodule]
    mod traces {
        #[pymodule_export]
        use crate::replay::PyReplay;
        #[pymodule_export]
        use crate::trace::{PyTrace, PyTraceReader, trace_formats};
    }

    #[doc = doc!("kvpool._core.transfer")]
    #[pymodule]
    mod transfer {
        #[pymodule_export]
        use crate::transfer::{
            PyBlockStore, PyTransfer, PyTransferEngine, copy_by_handle, cuda_driver_version,
        };
    }

    #[doc = doc!("kvpool._core.vllm")]
    #[pymodule]
    mod vllm {
        #[pymodule_export]
        use crate::vllm::{PyVllmBlock, PyVllmFeed, PyVllmGroups, PyVllmHasher, PyVllmPool, block_ids};
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Python does not search an extension for submodules, so they are added to `sys.modules`.
        let known = crate::python::import(module.py(), "sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        for submodule in module.dict().values() {
            if let Ok(submodule) = submodule.cast::<PyModule>() {
                known.set_item(submodule.name()?, submodule)?;
            }
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // A debug build is many times slower, so `kvpool` warns about it on import.
        module.add("debug_build", cfg!(debug_assertions) && !cfg!(feature = "as-tested"))
    }
}

//! `Sequences`: a model of tables and bytes ([`model`]), and the defects of older block managers one by one ([`defects`]).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

mod defects;
mod model;
mod store;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, DuplicatePolicy, ExtraKeys, Fit, HashCursor, HasherConfig,
    Place, PoolConfig, PoolError, SequenceError, SequenceId, Sequences, SwapId, TableChange, TierError,
    Tiers, Transfer, TransferPlan, Verify, runs,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use store::*;

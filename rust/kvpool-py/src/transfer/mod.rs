//! `BlockStore`, `TransferEngine`, `Transfer`, and copies by handle.
//!
//! Tensors are taken as they describe themselves (`data_ptr`, `shape`, `stride`, ...): torch is never
//! imported here. Whoever makes a store keeps the tensors alive in it; resizing a tensor's storage
//! under a store is the one thing that Python code must not do.

mod engine;
mod mapping;
mod store;
mod streams;

pub(crate) use engine::{PyTransfer, PyTransferEngine, copy_by_handle, cuda_driver_version};
pub(crate) use store::PyBlockStore;

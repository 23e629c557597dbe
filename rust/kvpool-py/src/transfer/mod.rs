//! Bindings of `BlockStore`, `TransferEngine`, `Transfer`, and copies by handle.
//!
//! The bindings read the attributes of a tensor (`data_ptr`, `shape`, `stride`, ...) and never import torch.
//! A store keeps its tensors alive. Python code must not resize the storage of a tensor that a store uses.

mod engine;
mod mapping;
mod store;
mod streams;

pub(crate) use engine::{PyTransfer, PyTransferEngine, copy_by_handle, cuda_driver_version};
pub(crate) use store::PyBlockStore;

//! KV-cache blocks beneath the GPU.

#![deny(unsafe_code)]

mod admission;
mod arena;
mod backend;
mod breaker;
mod directory;
mod error;
mod header;
mod namespace;
mod queue;
mod stats;
mod store;
mod worker;

pub use admission::Admit;
pub use arena::{Arena, Reading, Writing};
pub use backend::{Backend, Object, ObjectMut, PAGE, Page, Place};
pub use breaker::BreakerConfig;
pub use error::{BackendError, StoreError, Why};
pub use header::{FORMAT_VERSION, HEADER_BYTES, Header, HeaderError, Mismatch, ObjectKey, TokenRange};
pub use namespace::{Layout, Namespace, NamespaceDigest, Span};
pub use stats::Stats;
pub use store::{Completion, Get, JobId, Presence, Put, Store, StoreConfig};

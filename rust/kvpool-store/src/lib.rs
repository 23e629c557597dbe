//! KV-cache blocks beneath the GPU.

#![deny(unsafe_code)]

mod header;
mod namespace;

pub use header::{FORMAT_VERSION, HEADER_BYTES, Header, HeaderError, Mismatch, ObjectKey, TokenRange};
pub use namespace::{Layout, Namespace, NamespaceDigest, Span};

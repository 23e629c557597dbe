//! Sizing against simulators that do it block by block, against exhaustive search, and against the
//! shipped pool: properties of random traces ([`properties`]), figures of generated ones ([`figures`]),
//! and what they are compared with ([`models`]).

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod figures;
mod models;
mod properties;

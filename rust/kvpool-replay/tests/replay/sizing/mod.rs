//! Sizing compared with block-by-block simulators, with exhaustive search, and with the real pool:
//! properties of random traces ([`properties`]), figures of generated ones ([`figures`]), and the
//! reference implementations ([`models`]).

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod figures;
mod models;
mod properties;

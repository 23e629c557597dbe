//! All tests of traces, replays and sizing, in one program, because linking one program for each takes
//! longer than running them.

mod adaptive_traces;
mod advisor;
mod formats;
mod formats_properties;
mod formats_traces;
mod generate;
mod groups;
mod limits;
mod policy_traces;
mod reader;
mod signals;
mod sizing;
mod sizing_traces;
mod stream;
mod tiers;

//! Replays a trace from Rust: `cargo run --release -p kvpool-replay --example replay -- TRACE
//! lookup|engine BLOCK_SIZE BLOCKS`.
#![expect(clippy::print_stdout, reason = "an example that prints its result")]

use std::error::Error;
use std::sync::Arc;

use kvpool_replay::reader::ReadOptions;
use kvpool_replay::replay::{Mode, Replay, ReplayConfig};
use kvpool_replay::trace::Trace;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [path, mode, block_size, capacity_blocks] = &arguments[..] else {
        return Err("usage: replay TRACE lookup|engine BLOCK_SIZE BLOCKS".into());
    };
    let trace = Trace::from_path(path, &ReadOptions::default())?;
    let config = ReplayConfig {
        mode: if mode == "engine" { Mode::Engine } else { Mode::Lookup },
        block_size: block_size.parse()?,
        capacity_blocks: capacity_blocks.parse()?,
        ..ReplayConfig::default()
    };
    let mut replay = Replay::new(Arc::new(trace), config)?;
    replay.advance(usize::MAX)?;
    replay.check_invariants()?;
    println!("{}", serde_json::to_string_pretty(&replay.report())?);
    Ok(())
}

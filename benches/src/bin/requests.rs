//! Measures the cost of whole requests, including hashing, in kvpool and in two yardsticks: a token
//! radix tree, and a map of chained 64-bit hashes.
//!
//! The program measures `prepare`, `admit`, `commit` and `release` of requests of 512 blocks, and
//! decode steps, in a pool of 64 k blocks on one thread. The figures are ns per block, the shortest of
//! all rounds. Each round runs every variant once, so that other work on the machine affects all of
//! them alike.
//!
//! It does not measure Python, tiers, KV-cache groups, events, journals, several threads, or the work
//! of the engine. The yardsticks do less than a product of the same design: see
//! [`kvpool_benches::requests`].
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::process::ExitCode;

use kvpool_benches::requests::measure::{Bench, Row};

const HELP: &str = "\
requests: the cost of whole requests, hashing included

kvpool beside two yardsticks: a radix tree that compares tokens (the shape of TGI and SGLang), and a map of
chained 64-bit hashes that verifies nothing (a collision is a wrong hit). Figures are ns per block of 16
tokens, the shortest of all rounds. Compare them within a run: other work on the machine makes all of them
larger.

usage: requests [--rounds N] [--json] [--large]

  --rounds N  number of rounds; in each of them every variant runs once (default 25, about 20 seconds)
  --json      print one JSON object per row instead of a table: row, ns (kvpool), radix_ns, map_ns,
              blocks (that one round times), rounds
  --large     also measure pools of 16,777,216 blocks, which need 5 GB of memory and 30 seconds more
  --help      print this

Requests have 512 blocks in a pool of 65,536. `sha256` rows use the default settings, and `verified` rows use
XXH3 and verify each hit by its tokens. The yardsticks have one setting: their figures of both rows are equal.

  hit_*                prepare, admit and commit of a prompt that is cached
  hit_shuffled_sha256  the same, with block ids in random order
  cold_*               prepare, admit and commit of an unknown prompt, while blocks are free
  cold_sha256_no_tokens  the same, if the pool keeps no tokens (`keep_tokens` off)
  evicting_*           the same in a full pool
  free                 release of a request of 512 cached blocks
  decode_row           one of 256 rows of a decode step; a step completes a block in 16 of them
  hit_ones_sha256      hit_sha256 with blocks of one token: ns per token, 8,192 tokens, 1,048,576 blocks
  evicting_store_16m   with --large: allocate and register 512 blocks, without hashing

examples:
  requests --rounds 5                 a quick look
  requests --json > requests.jsonl    for a comparison
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 requests --large    on huge pages
";

struct Options {
    rounds: usize,
    json: bool,
    large: bool,
}

/// Parses the arguments. Returns `None` if they ask for the help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { rounds: 25, json: false, large: false };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => {
                let value = arguments.next().unwrap_or_default();
                let rounds = value.parse().ok().filter(|&rounds| rounds > 0);
                options.rounds =
                    rounds.ok_or_else(|| format!("--rounds needs a number of at least 1, not {value:?}"))?;
            }
            "--json" => options.json = true,
            "--large" => options.large = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    Ok(Some(options))
}

fn print(rows: &[Row], options: &Options) {
    let rounds = options.rounds;
    if options.json {
        for Row { name, ns, radix_ns, map_ns, blocks } in rows {
            println!(
                "{{\"row\":\"{name}\",\"ns\":{ns:.2},\"radix_ns\":{radix_ns:.2},\"map_ns\":{map_ns:.2},\
                 \"blocks\":{blocks},\"rounds\":{rounds}}}"
            );
        }
        return;
    }
    println!("ns per block, hashing included; the shortest of {rounds} rounds\n");
    println!("{:22} {:>8} {:>11} {:>11}", "", "kvpool", "radix tree", "64-bit map");
    for Row { name, ns, radix_ns, map_ns, .. } in rows {
        println!("{name:22} {ns:8.1} {radix_ns:11.1} {map_ns:11.1}");
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("requests: {error}; --help lists the options");
            return ExitCode::from(2);
        }
    };
    let measured = Bench::new(options.large)
        .and_then(|mut bench| (0..options.rounds).try_for_each(|_| bench.round()).map(|()| bench));
    match measured {
        Ok(bench) => {
            print(bench.rows(), &options);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("requests: {error}");
            ExitCode::from(1)
        }
    }
}

//! What a run comes to: tables for people, JSON for programs.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, SystemTime};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use kvpool::ManagerStats;

use super::driver::{Abort, Driver};
use super::memory::Memory;
use super::meter::{Latencies, Meter};
use super::{Limit, Settings};

/// Where and when a run was.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Machine {
    /// The day, in UTC.
    pub date: String,
    /// The processor.
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The commit, if there is a repository.
    pub commit: String,
    /// The command line.
    pub command: String,
}

impl Machine {
    /// This one, now.
    #[must_use]
    pub fn here(command: String) -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
        let commit = git.ok().filter(|output| output.status.success());
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Self {
            date: now.chars().take_while(|&c| c != 'T').collect(),
            processor: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            commit: commit.map_or_else(
                || "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            ),
            command,
        }
    }
}

/// A configuration's run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Configuration {
    /// Its policy.
    pub name: &'static str,
    /// What else there is to it.
    pub settings: String,
    /// Turns made.
    pub turns: u64,
    /// Blocks at the start and at the end.
    pub blocks: (usize, usize),
    /// Share of the blocks that was held, cached and free, on average: 0 to 1.
    pub filling: (f64, f64, f64),
    /// Share of the prompts' tokens that was cached, 0 to 1.
    pub hit_rate: f64,
    /// Requests admitted, forks not counted.
    pub admissions: u64,
    /// Admissions and resumptions refused.
    pub refusals: u64,
    /// Requests preempted by recompute.
    pub preemptions: u64,
    /// Requests swapped out and in, and swaps aborted.
    pub swaps: (u64, u64, u64),
    /// Cached blocks evicted.
    pub evictions: u64,
    /// Blocks copied.
    pub copies: u64,
    /// Calls that had to be refused, and were.
    pub invalid: u64,
    /// Epochs begun.
    pub epochs: u64,
    /// Resets that forgot everything, of both tiers.
    pub resets: u64,
}

impl Configuration {
    fn of(driver: &Driver, stats: &ManagerStats) -> Self {
        let filling = &driver.filling;
        let mean = |sum: f64| sum / filling.samples.max(1) as f64;
        Self {
            name: driver.preset.name(),
            settings: driver.preset.describe(),
            turns: driver.turns,
            blocks: (driver.first_blocks, driver.blocks),
            filling: (mean(filling.held), mean(filling.cached), mean(filling.free)),
            hit_rate: stats.hit_tokens as f64 / stats.prompt_tokens.max(1) as f64,
            admissions: stats.admissions,
            refusals: stats.refusals,
            preemptions: stats.preemptions,
            swaps: (stats.swapped_out, stats.swapped_in, driver.swap_aborts),
            evictions: stats.pool.evicted,
            copies: stats.copied_blocks,
            invalid: driver.invalid,
            epochs: stats.pool.epoch,
            resets: driver.resets,
        }
    }
}

/// What a run comes to.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A function of everything that happened: equal for equal seeds, settings and numbers of operations.
    pub digest: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// Calls made.
    pub operations: u64,
    /// Tokens per block.
    pub block_size: usize,
    /// Calls by kind.
    pub latencies: Vec<(&'static str, Latencies)>,
    /// By configuration.
    pub configurations: Vec<Configuration>,
    /// How requests ended, and swaps and plans that came to nothing.
    pub aborts: Vec<(&'static str, u64)>,
    /// Memory.
    pub memory: Memory,
}

impl Report {
    pub(super) fn new(
        settings: &Settings,
        drivers: &[Driver],
        filled: &[ManagerStats],
        meter: &mut Meter,
        memory: Memory,
        time: Duration,
    ) -> Self {
        let digest = drivers.iter().fold(0u64, |digest, driver| digest.rotate_left(5) ^ driver.digest);
        let aborts = Abort::NAMES.iter().enumerate();
        let count = |nth: usize| drivers.iter().map(|driver| driver.aborts[nth]).sum();
        Self {
            seed: settings.seed,
            digest: format!("{digest:016x}"),
            seconds: time.as_secs_f64(),
            operations: meter.calls(),
            block_size: settings.block_size,
            latencies: meter.table(),
            configurations: drivers
                .iter()
                .zip(filled)
                .map(|(d, stats)| Configuration::of(d, stats))
                .collect(),
            aborts: aborts.map(|(nth, &name)| (name, count(nth))).collect(),
            memory,
        }
    }

    /// All of it as Markdown that can be read as it is.
    #[must_use]
    pub fn markdown(&self, machine: &Machine, limit: Limit) -> String {
        let asked = match limit {
            Limit::Time(time) => format!("{:.1} minutes", time.as_secs_f64() / 60.0),
            Limit::Operations(operations) => format!("{operations} operations"),
        };
        let Machine { date, processor, cores, commit, command } = machine;
        let mut text = format!("# Soak of {asked}, {date}\n\n");
        let _infallible = writeln!(
            text,
            "Commit {commit}, {processor}, {cores} cores, one thread. Seed {}, digest {}.\n\n`{command}`\n\n\
             {} operations in {:.0} s over {} configurations that take turns; sums exact after every 256 turns, all invariants \
             and all KV every minute, nothing held at the end.\n",
            self.seed,
            self.digest,
            grouped(self.operations),
            self.seconds,
            self.configurations.len(),
        );
        let sections = [
            ("Latency per operation, microseconds", self.latency_table()),
            ("Configurations", self.configuration_table()),
            ("How requests ended, and what came to nothing", self.abort_table()),
            ("Memory, MiB", self.memory_table()),
        ];
        for (title, table) in sections {
            let _infallible = writeln!(text, "## {title}\n\n{table}\n");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    fn latency_table(&self) -> Table {
        let rows = self.latencies.iter().map(|(name, l)| {
            let times = [l.p50, l.p99, l.p999, l.max].map(microseconds);
            [vec![(*name).to_owned(), grouped(l.count)], times.to_vec()].concat()
        });
        table(&["operation", "count", "p50", "p99", "p99.9", "max"], 1, rows)
    }

    fn configuration_table(&self) -> Table {
        let head = [
            "policy",
            "settings",
            "turns",
            "blocks",
            "held",
            "cached",
            "free",
            "hit rate",
            "admitted",
            "refused",
            "preempted",
            "swapped out, in",
            "swaps aborted",
            "evicted",
            "copied",
            "invalid calls",
            "epochs",
            "resets",
        ];
        let rows = self.configurations.iter().map(|c| {
            vec![
                c.name.to_owned(),
                c.settings.clone(),
                grouped(c.turns),
                format!("{} to {}", c.blocks.0, c.blocks.1),
                percent(c.filling.0),
                percent(c.filling.1),
                percent(c.filling.2),
                percent(c.hit_rate),
                grouped(c.admissions),
                grouped(c.refusals),
                grouped(c.preemptions),
                format!("{}, {}", grouped(c.swaps.0), grouped(c.swaps.1)),
                grouped(c.swaps.2),
                grouped(c.evictions),
                grouped(c.copies),
                grouped(c.invalid),
                c.epochs.to_string(),
                c.resets.to_string(),
            ]
        });
        table(&head, 2, rows)
    }

    fn abort_table(&self) -> Table {
        table(
            &["what", "times"],
            1,
            self.aborts.iter().map(|(name, times)| vec![(*name).to_owned(), grouped(*times)]),
        )
    }

    fn memory_table(&self) -> Table {
        let memory = &self.memory;
        let resident =
            |bytes: Option<u64>| bytes.map_or_else(|| "not known here".to_owned(), |b| mebibytes(b as i64));
        let allowed = if memory.judged {
            mebibytes(memory.bound)
        } else {
            "NOT JUDGED: the run is too short".to_owned()
        };
        let rows = [
            [
                "heap in use, the tenth of the run after the warm-up (mean)".to_owned(),
                mebibytes(memory.heap_start),
            ],
            ["heap in use, last tenth (mean)".to_owned(), mebibytes(memory.heap_end)],
            ["of that, growth by resize".to_owned(), mebibytes(memory.resized)],
            ["other growth".to_owned(), mebibytes(memory.growth)],
            ["growth allowed".to_owned(), allowed],
            ["heap in use, peak".to_owned(), mebibytes(memory.heap_peak)],
            ["resident after the warm-up".to_owned(), resident(memory.resident_start)],
            ["resident at the end".to_owned(), resident(memory.resident_end)],
        ];
        table(&["what", "MiB"], 1, rows.map(Vec::from).into_iter())
    }
}

/// A table whose columns but the first `left` are aligned to the right.
fn table(head: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head).add_rows(rows);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nanoseconds as microseconds, to the digits that mean something.
fn microseconds(nanoseconds: u64) -> String {
    let digits = match nanoseconds {
        0..10_000 => 2,
        10_000..1_000_000 => 1,
        _ => 0,
    };
    format!("{:.digits$}", nanoseconds as f64 / 1e3)
}

fn mebibytes(bytes: i64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

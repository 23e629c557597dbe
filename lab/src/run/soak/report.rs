//! The report of a soak, as Markdown tables for readers and as JSON for programs.

use std::fmt;
use std::process::Command;
use std::time::SystemTime;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use super::meter::Meter;
use super::{Driver, Heap, Line, Settings, Times};

/// The report of one configuration.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Configuration {
    /// The name of the configuration's eviction policy.
    pub name: &'static str,
    /// Its other settings.
    pub settings: String,
    /// Number of calls.
    pub calls: u64,
    /// The average share of the pool's blocks that requests held, and the average share that was
    /// cached, from 0 to 1.
    pub filling: (f64, f64),
    /// The share of prompt tokens that were cached, from 0 to 1.
    pub hit_rate: f64,
    /// Number of requests that the manager admitted.
    pub admissions: u64,
    /// Number of admissions and resumptions that failed because of missing blocks.
    pub refusals: u64,
    /// Number of times that a request was preempted.
    pub preemptions: u64,
    /// Number of requests that were swapped out, and number that were swapped in.
    pub swapped: (u64, u64),
    /// Number of cached blocks that the manager evicted.
    pub evictions: u64,
    /// Number of blocks that the engine copied for copy-on-write or a swap.
    pub copies: u64,
    /// Number of cached blocks that the resets at the end of rounds removed.
    pub forgotten: u64,
}

/// The report of a soak.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The day of the soak, in UTC.
    pub date: String,
    /// The processor.
    pub processor: String,
    /// The commit.
    pub commit: String,
    /// The seed.
    pub seed: u64,
    /// A digest of all answers. Two soaks with equal seeds, settings and numbers of rounds have the
    /// same digest.
    pub digest: String,
    /// Number of blocks of each device, and number of tokens of a block.
    pub blocks: (usize, usize),
    /// The lines that the run printed. The last line has its final numbers.
    pub lines: Vec<Line>,
    /// Times of calls.
    pub times: Vec<(String, Times)>,
    /// The configurations.
    pub configurations: Vec<Configuration>,
    /// The use of heap memory during the soak.
    pub heap: Heap,
}

impl Report {
    pub(super) fn new(
        settings: &Settings,
        drivers: &[Driver],
        meter: &Meter,
        lines: Vec<Line>,
        heap: Heap,
    ) -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
        let commit = git.ok().filter(|output| output.status.success());
        let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let digest = drivers.iter().fold(0u64, |digest, driver| digest.rotate_left(7) ^ driver.digest);
        Self {
            date: now.chars().take_while(|&c| c != 'T').collect(),
            processor: model.map_or(std::env::consts::ARCH, |(_, name)| name).to_owned(),
            commit: commit.unwrap_or_else(|| "unknown".to_owned()),
            seed: settings.seed,
            digest: format!("{digest:016x}"),
            blocks: (settings.blocks, settings.block_size),
            lines,
            times: meter.table(),
            configurations: drivers.iter().map(Configuration::of).collect(),
            heap,
        }
    }
}

impl Configuration {
    fn of(driver: &Driver) -> Self {
        let (stats, checks) = (driver.stats(), driver.checks.max(1) as f64);
        Self {
            name: driver.preset.name(),
            settings: driver.preset.describe(),
            calls: driver.calls,
            filling: (driver.held / checks, driver.cached / checks),
            hit_rate: stats.hit_tokens as f64 / stats.prompt_tokens.max(1) as f64,
            admissions: stats.admissions,
            refusals: stats.refusals,
            preemptions: stats.preemptions,
            swapped: (stats.swapped_out, stats.swapped_in),
            evictions: stats.pool.evicted,
            copies: stats.copied_blocks,
            forgotten: driver.forgotten,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, processor, commit, seed, digest, blocks: (blocks, size), heap, .. } = self;
        let last = self.lines.last();
        let (calls, seconds) = last.map_or((0, 0.0), |line| (line.calls, line.seconds));
        writeln!(
            f,
            "# Soak of {seconds:.0} seconds, {date}\n\n\
             Commit {commit}, {processor}, one thread. Seed {seed}, digest {digest}. {calls} calls of \
             managers of \
             {blocks} blocks of {size} tokens.\n\n## Over time\n\n{}\n",
            table(
                &["seconds", "calls", "calls/s", "p50 us", "p99 us", "heap MiB"],
                0,
                self.lines.iter().map(Line::row)
            ),
        )?;
        let head = ["call", "count", "p50", "p99", "p99.9", "max"];
        let rows = self.times.iter().map(|(name, times)| times.row(name));
        writeln!(
            f,
            "## Times of calls, microseconds\n\nThe time of a call contains that of making its arguments \
             from a \
             record.\n\n{}\n",
            table(&head, 1, rows)
        )?;
        let head = [
            "policy",
            "settings",
            "calls",
            "held",
            "cached",
            "hit rate",
            "admitted",
            "refused",
            "preempted",
            "swapped out",
            "swapped in",
            "evicted",
            "copied",
            "forgotten",
        ];
        writeln!(
            f,
            "## Configurations\n\n{}\n",
            table(&head, 2, self.configurations.iter().map(Configuration::row))
        )?;
        let judged = if heap.judged { "" } else { " NOT JUDGED: the run is too short." };
        let resident = heap.resident.map_or_else(|| "?".to_owned(), |bytes| mebibytes(bytes as i64));
        writeln!(
            f,
            "## Memory\n\nHeap in use while no block is held or cached: {} MiB in the second quarter, {} \
             MiB in the \
             last. At most {} MiB more are allowed.{judged} Resident at the end: {resident} MiB.",
            mebibytes(heap.start),
            mebibytes(heap.end),
            mebibytes(heap.bound),
        )
    }
}

impl Line {
    fn row(&self) -> Vec<String> {
        vec![
            format!("{:.0}", self.seconds),
            self.calls.to_string(),
            format!("{:.0}", self.rate),
            microseconds(self.times.p50),
            microseconds(self.times.p99),
            mebibytes(self.heap),
        ]
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [seconds, calls, rate, p50, p99, heap] = self.row().try_into().unwrap_or_default();
        write!(f, "{seconds:>5} s  {calls:>10} calls  {rate:>7}/s  p50 {p50}  p99 {p99} us  heap {heap} MiB")
    }
}

impl Times {
    fn row(&self, name: &str) -> Vec<String> {
        let times = [self.p50, self.p99, self.p999, self.max].map(microseconds);
        [vec![name.to_owned(), self.count.to_string()], times.to_vec()].concat()
    }
}

impl Configuration {
    fn row(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let counts = [
            self.admissions,
            self.refusals,
            self.preemptions,
            self.swapped.0,
            self.swapped.1,
            self.evictions,
            self.copies,
            self.forgotten,
        ];
        let words = [self.name.to_owned(), self.settings.clone(), self.calls.to_string()];
        let shares = [self.filling.0, self.filling.1, self.hit_rate].map(percent);
        words.into_iter().chain(shares).chain(counts.map(|count| count.to_string())).collect()
    }
}

/// Returns a Markdown table. The first `left` columns are aligned to the left, the others to the right.
fn table(head: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head).add_rows(rows);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1}", nanoseconds as f64 / 1e3)
}

fn mebibytes(bytes: i64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}

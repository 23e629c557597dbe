//! Writes the arguments of calls as Rust or Python expressions.
//!
//! A recorded prompt is replaced by made-up tokens. Each of its blocks consists of zeros, except for
//! the last token, which is the number of the block's content. So a test describes a prompt by the
//! numbers of its blocks' contents and by the number of tokens in its last, partial block.

use crate::{
    AppendRecord, ChainRecord, ComputedRecord, CoveredRecord, EndedRecord, Filled, IdRecord, Ids,
    LoadedRecord, Name, OptionsRecord, Rows, UntilRecord,
};
use kvpool::retention::{Keep, Retention, Then, Ttl};
use kvpool::{AdmitOptions, HashAlgorithm, Part, RequestId, RetentionRange, Signal};

use super::text::{self, Language};
use crate::numbers::Numbers;

/// A function that returns the number of tokens that a request had before a call that appended tokens.
/// Its first argument is the request, its second the number of appended tokens.
pub(super) type Length<'a> = dyn Fn(&RequestId, usize) -> usize + 'a;

/// Writes the arguments of calls. Its fields stay the same during the export of a test.
pub(super) struct Arguments {
    pub(super) language: Language,
    pub(super) block_size: usize,
    /// The value of the pool's setting `verify`, which determines how hits are verified.
    pub(super) verify: &'static str,
    pub(super) numbers: Numbers,
}

impl Arguments {
    pub(super) fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    /// Returns `&` for Rust, and an empty text for Python. It precedes an argument that Rust borrows.
    pub(super) fn and(&self) -> &'static str {
        if self.is_rust() { "&" } else { "" }
    }

    fn contents(&self, chain: &ChainRecord) -> String {
        let numbers: Vec<String> = chain.keys.unpack().map(|key| self.numbers.of(key).to_string()).collect();
        numbers.join(", ")
    }

    /// Returns the content numbers of the first `start` blocks of a prompt. `part` contains the blocks
    /// after them.
    pub(super) fn leading(&self, part: &ChainRecord, start: usize) -> Vec<u32> {
        let first = part.keys.unpack().next();
        let mut path = first.map_or_else(Vec::new, |key| self.numbers.path(key, start as u32));
        path.truncate(start);
        path
    }

    pub(super) fn blocks(&self, blocks: &Ids) -> String {
        let ids: Vec<u32> = blocks.unpack().iter().map(|block| block.get()).collect();
        if self.is_rust() { format!("&ids(&{ids:?})") } else { format!("{ids:?}") }
    }

    /// Returns an expression for a chain. `leading` are the content numbers of the blocks before the
    /// chain.
    pub(super) fn chain(&self, chain: &ChainRecord, leading: &[u32]) -> String {
        let and = self.and();
        let kind = self.kind_of_chain(chain.algorithm, !chain.fingerprints.is_empty());
        let (size, epoch) = (chain.block_size, chain.epoch);
        let is_hashed = chain.has_tokens || chain.keys.is_empty() || !chain.fingerprints.is_empty();
        let function = if is_hashed { "chain" } else { "digests" };
        let mut contents: Vec<String> = leading.iter().map(ToString::to_string).collect();
        contents.push(self.contents(chain));
        contents.retain(|content| !content.is_empty());
        format!("{and}{function}({kind}, {size}, {and}[{}], {epoch})", contents.join(", "))
    }

    /// Returns two arguments for the functions of the test that make chains: the algorithm of the
    /// chain, and how hits on it are verified.
    pub(super) fn kind_of_chain(&self, algorithm: u8, has_fingerprints: bool) -> String {
        let algorithm = HashAlgorithm::ALL.get(usize::from(algorithm)).map_or("", |known| known.name());
        let verify = if has_fingerprints { self.verify } else { "none" };
        format!("\"{algorithm}\", \"{verify}\"")
    }

    pub(super) fn id(&self, id: &RequestId) -> String {
        match id {
            // Parenthesize a negative number, because in Rust a method call binds more tightly than the
            // sign.
            RequestId::Int(number @ ..0) if self.is_rust() => format!("({number}i64)"),
            RequestId::Int(number) if self.is_rust() => format!("{number}i64"),
            RequestId::Int(number) => number.to_string(),
            RequestId::Uint(number) if self.is_rust() => format!("{number}u64"),
            RequestId::Uint(number) => number.to_string(),
            RequestId::Str(id) if self.is_rust() => text::rust(id),
            RequestId::Str(id) => text::python(id),
        }
    }

    pub(super) fn names(&self, names: &[Name]) -> String {
        self.batch(names.iter().filter_map(|name| if let Name::Id(id) = name { Some(id) } else { None }))
    }

    pub(super) fn rows(&self, rows: &Rows) -> String {
        match rows {
            Rows::Ids(ids) => self.batch(ids.iter().map(|IdRecord(id)| id)),
            Rows::Same | Rows::Slots(_) => self.batch(std::iter::empty()),
        }
    }

    pub(super) fn until(&self, until: UntilRecord) -> String {
        let (rust, python) = match until {
            UntilRecord::Now => ("Until::Now".into(), String::new()),
            UntilRecord::Step(step) => (format!("Until::Step({step})"), format!("after_step={step}")),
            UntilRecord::Ticket(ticket) => {
                (format!("Until::Ticket(kvpool::Ticket::new({ticket}))"), format!("until={ticket}"))
            }
        };
        if self.is_rust() { rust } else { python }
    }

    pub(super) fn loaded(&self, loaded: &LoadedRecord) -> String {
        match loaded {
            LoadedRecord::AllBut(ranges) if self.is_rust() => format!("Loaded::AllBut(&{ranges:?})"),
            loaded if self.is_rust() => format!("Loaded::{loaded:?}"),
            LoadedRecord::All => String::new(),
            LoadedRecord::First(tokens) => tokens.to_string(),
            LoadedRecord::AllBut(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|range| (range.start, range.end)).collect();
                format!("failed={ranges:?}")
            }
        }
    }

    pub(super) fn batch<'b>(&self, ids: impl Iterator<Item = &'b RequestId>) -> String {
        let ids: Vec<String> = ids
            .map(|id| if self.is_rust() { format!("{}.into()", self.id(id)) } else { self.id(id) })
            .collect();
        format!("{}[{}]", self.and(), ids.join(", "))
    }

    pub(super) fn signal(&self, signal: Signal) -> String {
        let Signal { finish, output_tokens } = signal;
        if self.is_rust() {
            return format!(
                "kvpool::Signal {{ finish: kvpool::Finish::{finish:?}, output_tokens: {output_tokens:?} }}"
            );
        }
        let reason = finish.reason().map(|reason| format!("finish_reason=\"{reason}\""));
        let tokens = output_tokens.map(|tokens| format!("output_tokens={tokens}"));
        reason.into_iter().chain(tokens).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn ended(&self, EndedRecord { requests: names, signals }: &EndedRecord) -> String {
        let ids = names.iter().filter_map(|name| if let Name::Id(id) = name { Some(id) } else { None });
        if self.is_rust() {
            let pairs = ids
                .zip(signals)
                .map(|(id, signal)| format!("({}.into(), {})", self.id(id), self.signal(signal.signal())));
            return format!("&[{}]", pairs.collect::<Vec<_>>().join(", "));
        }
        let signals = signals.iter().map(|record| record.signal());
        let reasons = signals
            .clone()
            .map(|signal| signal.finish.reason().map_or("None".into(), |reason| format!("\"{reason}\"")));
        let tokens = signals
            .map(|signal| signal.output_tokens.map_or("None".into(), |tokens: u32| tokens.to_string()));
        let (reasons, tokens): (Vec<String>, Vec<String>) = (reasons.collect(), tokens.collect());
        let (reasons, tokens) = (reasons.join(", "), tokens.join(", "));
        format!("{}, finish_reason=[{reasons}], output_tokens=[{tokens}]", self.batch(ids))
    }

    pub(super) fn prompt(&self, prompt: &ChainRecord, foreign: bool) -> String {
        let contents = self.contents(prompt);
        let tail = prompt.tokens.saturating_sub(prompt.blocks().saturating_mul(self.block_size));
        let (function, epoch) = (if foreign { "foreign" } else { "prompt" }, prompt.epoch);
        match self.language {
            Language::Rust => format!("{function}(manager, &[{contents}], {tail}, {epoch})"),
            Language::Python => format!("{function}([{contents}], {tail}, {epoch})"),
        }
    }

    /// Returns an expression for `tokens` made-up tokens, which are appended to a request that has
    /// `length` tokens.
    pub(super) fn spelled(&self, length: usize, tokens: usize, filled: &Filled) -> String {
        let mut spelled = vec![0; tokens];
        self.spell(length, &mut spelled, &mut filled.keys.unpack());
        format!("{}{spelled:?}", self.and())
    }

    /// Replaces zeros by made-up tokens, which follow the first `length` tokens of a request. A token
    /// that completes a block becomes the number of the block's content. The other tokens stay as they
    /// are.
    fn spell(&self, length: usize, tokens: &mut [u32], keys: &mut impl Iterator<Item = u64>) {
        let first = self.block_size - 1 - length % self.block_size;
        for at in (first..tokens.len()).step_by(self.block_size) {
            let Some(key) = keys.next() else { return };
            tokens[at] = self.numbers.of(key);
        }
    }

    pub(super) fn append(&self, append: &AppendRecord, length: &Length<'_>) -> String {
        let mut keys = append.filled.keys.unpack();
        let mut spelled = vec![0; append.tokens];
        if let Rows::Ids(ids) = &append.rows {
            for (row, IdRecord(id)) in ids.iter().enumerate() {
                if let Some(tokens) = spelled.get_mut(append.ends(row)) {
                    self.spell(length(id, tokens.len()), tokens, &mut keys);
                }
            }
        }
        let AppendRecord { offsets, computed, covered, most_changes, .. } = append;
        let tokens = format!("{}{spelled:?}", self.and());
        self.ragged(self.rows(&append.rows), tokens, offsets, computed, covered, *most_changes)
    }

    /// Returns the arguments of an append for the requests (rows) of a batch: one `Rows` literal in
    /// Rust, several arguments in Python.
    pub(super) fn ragged(
        &self,
        requests: String,
        tokens: String,
        offsets: &[usize],
        computed: &ComputedRecord,
        covered: &CoveredRecord,
        most: Option<usize>,
    ) -> String {
        if self.is_rust() {
            let computed = match computed {
                ComputedRecord::Counts(counts) => format!("Computed::Counts(&{counts:?})"),
                computed => format!("Computed::{computed:?}"),
            };
            let covered = match covered {
                CoveredRecord::Each(counts) => format!("Covered::Each(&{counts:?})"),
                covered => format!("Covered::{covered:?}"),
            };
            return format!(
                "&Rows {{ requests: {requests}, tokens: {tokens}, offsets: &{offsets:?}, computed: \
                    {computed}, \
                 covered: {covered}, most_changes: {most:?} }}"
            );
        }
        let mut texts = vec![requests, tokens];
        texts.push(if offsets.is_empty() { "None".into() } else { format!("{offsets:?}") });
        match computed {
            ComputedRecord::Nothing => {}
            ComputedRecord::AllButLast => texts.push("commit=True".into()),
            ComputedRecord::Counts(counts) => texts.push(format!("computed={counts:?}")),
        }
        match covered {
            CoveredRecord::All => {}
            CoveredRecord::Lookahead(slots) => texts.push(format!("lookahead={slots}")),
            CoveredRecord::Each(counts) => texts.push(format!("covered={counts:?}")),
        }
        texts.extend(most.map(|most| format!("most={most}")));
        texts.join(", ")
    }

    /// Returns an expression for the part of a prompt that is admitted.
    pub(super) fn part(&self, part: Part) -> String {
        let Part { allocate_tokens, external_tokens, compute_all } = part;
        if self.is_rust() {
            return if part == Part::WHOLE { "Part::WHOLE".into() } else { format!("{part:?}") };
        }
        let chunk = allocate_tokens.map(|tokens| format!("allocate_tokens={tokens}"));
        let external = (external_tokens > 0).then(|| format!("external_tokens={external_tokens}"));
        let all = compute_all.then(|| "reuse=False".to_owned());
        [chunk, external, all].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn retention(&self, retention: &Retention) -> String {
        let Retention { keep, ttl, then } = retention;
        if self.is_rust() {
            let keep = match keep {
                Keep::Priority(priority) => {
                    format!("Keep::Priority(Priority::new({}).unwrap())", priority.get())
                }
                other => format!("Keep::{other:?}"),
            };
            let ttl = ttl.as_ref().map_or_else(
                || "None".into(),
                |ttl| match ttl {
                    Ttl::Idle(seconds) => format!("Some(Ttl::Idle({}))", text::seconds(*seconds, true)),
                    Ttl::Absolute(seconds) => {
                        format!("Some(Ttl::Absolute({}))", text::seconds(*seconds, true))
                    }
                },
            );
            return format!("Retention {{ keep: {keep}, ttl: {ttl}, then: Then::{then:?} }}");
        }
        let mut texts = Vec::new();
        match keep {
            Keep::Priority(priority) => texts.push(priority.get().to_string()),
            Keep::Pinned => texts.push("pinned=True".into()),
            _ => texts.push("demoted=True".into()),
        }
        match ttl {
            Some(Ttl::Idle(seconds)) => {
                texts.push(format!("ttl={}, idle=True", text::seconds(*seconds, false)));
            }
            Some(Ttl::Absolute(seconds)) => texts.push(format!("ttl={}", text::seconds(*seconds, false))),
            _ => {}
        }
        if *then == Then::Demote {
            texts.push("then=\"demote\"".into());
        }
        format!("kvpool.Retention({})", texts.join(", "))
    }

    pub(super) fn ranges(&self, ranges: &[RetentionRange]) -> String {
        let text = |range: &RetentionRange| {
            let retention = self.retention(&range.retention);
            if self.is_rust() {
                return format!(
                    "RetentionRange {{ start: {}, end: {:?}, retention: {retention} }}",
                    range.start, range.end
                );
            }
            let end = range.end.map_or_else(|| "None".into(), |end| end.to_string());
            format!("({}, {end}, {retention})", range.start)
        };
        let texts: Vec<String> = ranges.iter().map(text).collect();
        format!("[{}]", texts.join(", "))
    }

    pub(super) fn options(&self, record: &OptionsRecord) -> String {
        let options = record.options();
        let part = self.part(options.part);
        if self.is_rust() {
            if options == AdmitOptions::default() {
                return "&AdmitOptions::default()".into();
            }
            let tenant = options.tenant.map(|tenant| format!("Some(TenantId({}))", tenant.0));
            let (tenant, no_cache) = (tenant.unwrap_or_else(|| "None".into()), options.no_cache);
            let ranges = self.ranges(&options.ranges);
            return format!(
                "&AdmitOptions {{ part: {part}, tenant: {tenant}, no_cache: {no_cache}, ranges: \
                    vec!{ranges} }}"
            );
        }
        let mut texts = Vec::new();
        texts.extend((!part.is_empty()).then_some(part));
        texts.extend(options.tenant.map(|tenant| format!("tenant={}", tenant.0)));
        texts.extend(options.no_cache.then(|| "no_cache=True".into()));
        if !options.ranges.is_empty() {
            texts.push(format!("retention={}", self.ranges(&options.ranges)));
        }
        texts.join(", ")
    }
}

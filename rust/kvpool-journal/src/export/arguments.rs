//! Arguments of calls, as texts of two languages.
//!
//! A block of a made-up prompt is zeros that end in the number of its content, so a prompt is told by the numbers of its blocks
//! and the length of its tail.

use crate::{
    ChainRecord, ComputedRecord, CoveredRecord, Ids, Keys, LoadedRecord, Name, OptionsRecord, PartRecord,
    RangeRecord, Rows, SignalRecord, UntilRecord,
};
use hashbrown::HashMap;
use kvpool::retention::{Keep, Retention, Then, Ttl};
use kvpool::{AdmitOptions, HashAlgorithm, Part, RequestId, RetentionRange, Signal};

use super::{Language, text};
use crate::numbers::Numbers;

/// An argument of a call. Those that Python leaves out are empty texts there.
pub(super) enum Argument<'a> {
    Number(u64),
    Numbers(&'a [usize]),
    Time(f64),
    Tenant(u32),
    Ticket(u64),
    Blocks(&'a Ids),
    Swap(u64),
    End(UntilRecord),
    Part(PartRecord),
    Loaded(&'a LoadedRecord),
    /// Requests and tokens, offsets, what is computed, what is covered, and the most changes.
    Ragged(Box<[Argument<'a>; 2]>, &'a [usize], &'a ComputedRecord, &'a CoveredRecord, Option<usize>),
    Lookahead(usize),
    Request(&'a RequestId),
    Requests(&'a [RequestId]),
    Name(&'a Name),
    Names(&'a [Name]),
    Ended(&'a [Name], &'a [SignalRecord]),
    Rows(&'a Rows),
    Prompt(&'a ChainRecord, bool),
    Borrowed(&'a ChainRecord, bool),
    Sampled(&'a Rows, usize, &'a [usize], &'a Keys),
    Appended(&'a Name, usize, &'a Keys),
    Ranges(&'a [RangeRecord]),
    Options(&'a OptionsRecord),
    Plan,
}

/// What arguments are written with.
pub(super) struct Arguments {
    pub(super) language: Language,
    pub(super) block_size: usize,
    /// How the pool verifies hits, by name.
    pub(super) verify: &'static str,
    pub(super) numbers: Numbers,
    /// Tokens of each request.
    pub(super) lengths: HashMap<RequestId, usize>,
}

impl Arguments {
    pub(super) fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    fn contents(&self, chain: &ChainRecord) -> String {
        let numbers: Vec<String> = chain.keys.unpack().map(|key| self.numbers.of(key).to_string()).collect();
        numbers.join(", ")
    }

    /// The numbers of what is before a part of a chain.
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

    /// A chain, with what is before it.
    pub(super) fn chain(&self, chain: &ChainRecord, leading: &[u32]) -> String {
        let and = if self.is_rust() { "&" } else { "" };
        let kind = self.kind_of_chain(chain.algorithm, !chain.fingerprints.is_empty());
        let (size, epoch) = (chain.block_size, chain.epoch);
        let function = if chain.has_tokens || chain.keys.is_empty() { "chain" } else { "digests" };
        let mut contents: Vec<String> = leading.iter().map(ToString::to_string).collect();
        contents.push(self.contents(chain));
        contents.retain(|content| !content.is_empty());
        format!("{and}{function}({kind}, {size}, {and}[{}], {epoch})", contents.join(", "))
    }

    /// The arguments of a call, one behind the other.
    pub(super) fn texts(&self, arguments: &[Argument<'_>]) -> String {
        let texts: Vec<String> = arguments.iter().map(|argument| self.text(argument)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        texts.join(", ")
    }

    /// A keyword argument of Python, or a plain one of Rust.
    fn keyword(&self, rust: String, python: Option<String>) -> String {
        if self.is_rust() { rust } else { python.unwrap_or_default() }
    }

    fn text(&self, argument: &Argument<'_>) -> String {
        let rust = self.is_rust();
        let and = if rust { "&" } else { "" };
        match argument {
            Argument::Swap(number) if rust => format!("SwapId::from_number({number})"),
            Argument::Number(number) | Argument::Swap(number) => number.to_string(),
            Argument::Numbers(numbers) => format!("{and}{numbers:?}"),
            Argument::Time(time) => text::seconds(*time, rust),
            Argument::Tenant(tenant) if rust => format!("TenantId({tenant})"),
            Argument::Tenant(tenant) => tenant.to_string(),
            Argument::Ticket(ticket) if rust => format!("kvpool::Ticket::new({ticket})"),
            Argument::Ticket(ticket) => ticket.to_string(),
            Argument::Blocks(blocks) => self.blocks(blocks),
            Argument::End(UntilRecord::Now) => self.keyword("Until::Now".into(), None),
            Argument::End(UntilRecord::Step(step)) => {
                self.keyword(format!("Until::Step({step})"), Some(format!("after_step={step}")))
            }
            Argument::End(UntilRecord::Ticket(ticket)) => {
                let rust = format!("Until::Ticket(kvpool::Ticket::new({ticket}))");
                self.keyword(rust, Some(format!("until={ticket}")))
            }
            Argument::Part(part) => self.part(part.part()),
            Argument::Loaded(loaded) if rust => match loaded {
                LoadedRecord::AllBut(ranges) => format!("Loaded::AllBut(&{ranges:?})"),
                loaded => format!("Loaded::{loaded:?}"),
            },
            Argument::Loaded(LoadedRecord::All) => String::new(),
            Argument::Loaded(LoadedRecord::First(tokens)) => tokens.to_string(),
            Argument::Loaded(LoadedRecord::AllBut(ranges)) => {
                let ranges: Vec<_> = ranges.iter().map(|range| (range.start, range.end)).collect();
                format!("failed={ranges:?}")
            }
            Argument::Ragged(row, offsets, computed, covered, most) => {
                self.ragged(row, offsets, computed, covered, *most)
            }
            Argument::Lookahead(slots) => {
                self.keyword(slots.to_string(), (*slots > 0).then(|| format!("lookahead={slots}")))
            }
            Argument::Request(id) => self.id(id),
            Argument::Requests(ids) => self.batch(ids.iter()),
            Argument::Name(Name::Id(id)) => self.id(id),
            Argument::Name(Name::Slot(slot)) => slot.to_string(),
            Argument::Names(names) => {
                let ids: Vec<&RequestId> = names
                    .iter()
                    .filter_map(|name| if let Name::Id(id) = name { Some(id) } else { None })
                    .collect();
                self.batch(ids.into_iter())
            }
            Argument::Ended(names, signals) => self.ended(names, signals),
            Argument::Rows(Rows::Ids(ids)) => self.batch(ids.iter()),
            Argument::Rows(_) => self.batch(std::iter::empty()),
            Argument::Prompt(prompt, foreign) => self.prompt(prompt, *foreign),
            Argument::Borrowed(prompt, foreign) => format!("{and}{}", self.prompt(prompt, *foreign)),
            Argument::Sampled(rows, tokens, offsets, filled) => self.sampled(rows, *tokens, offsets, filled),
            Argument::Appended(name, tokens, filled) => self.appended(name, *tokens, filled),
            Argument::Ranges(ranges) => {
                let ranges: Vec<RetentionRange> = ranges.iter().map(RangeRecord::range).collect();
                format!("{and}{}", self.ranges(&ranges))
            }
            Argument::Options(options) => self.options(options),
            Argument::Plan => if rust { "&mut plan" } else { "" }.into(),
        }
    }

    /// How a chain was hashed: algorithm, and what hits on it are verified with.
    pub(super) fn kind_of_chain(&self, algorithm: u8, has_fingerprints: bool) -> String {
        let algorithm = HashAlgorithm::ALL.get(usize::from(algorithm)).map_or("", |known| known.name());
        let verify = if has_fingerprints { self.verify } else { "none" };
        format!("\"{algorithm}\", \"{verify}\"")
    }

    fn id(&self, id: &RequestId) -> String {
        match id {
            RequestId::Int(number) if self.is_rust() => format!("{number}i64"),
            RequestId::Int(number) => number.to_string(),
            RequestId::Uint(number) if self.is_rust() => format!("{number}u64"),
            RequestId::Uint(number) => number.to_string(),
            RequestId::Str(id) if self.is_rust() => text::rust(id),
            RequestId::Str(id) => text::python(id),
        }
    }

    fn batch<'b>(&self, ids: impl Iterator<Item = &'b RequestId>) -> String {
        let ids: Vec<String> = ids
            .map(|id| if self.is_rust() { format!("{}.into()", self.id(id)) } else { self.id(id) })
            .collect();
        format!("{}[{}]", if self.is_rust() { "&" } else { "" }, ids.join(", "))
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

    /// Requests, and how each ended.
    fn ended(&self, names: &[Name], signals: &[SignalRecord]) -> String {
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
        format!("{}, finish_reasons=[{reasons}], output_tokens=[{tokens}]", self.batch(ids))
    }

    fn prompt(&self, prompt: &ChainRecord, foreign: bool) -> String {
        let contents = self.contents(prompt);
        let tail = prompt.tokens.saturating_sub(prompt.blocks().saturating_mul(self.block_size));
        let (function, epoch) = (if foreign { "foreign" } else { "prompt" }, prompt.epoch);
        match self.language {
            Language::Rust => format!("{function}(manager, &[{contents}], {tail}, {epoch})"),
            Language::Python => format!("{function}([{contents}], {tail}, {epoch})"),
        }
    }

    /// The tokens of a batch, row by row.
    fn sampled(&self, rows: &Rows, tokens: usize, offsets: &[usize], filled: &Keys) -> String {
        let mut keys = filled.unpack();
        let mut spelled = vec![0; tokens];
        if let Rows::Ids(ids) = rows {
            for (row, id) in ids.iter().enumerate() {
                let ends = offsets.get(row..row + 2).map_or(row..row + 1, |ends| ends[0]..ends[1]);
                if let (Some(&length), Some(tokens)) = (self.lengths.get(id), spelled.get_mut(ends)) {
                    self.spell(length, tokens, &mut keys);
                }
            }
        }
        format!("{}{spelled:?}", if self.is_rust() { "&" } else { "" })
    }

    fn appended(&self, name: &Name, tokens: usize, filled: &Keys) -> String {
        let length = if let Name::Id(id) = name { self.lengths.get(id).copied().unwrap_or(0) } else { 0 };
        let mut spelled = vec![0; tokens];
        self.spell(length, &mut spelled, &mut filled.unpack());
        format!("{}{spelled:?}", if self.is_rust() { "&" } else { "" })
    }

    /// Tokens behind the first `length` ones of a request: those that fill a block are the numbers of its content.
    fn spell(&self, length: usize, tokens: &mut [u32], keys: &mut impl Iterator<Item = u64>) {
        let first = self.block_size - 1 - length % self.block_size;
        for at in (first..tokens.len()).step_by(self.block_size) {
            let Some(key) = keys.next() else { return };
            tokens[at] = self.numbers.of(key);
        }
    }

    /// Rows of a batch.
    fn ragged(
        &self,
        row: &[Argument<'_>; 2],
        offsets: &[usize],
        computed: &ComputedRecord,
        covered: &CoveredRecord,
        most: Option<usize>,
    ) -> String {
        let [requests, tokens] = [self.text(&row[0]), self.text(&row[1])];
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
                "&Rows {{ requests: {requests}, tokens: {tokens}, offsets: &{offsets:?}, computed: {computed}, \
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

    /// How much of a prompt is admitted.
    fn part(&self, part: Part) -> String {
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

    fn ranges(&self, ranges: &[RetentionRange]) -> String {
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

    fn options(&self, record: &OptionsRecord) -> String {
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
                "&AdmitOptions {{ part: {part}, tenant: {tenant}, no_cache: {no_cache}, ranges: vec!{ranges} }}"
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

    pub(super) fn forget_length(&mut self, name: &Name) {
        if let Name::Id(id) = name {
            self.lengths.remove(id);
        }
    }

    pub(super) fn set_length(&mut self, id: &RequestId, tokens: usize) {
        self.lengths.insert(id.clone(), tokens);
    }

    pub(super) fn lengthen(&mut self, id: &RequestId, tokens: usize) {
        *self.lengths.entry_ref(id).or_default() += tokens;
    }

    pub(super) fn set_length_named(&mut self, name: &Name, tokens: usize) {
        if let Name::Id(id) = name {
            self.set_length(id, tokens);
        }
    }

    pub(super) fn lengthen_named(&mut self, name: &Name, tokens: usize) {
        if let Name::Id(id) = name {
            self.lengthen(id, tokens);
        }
    }

    pub(super) fn copy_length(&mut self, from: &Name, to: &RequestId) {
        if let Name::Id(id) = from
            && let Some(&length) = self.lengths.get(id)
        {
            self.lengths.insert(to.clone(), length);
        }
    }
}

//! The text of an exported test: calls and arguments in two languages.
//!
//! Contents are numbered as they come. A block of a made-up prompt is zeros that end in its number, so a prompt is told by the
//! numbers of its blocks and the length of its tail.

use std::fmt::Write as _;

use hashbrown::HashMap;
use kvpool::journal::{
    ChainRecord, HintsRecord, Ids, JournalHeader, Keys, LinkRecord, Name, RangeRecord, RetentionRecord, Rows,
};
use kvpool::retention::{Keep, Retention, Then, Ttl};
use kvpool::{RequestId, RetentionRange};

use crate::error::ReplayError;
use crate::export::{Language, is_manager};

/// An argument of a call.
pub(crate) enum Argument<'a> {
    Number(u64),
    Numbers(&'a [usize]),
    Most(usize),
    Time(f64),
    Tenant(u32),
    Block(u32),
    Blocks(&'a Ids),
    Swap(u64),
    After(Option<u64>),
    EndOfLife(bool),
    CommitFirst(bool),
    Lookahead(usize),
    Request(&'a RequestId),
    Name(&'a Name),
    Names(&'a [Name]),
    Rows(&'a Rows),
    Chain(&'a ChainRecord),
    Link(&'a LinkRecord),
    Prompt(&'a ChainRecord),
    Borrowed(&'a ChainRecord),
    Sampled(&'a Rows, usize, &'a Keys),
    Appended(&'a Name, usize, &'a Keys),
    Retention(RetentionRecord),
    Ranges(&'a [RangeRecord]),
    Hints(&'a HintsRecord),
    Plan,
}

/// A test that is being written.
pub(crate) struct Source {
    language: Language,
    block_size: usize,
    manager: bool,
    head: String,
    body: String,
    numbers: HashMap<u64, u32>,
    lengths: HashMap<RequestId, usize>,
}

impl Source {
    pub(crate) fn new(language: Language, header: &JournalHeader) -> Result<Self, ReplayError> {
        let manager = is_manager(header);
        let config = header.manager_config()?;
        let mut source = Self {
            language,
            block_size: config.block_size,
            manager,
            head: String::new(),
            body: String::new(),
            numbers: HashMap::new(),
            lengths: HashMap::new(),
        };
        let settings = match language {
            Language::Rust => crate::templates::rust_settings(&config, manager),
            Language::Python => crate::templates::python_settings(&config, manager),
        };
        source.head = match (language, manager) {
            (Language::Rust, true) => crate::templates::RUST_MANAGER,
            (Language::Rust, false) => crate::templates::RUST_POOL,
            (Language::Python, true) => crate::templates::PYTHON_MANAGER,
            (Language::Python, false) => crate::templates::PYTHON_POOL,
        }
        .replace("SETTINGS", &settings);
        Ok(source)
    }

    pub(crate) fn finish(self) -> String {
        let end = if self.language == Language::Rust { "}\n" } else { "" };
        format!("{}{}{end}", self.head, self.body)
    }

    const fn subject(&self) -> &'static str {
        if self.manager { "manager" } else { "pool" }
    }

    fn line(&mut self, text: &str) {
        // Writing to a text cannot fail.
        let _written = writeln!(self.body, "    {text}");
    }

    pub(crate) fn begin_step(&mut self) {
        self.line(match self.language {
            Language::Rust => "let mut plan = manager.begin_step();",
            Language::Python => "plan = manager.begin_step()",
        });
    }

    pub(crate) fn call(&mut self, number: u64, name: &str, arguments: &[Argument<'_>], told: &str) {
        let subject = self.subject();
        let told: String =
            told.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(160).collect();
        let planning = told.is_empty();
        let texts: Vec<String> = arguments.iter().map(|argument| self.text(argument)).collect();
        let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let arguments = texts.join(", ");
        if !planning {
            let mark = if self.language == Language::Rust { "//" } else { "#" };
            self.line(&format!("{mark} {number}: {told}"));
        }
        match self.language {
            Language::Rust => {
                self.line(&format!("let _ = {subject}.{name}({arguments});"));
                if !planning {
                    self.line(&format!("{subject}.check_invariants().unwrap();"));
                }
            }
            Language::Python => {
                let (object, method) = match name {
                    "commit_step" => ("plan", "commit"),
                    _ if name.starts_with("plan_") => ("plan", name.trim_start_matches("plan_")),
                    _ => (subject, name),
                };
                let method = method.trim_end_matches("_with").trim_end_matches("_for");
                let comma = if arguments.is_empty() { "" } else { ", " };
                self.line(&format!("attempt({object}.{method}{comma}{arguments})"));
                if !planning {
                    self.line(&format!("{subject}.check_invariants()"));
                }
            }
        }
    }

    /// The number of a content.
    fn number(&mut self, key: u64) -> u32 {
        let next = self.numbers.len() as u32 + 1;
        *self.numbers.entry(key).or_insert(next)
    }

    fn contents(&mut self, chain: &ChainRecord) -> String {
        let numbers: Vec<String> = chain.keys.unpack().map(|key| self.number(key).to_string()).collect();
        numbers.join(", ")
    }

    fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    fn text(&mut self, argument: &Argument<'_>) -> String {
        let rust = self.is_rust();
        match argument {
            Argument::Swap(number) if rust => format!("SwapId::from_number({number})"),
            Argument::Number(number) | Argument::Swap(number) => number.to_string(),
            Argument::Numbers(numbers) => format!("{}{numbers:?}", if rust { "&" } else { "" }),
            Argument::Most(usize::MAX) => if rust { "usize::MAX" } else { "None" }.into(),
            Argument::Most(most) => most.to_string(),
            Argument::Time(time) => {
                format!("{time:?}").replace("inf", if rust { "f64::INFINITY" } else { "float('inf')" })
            }
            Argument::Tenant(tenant) if rust => format!("TenantId({tenant})"),
            Argument::Tenant(tenant) => tenant.to_string(),
            Argument::Block(block) if rust => format!("BlockId::new({block})"),
            Argument::Block(block) => block.to_string(),
            Argument::Blocks(blocks) => {
                let ids: Vec<u32> = blocks.unpack().iter().map(|block| block.get()).collect();
                if rust { format!("&ids(&{ids:?})") } else { format!("{ids:?}") }
            }
            Argument::After(None) => {
                if rust {
                    "None".into()
                } else {
                    String::new()
                }
            }
            Argument::After(Some(step)) if rust => format!("Some({step})"),
            Argument::After(Some(step)) => format!("after_step={step}"),
            Argument::EndOfLife(ends) if rust => ends.to_string(),
            Argument::EndOfLife(ends) => {
                if *ends {
                    "end_of_life=True".into()
                } else {
                    String::new()
                }
            }
            Argument::CommitFirst(first) if rust => first.to_string(),
            Argument::CommitFirst(first) => {
                if *first {
                    "commit=True".into()
                } else {
                    String::new()
                }
            }
            Argument::Lookahead(slots) if rust => slots.to_string(),
            Argument::Lookahead(slots) => {
                if *slots > 0 {
                    format!("lookahead={slots}")
                } else {
                    String::new()
                }
            }
            Argument::Request(id) => self.id(id),
            Argument::Name(Name::Id(id)) => self.id(id),
            Argument::Name(Name::Slot(slot)) => slot.to_string(),
            Argument::Names(names) => {
                let ids: Vec<&RequestId> = names
                    .iter()
                    .filter_map(|name| if let Name::Id(id) = name { Some(id) } else { None })
                    .collect();
                self.batch(ids.into_iter())
            }
            Argument::Rows(Rows::Ids(ids)) => self.batch(ids.iter()),
            Argument::Rows(_) => self.batch(std::iter::empty()),
            Argument::Chain(chain) => {
                let contents = self.contents(chain);
                let epoch = chain.epoch;
                format!(
                    "{}chain({}[{contents}], {epoch})",
                    if rust { "&" } else { "" },
                    if rust { "&" } else { "" }
                )
            }
            Argument::Link(link) => {
                let parent = link.parent.map(|key| self.number(key));
                let own = self.number(link.key);
                let parents = parent.map_or_else(String::new, |parent| format!("{parent}, "));
                let and = if rust { "&" } else { "" };
                format!("{and}link({and}[{parents}{own}], {})", link.epoch)
            }
            Argument::Prompt(prompt) => self.prompt(prompt),
            Argument::Borrowed(prompt) => format!("{}{}", if rust { "&" } else { "" }, self.prompt(prompt)),
            Argument::Sampled(rows, tokens, filled) => self.sampled(rows, *tokens, filled),
            Argument::Appended(name, tokens, filled) => self.appended(name, *tokens, filled),
            Argument::Retention(record) => self.retention(&record.retention()),
            Argument::Ranges(ranges) => {
                let ranges: Vec<RetentionRange> = ranges.iter().map(RangeRecord::range).collect();
                format!("{}{}", if rust { "&" } else { "" }, self.ranges(&ranges))
            }
            Argument::Hints(hints) => self.hints(hints),
            Argument::Plan => {
                if rust {
                    "&mut plan".into()
                } else {
                    String::new()
                }
            }
        }
    }

    fn id(&self, id: &RequestId) -> String {
        match id {
            RequestId::Int(number) if self.is_rust() => format!("{number}i64"),
            RequestId::Int(number) => number.to_string(),
            RequestId::Str(text) => format!("{text:?}"),
        }
    }

    fn batch<'a>(&self, ids: impl Iterator<Item = &'a RequestId>) -> String {
        let ids: Vec<String> = ids
            .map(|id| if self.is_rust() { format!("{}.into()", self.id(id)) } else { self.id(id) })
            .collect();
        format!("{}[{}]", if self.is_rust() { "&" } else { "" }, ids.join(", "))
    }

    fn prompt(&mut self, prompt: &ChainRecord) -> String {
        let contents = self.contents(prompt);
        let tail = prompt.tokens - prompt.blocks() * self.block_size;
        match self.language {
            Language::Rust => {
                format!("manager.prepare(&tokens(&[{contents}], {tail}), ExtraKeys::default()).unwrap()")
            }
            Language::Python => format!("tokens([{contents}], {tail})"),
        }
    }

    /// One token for each row of a batch.
    fn sampled(&mut self, rows: &Rows, tokens: usize, filled: &Keys) -> String {
        let mut keys = filled.unpack();
        let mut spelled = vec![0; tokens];
        if let Rows::Ids(ids) = rows {
            for (id, token) in ids.iter().zip(&mut spelled) {
                let fills = self.lengths.get(id).is_some_and(|length| (length + 1) % self.block_size == 0);
                if let Some(key) = fills.then(|| keys.next()).flatten() {
                    *token = self.number(key);
                }
            }
        }
        format!("{}{spelled:?}", if self.is_rust() { "&" } else { "" })
    }

    fn appended(&mut self, name: &Name, tokens: usize, filled: &Keys) -> String {
        let length = if let Name::Id(id) = name { self.lengths.get(id).copied().unwrap_or(0) } else { 0 };
        let mut spelled = vec![0; tokens];
        let first = self.block_size - 1 - length % self.block_size;
        let keys: Vec<u64> = filled.unpack().collect();
        for (at, key) in (first..tokens).step_by(self.block_size).zip(keys) {
            spelled[at] = self.number(key);
        }
        format!("{}{spelled:?}", if self.is_rust() { "&" } else { "" })
    }

    fn retention(&self, retention: &Retention) -> String {
        let Retention { keep, ttl, then } = retention;
        if self.is_rust() {
            let keep = match keep {
                Keep::Priority(priority) => {
                    format!("Keep::Priority(Priority::new({}).unwrap())", priority.get())
                }
                other => format!("Keep::{other:?}"),
            };
            let ttl = ttl.map_or_else(|| "None".into(), |ttl| format!("Some(Ttl::{ttl:?})"));
            return format!("Retention {{ keep: {keep}, ttl: {ttl}, then: Then::{then:?} }}");
        }
        let mut texts = Vec::new();
        match keep {
            Keep::Priority(priority) => texts.push(priority.get().to_string()),
            Keep::Pinned => texts.push("pinned=True".into()),
            _ => texts.push("demoted=True".into()),
        }
        match ttl {
            Some(Ttl::Idle(seconds)) => texts.push(format!("ttl={seconds:?}, idle=True")),
            Some(Ttl::Absolute(seconds)) => texts.push(format!("ttl={seconds:?}")),
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

    fn hints(&self, record: &HintsRecord) -> String {
        let hints = record.hints();
        if self.is_rust() {
            if hints.is_empty() {
                return "&RequestHints::default()".into();
            }
            let tenant =
                hints.tenant.map_or_else(|| "None".into(), |tenant| format!("Some(TenantId({}))", tenant.0));
            let ranges = self.ranges(&hints.ranges);
            return format!(
                "&RequestHints {{ tenant: {tenant}, no_cache: {}, ranges: vec!{ranges} }}",
                hints.no_cache
            );
        }
        let mut texts = Vec::new();
        if let Some(tenant) = hints.tenant {
            texts.push(format!("tenant={}", tenant.0));
        }
        if hints.no_cache {
            texts.push("no_cache=True".into());
        }
        if !hints.ranges.is_empty() {
            texts.push(format!("retention={}", self.ranges(&hints.ranges)));
        }
        texts.join(", ")
    }

    pub(crate) fn set_length(&mut self, id: &RequestId, tokens: usize) {
        self.lengths.insert(id.clone(), tokens);
    }

    pub(crate) fn lengthen(&mut self, id: &RequestId, tokens: usize) {
        *self.lengths.entry_ref(id).or_default() += tokens;
    }

    pub(crate) fn set_length_named(&mut self, name: &Name, tokens: usize) {
        if let Name::Id(id) = name {
            self.set_length(id, tokens);
        }
    }

    pub(crate) fn lengthen_named(&mut self, name: &Name, tokens: usize) {
        if let Name::Id(id) = name {
            self.lengthen(id, tokens);
        }
    }

    pub(crate) fn copy_length(&mut self, from: &Name, to: &RequestId) {
        if let Name::Id(id) = from
            && let Some(&length) = self.lengths.get(id)
        {
            self.lengths.insert(to.clone(), length);
        }
    }
}

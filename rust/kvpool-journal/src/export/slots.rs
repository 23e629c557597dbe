//! Writes each kind of argument as a Rust or Python expression.

use kvpool::retention::Ttl;
use kvpool_vllm::Key;

use super::arguments::{Arguments, Length};
use super::text;
use crate::calls::Slot;
use crate::value::Value;
use crate::{
    ChainRecord, ComputedRecord, CoveredRecord, ForksRecord, IdRecord, MatchRecord, Name, Planned,
    PromptRecord, RangeRecord, StartRecord, TurnRecord,
};

/// Returns the reason why the Python package cannot make the arguments of a call, or `None` if it can
/// make them.
pub(super) fn unmade(slots: Vec<Slot<'_>>) -> Option<&'static str> {
    slots.into_iter().find_map(|slot| match slot {
        Slot::Hint(record) => match record.retention().ttl {
            Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)) if seconds.is_nan() || seconds < 0.0 => {
                Some("a time to live is negative or no number")
            }
            _ => None,
        },
        Slot::Chain(ChainRecord { block_size: 0, .. })
        | Slot::Found(MatchRecord { chain: ChainRecord { block_size: 0, .. }, .. }) => {
            Some("a chain has blocks without tokens")
        }
        _ => None,
    })
}

impl Arguments {
    /// Returns the arguments of a call, in order. Python leaves out arguments that have their default
    /// value.
    pub(super) fn of(&self, slots: Vec<Slot<'_>>, length: &Length<'_>) -> String {
        text::listed(slots.into_iter().map(|slot| self.slot(slot, length)))
    }

    fn slot(&self, slot: Slot<'_>, length: &Length<'_>) -> String {
        let pick = |rust: String, python: String| if self.is_rust() { rust } else { python };
        match slot {
            Slot::Count(n) | Slot::Start(n) | Slot::Size(n) => n.to_string(),
            Slot::AtMost(&mut usize::MAX) => pick("usize::MAX".into(), "None".into()),
            Slot::AtMost(n) => n.to_string(),
            Slot::Step(n) => n.to_string(),
            Slot::Ticket(n) => pick(format!("kvpool::Ticket::new({n})"), n.to_string()),
            Slot::Until(n) => pick(format!("kvpool::Ticket::new({n})"), format!("until={n}")),
            Slot::Seconds(n) => text::seconds(*n, self.is_rust()),
            Slot::Tenant(n) => pick(format!("TenantId({n})"), n.to_string()),
            Slot::ForTenant(None) => String::new(),
            Slot::ForTenant(Some(n)) => pick(format!("TenantId({n})"), format!("tenant={n}")),
            Slot::Block(n) => pick(format!("BlockId::new({n})"), n.to_string()),
            Slot::Held(ids) | Slot::Part(ids) | Slot::Table(ids) | Slot::Named(ids) | Slot::Free(ids) => {
                self.blocks(ids)
            }
            Slot::Chain(chain) => self.chain(chain, &[]),
            Slot::Link(link) => {
                let kind = self.kind_of_chain(link.algorithm, link.fingerprint.is_some());
                let path = self.numbers.path(link.key, link.depth);
                let and = self.and();
                format!("{and}link({kind}, {}, {and}{path:?}, {})", link.block_size, link.epoch)
            }
            Slot::Found(MatchRecord { blocks, chain, start }) => {
                // The position at which an empty match begins has no effect, so write 0.
                let start = if blocks.is_empty() { 0 } else { *start };
                let (blocks, chain) = (self.blocks(blocks), self.chain(chain, &self.leading(chain, start)));
                pick(
                    format!("&Match::new({chain}, {start}, {blocks}).unwrap()"),
                    format!("kvpool.Match({chain}, {blocks}, {start})"),
                )
            }
            Slot::Hint(record) => self.retention(&record.retention()),
            Slot::Ended(record) => self.signal(record.signal()),
            Slot::Id(n) | Slot::Object(n) | Slot::Depth(n) | Slot::Group(n) => n.to_string(),
            Slot::References(n) => n.to_string(),
            Slot::At(&mut StartRecord { first, before }) => pick(
                format!("Start {{ first: {first}, before: {before:?} }}"),
                format!("{first}, {}", text::or_none(before)),
            ),
            Slot::Hash(key) => pick(rust_key(key), text::bytes(key.as_bytes())),
            Slot::Parent(None) => "None".into(),
            Slot::Parent(Some(key)) => pick(format!("Some(&{})", rust_key(key)), text::bytes(key.as_bytes())),
            Slot::Tokens(n) => pick(format!("{n:?}"), text::or_none(*n)),
            Slot::Flag(is) | Slot::QueueEnd(is) => pick(is.to_string(), text::value(&Value::Flag(*is))),
            Slot::Numbers(blocks) | Slot::Claimed(blocks) => {
                pick(format!("&{blocks:?}"), format!("{blocks:?}"))
            }
            Slot::Objects(blocks) => pick(format!("&{blocks:?}"), format!("table(pool, {blocks:?})")),
            Slot::Freed(blocks) => {
                pick(format!("Vec::<u32>::from({blocks:?})"), format!("table(pool, {blocks:?})"))
            }
            Slot::Hashes(keys) => {
                let key = |key: &Option<Key>| {
                    let known =
                        |key: &Key| pick(format!("Some({})", rust_key(key)), text::bytes(key.digest()));
                    key.as_ref().map_or_else(|| "None".into(), known)
                };
                let keys: Vec<String> = keys.iter().map(key).collect();
                format!("{}[{}]", self.and(), keys.join(", "))
            }
            Slot::Request(name) => self.name(name),
            Slot::Requests(names) => self.names(names),
            Slot::Batch(rows) => self.rows(rows),
            Slot::NewRequest(IdRecord(id)) => self.id(id),
            Slot::Forks(ForksRecord { parents, children }) => {
                let children = self.batch(children.iter().map(|IdRecord(id)| id));
                format!("{}, {children}", self.names(parents))
            }
            Slot::Ending(ended) => self.ended(ended),
            Slot::Reuse(until) => self.until(*until),
            Slot::Prompt(PromptRecord { chain, foreign }) => self.prompt(chain, *foreign),
            Slot::Portion(part) => self.part(part.part()),
            Slot::Options(options) => self.options(options),
            Slot::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(RangeRecord::range).collect();
                format!("{}{}", self.and(), self.ranges(&ranges))
            }
            Slot::Length(n) => n.to_string(),
            Slot::Lengths(counts) => format!("{}{counts:?}", self.and()),
            // The call of the test has no such argument, because its manager hashes the prompt again
            // itself.
            Slot::Rehashed(_) => String::new(),
            Slot::Append(append) => self.append(append, length),
            Slot::Turn(turn) => self.turn(turn, length),
            Slot::Load(loaded) => self.loaded(loaded),
            Slot::Swap(n) => pick(format!("SwapId::from_number({n})"), n.to_string()),
            Slot::Plan(_) => pick("&mut plan".into(), String::new()),
        }
    }

    fn turn(&self, turn: &TurnRecord, length: &Length<'_>) -> String {
        let TurnRecord { request, tokens, lookahead, filled } = turn;
        let before = if let Name::Id(id) = request { length(id, *tokens) } else { 0 };
        let ahead = if self.is_rust() { lookahead.to_string() } else { format!("lookahead={lookahead}") };
        let ahead = Some(ahead).filter(|_| self.is_rust() || *lookahead > 0).unwrap_or_default();
        text::listed([self.name(request), self.spelled(before, *tokens, filled), ahead])
    }

    /// Returns the name of the method that adds an operation to the plan of a step, and its arguments.
    /// The plan itself is not among the arguments.
    pub(super) fn planned(&self, planned: &Planned, length: &Length<'_>) -> (&'static str, String) {
        let (name, texts) = match planned {
            Planned::Admit { request, prompt, options } => {
                ("admit_with", vec![self.id(&request.0), self.prompt(prompt, false), self.options(options)])
            }
            Planned::Resume { request, part, .. } => {
                ("resume_with", vec![self.name(request), self.part(part.part())])
            }
            Planned::Append { request, tokens, covered, filled } => {
                let before = if let Name::Id(id) = request { length(id, *tokens) } else { 0 };
                let (requests, spelled) =
                    (self.names(std::slice::from_ref(request)), self.spelled(before, *tokens, filled));
                let covered = CoveredRecord::Each(vec![*covered]);
                let (offsets, computed) = ([0, *tokens], ComputedRecord::Nothing);
                ("append_ragged", vec![self.ragged(requests, spelled, &offsets, &computed, &covered, None)])
            }
            Planned::Preempt { request, until } => ("preempt", vec![self.name(request), self.until(*until)]),
            Planned::Release { request, until } => ("release", vec![self.name(request), self.until(*until)]),
        };
        (name, text::listed(texts))
    }

    fn name(&self, name: &Name) -> String {
        match name {
            Name::Id(id) => self.id(id),
            Name::Slot(slot) => slot.to_string(),
        }
    }
}

fn rust_key(key: &Key) -> String {
    format!("key(\"{}\")", text::hex(key.as_bytes()))
}

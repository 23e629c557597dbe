//! Arguments by their kinds, as texts of two languages.

use kvpool_vllm::Key;

use super::arguments::Arguments;
use super::text;
use crate::calls::vllm_kinds::StartRecord;
use crate::calls::{MatchRecord, Slot};
use crate::value::Value;

impl Arguments {
    /// The arguments of a call, in order. Python leaves some out.
    pub(super) fn of(&self, slots: Vec<Slot<'_>>) -> String {
        let texts: Vec<String> = slots.into_iter().map(|slot| self.slot(slot)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        texts.join(", ")
    }

    fn slot(&self, slot: Slot<'_>) -> String {
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
                let and = if self.is_rust() { "&" } else { "" };
                format!("{and}link({kind}, {}, {and}{path:?}, {})", link.block_size, link.epoch)
            }
            Slot::Found(MatchRecord { blocks, chain, start }) => {
                // Where an empty match begins makes no difference.
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
                format!("{}[{}]", if self.is_rust() { "&" } else { "" }, keys.join(", "))
            }
        }
    }
}

fn rust_key(key: &Key) -> String {
    format!("key(\"{}\")", text::hex(key.as_bytes()))
}

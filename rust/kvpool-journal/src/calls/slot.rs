//! Defines an enum of the arguments of recorded calls, with a variant for each kind of argument.

use kvpool_vllm::Key;

use crate::{
    AppendRecord, ChainRecord, EndedRecord, Filled, ForksRecord, IdRecord, Ids, LinkRecord, LoadedRecord,
    MatchRecord, Name, OptionsRecord, PartRecord, PlanRecord, Planned, PromptRecord, RangeRecord,
    RetentionRecord, Rows, SignalRecord, StartRecord, TurnRecord, UntilRecord,
};

/// A recorded argument. Its variant is the kind of the argument. The kinds are defined in
/// [`super::kinds`], [`super::manager_kinds`] and [`super::vllm_kinds`].
#[derive(Debug)]
#[expect(missing_docs, reason = "as the kinds of these names")]
pub enum Slot<'a> {
    Count(&'a mut usize),
    AtMost(&'a mut usize),
    Start(&'a mut usize),
    Size(&'a mut usize),
    Step(&'a mut u64),
    Ticket(&'a mut u64),
    Until(&'a mut u64),
    Seconds(&'a mut f64),
    Tenant(&'a mut u32),
    ForTenant(&'a mut Option<u32>),
    Block(&'a mut u32),
    Held(&'a mut Ids),
    Part(&'a mut Ids),
    Table(&'a mut Ids),
    Named(&'a mut Ids),
    Free(&'a mut Ids),
    Chain(&'a mut ChainRecord),
    Link(&'a mut LinkRecord),
    Found(&'a mut MatchRecord),
    Hint(&'a mut RetentionRecord),
    Ended(&'a mut SignalRecord),
    Id(&'a mut u32),
    Object(&'a mut u32),
    At(&'a mut StartRecord),
    Hash(&'a mut Key),
    Parent(&'a mut Option<Key>),
    Tokens(&'a mut Option<u32>),
    Depth(&'a mut u32),
    Group(&'a mut u32),
    References(&'a mut i32),
    Flag(&'a mut bool),
    QueueEnd(&'a mut bool),
    Numbers(&'a mut Vec<u32>),
    Claimed(&'a mut Vec<u32>),
    Objects(&'a mut Vec<u32>),
    Freed(&'a mut Vec<u32>),
    Hashes(&'a mut Vec<Option<Key>>),
    Request(&'a mut Name),
    Requests(&'a mut Vec<Name>),
    Batch(&'a mut Rows),
    NewRequest(&'a mut IdRecord),
    Forks(&'a mut ForksRecord),
    Ending(&'a mut EndedRecord),
    Reuse(&'a mut UntilRecord),
    Prompt(&'a mut PromptRecord),
    Portion(&'a mut PartRecord),
    Options(&'a mut OptionsRecord),
    Ranges(&'a mut Vec<RangeRecord>),
    Length(&'a mut usize),
    Lengths(&'a mut Vec<usize>),
    Rehashed(&'a mut Option<Filled>),
    Append(&'a mut AppendRecord),
    Turn(&'a mut TurnRecord),
    Load(&'a mut LoadedRecord),
    Swap(&'a mut u64),
    Plan(&'a mut PlanRecord),
}

/// A request id, block id or other id in an argument. Another run of the same calls may use a different
/// id for the same object.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names describe them")]
pub enum Mention<'a> {
    Block(&'a mut u32),
    Blocks(&'a mut Ids),
    Chain(&'a mut ChainRecord),
    Epoch(&'a mut u64),
    Request(&'a mut Name),
    Batch(&'a mut Rows),
    Ticket(&'a mut u64),
    Swap(&'a mut u64),
}

/// Matches the kinds of arguments that contain no id ([`Mention`]) and that a shrinker does not change.
macro_rules! plain {
    () => {
        Slot::AtMost(_)
            | Slot::Start(_)
            | Slot::Size(_)
            | Slot::Step(_)
            | Slot::Seconds(_)
            | Slot::Tenant(_)
            | Slot::ForTenant(_)
            | Slot::Hint(_)
            | Slot::Ended(_)
            | Slot::Hash(_)
            | Slot::Parent(_)
            | Slot::Tokens(_)
            | Slot::Depth(_)
            | Slot::Group(_)
            | Slot::References(_)
            | Slot::Flag(_)
            | Slot::QueueEnd(_)
            | Slot::Hashes(_)
            | Slot::NewRequest(_)
            | Slot::Portion(_)
            | Slot::Options(_)
            | Slot::Ranges(_)
            | Slot::Lengths(_)
            | Slot::Rehashed(_)
            | Slot::Load(_)
    };
}

pub(super) use plain;

impl<'a> Slot<'a> {
    /// Returns the request ids, block ids and other ids in the argument, in order.
    #[must_use]
    pub fn mentions(self) -> Vec<Mention<'a>> {
        match self {
            Slot::Held(ids) | Slot::Part(ids) | Slot::Table(ids) | Slot::Named(ids) | Slot::Free(ids) => {
                vec![Mention::Blocks(ids)]
            }
            Slot::Numbers(blocks) | Slot::Claimed(blocks) | Slot::Objects(blocks) | Slot::Freed(blocks) => {
                blocks.iter_mut().map(Mention::Block).collect()
            }
            Slot::Block(block) | Slot::Id(block) | Slot::Object(block) => vec![Mention::Block(block)],
            Slot::At(start) => start.before.iter_mut().map(Mention::Block).collect(),
            Slot::Found(MatchRecord { blocks, chain, .. }) => {
                vec![Mention::Blocks(blocks), Mention::Epoch(&mut chain.epoch)]
            }
            Slot::Chain(chain) | Slot::Prompt(PromptRecord { chain, .. }) => vec![Mention::Chain(chain)],
            Slot::Link(link) => vec![Mention::Epoch(&mut link.epoch)],
            Slot::Ticket(ticket) | Slot::Until(ticket) | Slot::Reuse(UntilRecord::Ticket(ticket)) => {
                vec![Mention::Ticket(ticket)]
            }
            Slot::Request(request) | Slot::Turn(TurnRecord { request, .. }) => {
                vec![Mention::Request(request)]
            }
            Slot::Requests(requests)
            | Slot::Ending(EndedRecord { requests, .. })
            | Slot::Forks(ForksRecord { parents: requests, .. }) => {
                requests.iter_mut().map(Mention::Request).collect()
            }
            Slot::Batch(rows) | Slot::Append(AppendRecord { rows, .. }) => vec![Mention::Batch(rows)],
            Slot::Swap(swap) => vec![Mention::Swap(swap)],
            Slot::Plan(plan) => plan.planned.iter_mut().flat_map(planned).collect(),
            plain!() | Slot::Count(_) | Slot::Length(_) | Slot::Reuse(_) => Vec::new(),
        }
    }
}

/// Returns the ids in one operation of a planned step.
fn planned(planned: &mut Planned) -> Vec<Mention<'_>> {
    match planned {
        Planned::Admit { prompt, .. } => vec![Mention::Chain(prompt)],
        Planned::Resume { request, .. } | Planned::Append { request, .. } => vec![Mention::Request(request)],
        Planned::Preempt { request, until } | Planned::Release { request, until } => {
            let ticket = if let UntilRecord::Ticket(ticket) = until { Some(ticket) } else { None };
            [Mention::Request(request)].into_iter().chain(ticket.map(Mention::Ticket)).collect()
        }
    }
}

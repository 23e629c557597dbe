//! Kinds of arguments of managers. A record refers to a request by its slot, a small number that
//! another request can get after the release.

use kvpool::hash::HashCursor;
use kvpool::{
    AdmitOptions, CacheManager, Loaded, ManagerError, Part, RequestId, RequestRef, RetentionRange, Signal,
    SwapId, Until,
};

use super::kind::{copied, kinds, slices};
use super::words;
use crate::requests::refs;
use crate::{
    AppendRecord, EndedRecord, Filled, ForksRecord, IdRecord, Journal, LoadedRecord, Name, OptionsRecord,
    PartRecord, PlanRecord, PromptRecord, RangeRecord, Rows, TurnRecord, UntilRecord,
};

copied! {
    /// When released blocks can be allocated again.
    Reuse: UntilRecord, Until, Until::into, |record| record.until(), words::until;
    /// The part of a prompt that is admitted.
    Portion: PartRecord, Part, Part::into, |record| record.part(), words::part;
    /// A number of tokens.
    Length: usize, usize, |n| n, |n| n, |n| words::counted(n, "token");
    /// The id of a swap.
    Swap: u64, SwapId, SwapId::get, SwapId::from_number, |n| n.to_string();
}

slices! {
    /// A list of numbers of tokens, one for each request.
    Lengths: usize, |counts: &[usize]| words::list(counts.iter());
}

pub(super) fn name(manager: &CacheManager, id: RequestRef<'_>) -> Name {
    manager.slot_of(id).map_or_else(|| Name::Id(id.to_owned()), |slot| Name::Slot(slot as u32))
}

pub(super) fn batch(
    manager: &CacheManager,
    journal: &mut Journal,
    requests: &[RequestRef<'_>],
    looked_up: usize,
) -> Rows {
    match looked_up {
        0 => Rows::Ids(requests.iter().map(|&id| id.into()).collect()),
        _ => journal.rows(manager.batch_slots()),
    }
}

kinds! { [] CacheManager;
    /// An existing request.
    Request: Name, RequestRef<'a>, RequestId,
        |id, to| name(to.subject, id), |name, from| from.id(name), |id| id.as_ref(), words::name;
    /// A list of requests that exist.
    Requests: Vec<Name>, &'a [RequestRef<'a>], Vec<RequestId>,
        |ids, to| ids.iter().map(|&id| name(to.subject, id)).collect(), |names, from| from.ids(names),
        |ids| &refs(ids), |names: &[Name]| words::list(names.iter().map(words::name));
    /// The requests of a batch. The record is made after the call. It contains the slots of the
    /// requests if the manager found all of them, otherwise their ids.
    Batch: Rows, &'a [RequestRef<'a>], Vec<RequestId>,
        |ids, to| batch(to.subject, to.journal, ids, to.indexed), |rows, from| from.batch(rows),
        |ids| &refs(ids), words::rows;
    /// A request that the call creates.
    NewRequest: IdRecord, RequestRef<'a>, RequestId,
        |id, _| id.into(), |id, from| Ok(from.expect(id)), |id| id.as_ref(),
        |IdRecord(id): &IdRecord| id.to_string();
    /// Requests to fork, with the id of the new request for each.
    Forks: ForksRecord, (&'a [RequestRef<'a>], &'a [RequestRef<'a>]), (Vec<RequestId>, Vec<RequestId>),
        |(parents, children), to| ForksRecord {
            parents: parents.iter().map(|&id| name(to.subject, id)).collect(),
            children: children.iter().map(|&id| id.into()).collect(),
        },
        |record, from| {
            Ok((from.ids(&record.parents)?, record.children.iter().map(|id| from.expect(id)).collect()))
        },
        |(parents, children)| (&refs(parents), &refs(children)), words::forks;
    /// Requests that have ended, with a signal for each.
    Ending: EndedRecord, &'a [(RequestRef<'a>, Signal)], Vec<(RequestId, Signal)>,
        |ended, to| EndedRecord {
            requests: ended.iter().map(|&(id, _)| name(to.subject, id)).collect(),
            signals: ended.iter().map(|&(_, signal)| signal.into()).collect(),
        },
        |record, from| {
            let signals = record.signals.iter().map(|signal| signal.signal());
            Ok(from.ids(&record.requests)?.into_iter().zip(signals).collect())
        },
        |ended| &ended.iter().map(|(id, signal)| (id.as_ref(), *signal)).collect::<Vec<_>>(), words::ending;
    /// A prompt. Earlier records contain its cached blocks, so its own record omits them.
    Prompt: PromptRecord, &'a HashCursor, HashCursor,
        |cursor, to| {
            let found = to.subject.pool().probe(cursor.chain(), usize::MAX);
            let cached = found.map_or(0, |found| found.cached_blocks);
            let foreign = matches!(to.subject.probe(cursor), Err(ManagerError::ForeignCursor));
            PromptRecord { chain: to.journal.chain(cursor.chain(), cursor.num_tokens(), cached), foreign }
        },
        |record, from| from.contents.cursor(&record.chain, record.foreign), |cursor| cursor, words::prompt;
    /// The options of an admission, such as its retention.
    Options: OptionsRecord, &'a AdmitOptions, AdmitOptions,
        |options, _| options.into(), |record, _| Ok(record.options()), |options| options, words::options;
    /// Retention hints for ranges of a prompt's tokens.
    Ranges: Vec<RangeRecord>, &'a [RetentionRange], Vec<RetentionRange>,
        |ranges, _| ranges.iter().map(RangeRecord::from).collect(),
        |ranges, _| Ok(ranges.iter().map(RangeRecord::range).collect()), |ranges| ranges,
        |ranges: &[RangeRecord]| words::ranges(ranges);
    /// The external tokens that a connector has loaded.
    Load: LoadedRecord, Loaded<'a>, LoadedRecord,
        |loaded, _| loaded.into(), |record, _| Ok(record.clone()), |record| record.loaded(), words::loaded;
    /// The blocks of a request's prompt that were hashed again.
    Rehashed: Option<Filled>, &'a Option<Filled>, Option<Filled>,
        |filled, _| filled.clone(), |filled, _| Ok(filled.clone()), |filled| filled, words::rehashed;
    /// Tokens for the requests of a batch. A replay generates other tokens.
    Append: AppendRecord, &'a AppendRecord, AppendRecord,
        |record, _| record.clone(), |record, _| Ok(record.clone()), |record| record, words::append;
    /// Tokens for one request. A replay generates other tokens.
    Turn: TurnRecord, &'a TurnRecord, TurnRecord,
        |record, _| record.clone(), |record, _| Ok(record.clone()), |record| record, words::turn;
    /// A planned step of a scheduler. A replay makes the plan again.
    Plan: PlanRecord, &'a PlanRecord, PlanRecord,
        |record, _| record.clone(), |record, _| Ok(record.clone()), |record| record, words::plan;
}

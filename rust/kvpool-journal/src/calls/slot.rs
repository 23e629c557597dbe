//! The arguments of calls, by their kinds.

use kvpool_vllm::Key;
use serde::{Deserialize, Serialize};

use super::vllm_kinds::StartRecord;
use crate::{ChainRecord, Ids, LinkRecord, RetentionRecord, SignalRecord};

/// The record of an argument, by its kind ([`super::kinds`], [`super::lists`]).
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
}

/// A match: its blocks, its part of a chain, and where that begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `kvpool::Match`")]
pub struct MatchRecord {
    pub blocks: Ids,
    pub chain: ChainRecord,
    pub start: usize,
}

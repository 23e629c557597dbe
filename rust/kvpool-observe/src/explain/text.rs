//! Formats explanations as text for users.

use std::fmt;

use super::reason::{Explanation, GroupReach, MissReason, MissSpan, Requester, When};

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at admission {}", self.admission)?;
        match self.time {
            Some(time) => write!(f, ", time {time}"),
            None => Ok(()),
        }
    }
}

/// Writes " for request ..." if the request that needed the block is known.
struct ForRequester<'a>(&'a Requester);

impl fmt::Display for ForRequester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Requester::Request(id) => write!(f, " for request {id}"),
            Requester::Another => f.write_str(" for a request of another tenant, salt or user"),
            Requester::Unknown => Ok(()),
        }
    }
}

impl fmt::Display for MissReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverSeen => f.write_str("never seen before"),
            Self::NotRemembered => f.write_str("never seen, or no longer remembered"),
            Self::Diverged { token } => write!(f, "differs from token {token} on from what was seen before"),
            Self::Evicted { when, policy, requester, outlook } => {
                write!(f, "evicted {when} by {policy}{}", ForRequester(requester))?;
                let Some(outlook) = outlook else { return Ok(()) };
                write!(f, "; of the class \"{}\", ", outlook.class_words())?;
                match outlook.kept_per_hit {
                    Some(kept) => write!(f, "expected back once in {kept}"),
                    None => f.write_str("not expected back"),
                }
            }
            Self::Expired { when, requester } => {
                write!(f, "its time to live ended; evicted {when}{}", ForRequester(requester))
            }
            Self::EndOfLife { when, requester } => {
                write!(f, "marked as not to be used again; evicted {when}{}", ForRequester(requester))
            }
            Self::TenantCeiling { when, requester } => {
                write!(f, "its tenant was above its ceiling; evicted {when}{}", ForRequester(requester))
            }
            Self::DroppedById { when } => write!(f, "dropped by id {when}"),
            Self::Reset { when } => write!(f, "removed by a reset {when}"),
            Self::OtherEpoch { epoch } => write!(f, "seen in epoch {epoch}, which is over"),
            Self::OtherSalt => f.write_str("seen under another salt"),
            Self::OtherAdapter => f.write_str("seen under another adapter, or without an adapter"),
            Self::OtherKeys => f.write_str("seen with other extra keys: tenant, user, images, or several"),
            Self::BeingComputed { by: Requester::Request(id) } => write!(f, "being computed by request {id}"),
            Self::BeingComputed { .. } => f.write_str("being computed by another request"),
            Self::NotComputed => f.write_str("asked for before, but never committed"),
            Self::Collision => f.write_str("another content is cached under the same hash"),
            Self::Unreachable => f.write_str("cached, but a block before it is not"),
            Self::Behind => f.write_str("after a block that is new, or not remembered"),
            Self::LastToken => f.write_str("cached, but the last token is always left to compute"),
            Self::TooShort => f.write_str("too few tokens to fill a block"),
            Self::Unserved { group: Some(group) } => {
                write!(f, "cached in part, but not all that group {group} needs")
            }
            Self::Unserved { group: None } => {
                f.write_str("cached, but a hit has to end at a multiple of all block sizes")
            }
            Self::NotKept => f.write_str("computed before, and not kept"),
        }
    }
}

impl fmt::Display for MissSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = |range: &std::ops::Range<usize>| range.end.saturating_sub(1);
        match self.blocks.len() {
            1 => write!(f, "block {}", self.blocks.start)?,
            _ => write!(f, "blocks {}-{}", self.blocks.start, last(&self.blocks))?,
        }
        match self.tokens.len() {
            1 => write!(f, " (token {}): ", self.tokens.start)?,
            _ => write!(f, " (tokens {}-{}): ", self.tokens.start, last(&self.tokens))?,
        }
        self.reason.fmt(f)
    }
}

/// Writes the longest hit that the group could have served, and why not a longer one.
impl fmt::Display for GroupReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, spec, reach_tokens, limits, ends } = self;
        write!(f, "group {group} ({}) serves {reach_tokens} tokens", spec.kind.name())?;
        if *limits {
            f.write_str(", the least")?;
        }
        ends.iter().try_for_each(|end| match spec.kind.is_full() {
            true => write!(f, "; then {}", end.reason),
            false => write!(f, "; at {}: {}", end.tokens.end, end.reason),
        })
    }
}

/// Writes one line for the request, one per KV-cache group if there are several, and one per span of
/// blocks.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, admission, prompt_tokens, cached_tokens, .. } = self;
        let how = if self.resumed { "resumed" } else { "admitted" };
        write!(
            f,
            "request {request}, {how} at {admission}: {cached_tokens} of {prompt_tokens} tokens cached"
        )?;
        self.groups.iter().try_for_each(|group| write!(f, "\n  {group}"))?;
        self.spans.iter().try_for_each(|span| write!(f, "\n  {span}"))
    }
}

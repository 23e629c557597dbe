//! Draws the KV-cache groups of a hybrid model.

use kvpool::groups::{GroupKind, GroupSpec, Keep};

use crate::bytes::Bytes;

/// Draws one to three groups in random order.
pub(crate) fn specs(bytes: &mut Bytes<'_>) -> Vec<GroupSpec> {
    (0..=bytes.below(3)).map(|_| spec(bytes)).collect()
}

fn spec(bytes: &mut Bytes<'_>) -> GroupSpec {
    let kind = match bytes.below(11) {
        0 | 1 => GroupKind::Full,
        2..5 => GroupKind::Sliding { window: 1 + bytes.below(8) },
        5 | 6 => GroupKind::Chunked { chunk: 1 + bytes.below(6) },
        7..10 => GroupKind::State,
        _ => GroupKind::Cross,
    };
    let block_tokens = [2, 2, 2, 4, 8][bytes.below(5)];
    let keep = match bytes.below(10) {
        0..3 => Keep::All,
        3..6 => Keep::Every(2 + bytes.below(7)),
        6..9 => Keep::Junctions,
        _ => Keep::Nothing,
    };
    let margin = usize::from(bytes.one_in(5));
    // Hits end inside of blocks (`partial_hits`) only in groups of full attention that cache blocks and
    // have no margin.
    let is_full = kind == GroupKind::Full && matches!(keep, Keep::Every(_) | Keep::Junctions);
    let is_sliding = matches!(kind, GroupKind::Sliding { .. });
    let sink_tokens = if is_sliding && bytes.one_in(3) { 1 + bytes.below(5) } else { 0 };
    let partial_hits = is_full && margin == 0;
    GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) }
}

/// Returns the lists of groups to try while shrinking a failure: the list without one of its groups, or
/// with a simpler version of one group.
pub(crate) fn simpler(specs: &[GroupSpec]) -> Vec<Vec<GroupSpec>> {
    let mut all = Vec::new();
    for (at, &spec) in specs.iter().enumerate() {
        let plain = GroupSpec::new(spec.kind, spec.block_tokens);
        let tried = [
            None,
            Some(plain),
            Some(GroupSpec { block_tokens: 2, ..spec }),
            Some(GroupSpec { margin: 0, ..spec }),
            Some(GroupSpec { sink_tokens: 0, ..spec }),
        ];
        for one in tried {
            let mut changed = specs.to_vec();
            changed.splice(at..=at, one);
            all.push(changed);
        }
    }
    all.retain(|one| !one.is_empty() && one != specs);
    all
}

//! Operations of several requests at once, and of victims by number.

use kvpool::{CacheManager, RequestRef, Until};
use kvpool_testing::{ReferenceManager, indices};

use super::written::{compared, until_text};
use super::{Manager, agree};
use crate::case::{Failure, Script, holds};
use crate::text;

impl Manager {
    pub(super) fn fork_batch(&mut self, rows: &[(i64, i64)], script: &mut Script) -> Result<bool, Failure> {
        let (parents, children): (Vec<_>, Vec<_>) = rows.iter().copied().unzip();
        let arguments = format!("&refs(&{parents:?}), &refs(&{children:?})");
        let call = |m: &mut CacheManager| m.fork_batch(&refs(&parents), &refs(&children));
        self.call("fork_batch", &arguments, call, |m| m.fork_batch(rows), script)
    }

    pub(super) fn release_batch(
        &mut self,
        ids: &[i64],
        until: Until,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let arguments = format!("&refs(&{ids:?}), {}", until_text(until));
        let call = |m: &mut CacheManager| m.release_batch(&refs(ids), until);
        self.call("release_batch", &arguments, call, |m| m.release_batch(ids, until), script)
    }

    /// Victims: no more than asked for, no more than can be evicted, all of them free then.
    pub(super) fn evict_next(&mut self, n: usize, script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.as_mut().map(|model: &mut ReferenceManager| model.pools[0].evict(n));
        script.line(|| {
            let expected = expected.as_ref().map(|victims| text::list(victims));
            compared(&format!("indices(&manager.evict({n}).unwrap())"), expected)
        });
        let evictable = self.manager.pool().stats().cached_free;
        let found = self.manager.evict(n).map(|victims| indices(&victims));
        let found = found.map_err(|error| Failure::new("outcome of evict", error.to_string()))?;
        let free = self.manager.pool().free_order();
        let gone = found.iter().all(|&victim| free.iter().any(|block| block.index() == victim));
        holds("victims of evict", gone && found.len() == n.min(evictable), || {
            format!("{found:?} of {evictable} that can be evicted; free then: {free:?}")
        })?;
        agree("victims of evict", &found, expected)?;
        Ok(true)
    }
}

fn refs(ids: &[i64]) -> Vec<RequestRef<'_>> {
    ids.iter().map(|&id| RequestRef::Int(id)).collect()
}

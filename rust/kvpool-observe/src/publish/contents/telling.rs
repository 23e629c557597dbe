//! What consumers are told of contents: what changed since the last time, or all of it.
//!
//! Owns the order of it: what came before what went, parents before what hangs on them; and which nodes
//! are one run.
//!
//! Costs: O(changes), with those before them that were not told yet; a snapshot is O(contents).

use super::{Change, Contents, Digest, Keys, MAX_TIERS, tiers};

impl Contents {
    /// What changed since the last settling. Consumers that are told it know what is open, and nothing
    /// else. Frees what is gone: [`Self::finish`] when the changes are bytes.
    pub(crate) fn settle(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if std::mem::take(&mut self.cleared) {
            changes.push(Change::Cleared);
        }
        let dirty = std::mem::take(&mut self.dirty);
        // What came, those before it first; then what went: what moves from tier to tier is never nowhere.
        let (mut runs, mut chain) = (Runs::new(changes), Vec::new());
        for &at in &dirty {
            let mut above = at;
            while let Some(node) = self.node(above)
                && node.open & !node.told != 0
            {
                chain.push(above);
                above = node.parent;
            }
            while let Some(at) = chain.pop() {
                self.tell(at, &mut runs);
            }
        }
        let mut changes = runs.changes;
        let mut removed: Vec<(u8, u16, Vec<Digest>)> = Vec::new();
        for &at in &dirty {
            let Some(node) = self.nodes.get_mut(at as usize) else { continue };
            node.dirty = false;
            let gone = node.told & !node.open;
            node.told &= !gone;
            if node.tiers == 0 {
                // It stays only for what hangs on it.
                (node.has_tokens, node.keys) = (false, None);
            }
            for tier in tiers(gone) {
                let (group, digest) = (node.group, node.digest);
                match removed.iter_mut().find(|(of, at, _)| (*of, *at) == (tier, group)) {
                    Some((_, _, digests)) => digests.push(digest),
                    None => removed.push((tier, group, vec![digest])),
                }
            }
        }
        changes.extend(removed.into_iter().map(|(tier, group, digests)| Change::Removed {
            tier,
            group,
            digests,
        }));
        // Nodes that changes name are open, and stay.
        dirty.into_iter().for_each(|at| self.free_if_idle(at));
        changes
    }

    /// Tells of the tiers that consumers do not know a node in.
    fn tell(&mut self, at: u32, runs: &mut Runs) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let new = node.open & !node.told;
        node.told |= new;
        let parent = node.parent;
        for tier in tiers(new) {
            let goes_on = self.goes_on(at, parent);
            runs.push(tier, at, parent, goes_on);
        }
    }

    /// Whether an event can have both a node and the one before it.
    fn goes_on(&self, at: u32, parent: u32) -> bool {
        let (Some(node), Some(parent)) = (self.node(at), self.node(parent)) else { return false };
        match (&node.keys, &parent.keys) {
            (None, None) => true,
            (node, parent) => {
                let label = |keys: &Option<Box<Keys>>| keys.as_ref().map(|keys| keys.label.clone());
                label(node).unwrap_or_default() == label(parent).unwrap_or_default()
            }
        }
    }

    /// All that is open, parents first, as if nobody had been told anything. Only settled contents have one.
    pub(crate) fn snapshot(&self) -> Vec<Change> {
        let mut runs = Runs::new(Vec::new());
        let mut waiting: Vec<u32> = Vec::new();
        let mut root = self.first_root;
        while let Some(node) = self.node(root) {
            waiting.push(root);
            while let Some(at) = waiting.pop() {
                let Some(node) = self.node(at) else { continue };
                if node.open == 0 && self.is_chained(node.group) {
                    continue;
                }
                for tier in tiers(node.open) {
                    runs.push(tier, at, node.parent, self.goes_on(at, node.parent));
                }
                let mut child = node.first_child;
                while let Some(node) = self.node(child) {
                    waiting.push(child);
                    child = node.next;
                }
            }
            root = node.next;
        }
        runs.changes
    }
}

/// Stored runs that are being put together: one for each tier may go on.
struct Runs {
    changes: Vec<Change>,
    /// Where the run of a tier is, and its last node.
    open: [Option<(usize, u32)>; MAX_TIERS as usize],
}

impl Runs {
    const fn new(changes: Vec<Change>) -> Self {
        Self { changes, open: [None; MAX_TIERS as usize] }
    }

    fn push(&mut self, tier: u8, at: u32, parent: u32, goes_on: bool) {
        let open = &mut self.open[usize::from(tier)];
        if let Some((run, last)) = open
            && goes_on
            && *last == parent
            && let Some(Change::Stored { nodes, .. }) = self.changes.get_mut(*run)
        {
            nodes.push(at);
            *last = at;
            return;
        }
        *open = Some((self.changes.len(), at));
        self.changes.push(Change::Stored { tier, nodes: vec![at] });
    }
}

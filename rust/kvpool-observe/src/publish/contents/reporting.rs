//! Makes the reports for consumers, which contain the changes since the last report, or everything.
//!
//! This module determines the order of changes, and which nodes are reported together as a run. Stored
//! contents come before removed ones, and parents before their children.
//!
//! Costs: O(changes and their unreported ancestors). A snapshot is O(contents).

use super::{Change, Contents, Digest, Keys, MAX_TIERS, tiers};

impl Contents {
    /// Returns the changes since the last call. A consumer that applies them knows exactly the contents
    /// that lookups can reach. Frees the nodes of removed contents.
    pub(crate) fn settle(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if std::mem::take(&mut self.cleared) {
            changes.push(Change::Cleared);
        }
        let dirty = std::mem::take(&mut self.dirty);
        // Stored contents come first, each after its ancestors, and removed contents last. So a
        // consumer sees a content that moves between tiers in at least one of them at any time.
        let (mut runs, mut chain) = (Runs::new(changes), Vec::new());
        for &at in &dirty {
            let mut above = at;
            while let Some(node) = self.node(above)
                && node.open & !node.reported != 0
            {
                chain.push(above);
                above = node.parent;
            }
            while let Some(at) = chain.pop() {
                self.report_tiers(at, &mut runs);
            }
        }
        let mut changes = runs.changes;
        let mut removed: Vec<(u8, u16, Vec<Digest>)> = Vec::new();
        for &at in &dirty {
            let Some(node) = self.nodes.get_mut(at as usize) else { continue };
            node.dirty = false;
            let gone = node.reported & !node.open;
            node.reported &= !gone;
            if node.tiers == 0 {
                // No tier has the content any more. The node remains only as the parent of its
                // children.
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
        // This frees no node that `changes` refers to, because lookups can reach the contents of those
        // nodes.
        dirty.into_iter().for_each(|at| self.free_if_idle(at));
        changes
    }

    /// Reports the content of a node for each tier in which lookups can reach it and it was not
    /// reported before.
    fn report_tiers(&mut self, at: u32, runs: &mut Runs) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let new = node.open & !node.reported;
        node.reported |= new;
        let parent = node.parent;
        for tier in tiers(new) {
            let continues_run = self.continues_run(at, parent);
            runs.push(tier, at, parent, continues_run);
        }
    }

    /// Whether a node can follow its parent in the same event.
    fn continues_run(&self, at: u32, parent: u32) -> bool {
        let (Some(node), Some(parent)) = (self.node(at), self.node(parent)) else { return false };
        match (&node.keys, &parent.keys) {
            (None, None) => true,
            (node, parent) => {
                let label = |keys: &Option<Box<Keys>>| keys.as_ref().map(|keys| keys.label.clone());
                label(node).unwrap_or_default() == label(parent).unwrap_or_default()
            }
        }
    }

    /// Returns all open contents (those that lookups can reach), parents first, as if nothing had been
    /// reported. The caller must have called [`Self::settle`].
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
                    runs.push(tier, at, node.parent, self.continues_run(at, node.parent));
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

/// Collects the stored contents of a report in runs, in which each content is the parent of the next.
/// Only the last run of each tier can be extended.
struct Runs {
    changes: Vec<Change>,
    /// For each tier, the index of its last run, and the last node of that run.
    open: [Option<(usize, u32)>; MAX_TIERS as usize],
}

impl Runs {
    const fn new(changes: Vec<Change>) -> Self {
        Self { changes, open: [None; MAX_TIERS as usize] }
    }

    fn push(&mut self, tier: u8, at: u32, parent: u32, continues_run: bool) {
        let open = &mut self.open[usize::from(tier)];
        if let Some((run, last)) = open
            && continues_run
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

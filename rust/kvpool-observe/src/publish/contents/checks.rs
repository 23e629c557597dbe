//! Methods of `Contents` for tests: a list of the reported contents, and a check of the invariants.

use super::{Contents, Digest, FREE, MAX_TIERS, NONE, tiers};

impl Contents {
    /// Returns the tier, group and digest of each content that was reported to consumers.
    pub fn told_of(&self) -> impl Iterator<Item = (u8, u16, Digest)> {
        let nodes = self.nodes.iter().filter(|node| node.group != FREE);
        nodes.flat_map(|node| tiers(node.reported).map(|tier| (tier, node.group, node.digest)))
    }

    /// Checks the invariants of the contents. O(contents).
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        let mut counts = [0; MAX_TIERS as usize];
        let mut used = 0;
        for (at, node) in (0_u32..).zip(&self.nodes) {
            if node.group == FREE {
                continue;
            }
            used += 1;
            for (tier, count) in counts.iter_mut().enumerate() {
                *count += usize::from(node.tiers >> tier & 1 == 1);
            }
            if self.find(&node.digest, node.group) != Some(at) {
                return Err(format!("the table does not lead to node {at}"));
            }
            if node.open != self.may_open(at) {
                return Err(format!("node {at} is open in the wrong tiers, {:b}", node.open));
            }
            if node.tiers == 0 && node.first_child == NONE && !node.dirty {
                return Err(format!("node {at} has no tiers and no children, but is not free"));
            }
            let mut child = node.first_child;
            while let Some(node) = self.node(child) {
                if node.parent != at {
                    return Err(format!(
                        "node {child} has the parent {}, but is a child of {at}",
                        node.parent
                    ));
                }
                child = node.next;
            }
            if !node.dirty && node.reported != node.open {
                return Err(format!(
                    "node {at} was reported in tiers {:b}, but is open in tiers {:b}",
                    node.reported, node.open
                ));
            }
        }
        if counts != self.counts {
            return Err(format!("{counts:?} contents by tier, counted {:?}", self.counts));
        }
        if used != self.table.len() || used + self.free.len() != self.nodes.len() {
            return Err(format!("{used} nodes, {} in the table, {} free", self.table.len(), self.free.len()));
        }
        Ok(())
    }
}

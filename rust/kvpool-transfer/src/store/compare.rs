//! Compares two stores: whether their blocks have the same layout, and whether they share memory.

use std::sync::PoisonError;

use super::Store;
use crate::error::TransferError;

/// Relation between the memory of two stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The stores share no byte.
    Apart,
    /// Each block has the same memory in both stores.
    Same,
    /// The stores share memory, but divide it into different blocks.
    Entangled,
}

impl Store {
    pub(crate) fn check_alike(&self, dst: &Self) -> Result<(), TransferError> {
        let refuse = |what: String| Err(TransferError::LayoutMismatch(what));
        if self.regions.len() != dst.regions.len() {
            let (src, dst) = (self.regions.len(), dst.regions.len());
            return refuse(format!("the source has {src} regions, the destination {dst}"));
        }
        // If both stores have equal groups in an equal order, their regions have equal lengths. Compare
        // these first, because this is cheap.
        if self.groups != dst.groups || self.order != dst.order {
            let pieces = self.regions.iter().zip(&dst.regions).enumerate();
            let differ = pieces.into_iter().find(|(_, (src, dst))| src.nbytes != dst.nbytes);
            if let Some((index, (src, dst))) = differ {
                let (src, dst) = (src.nbytes, dst.nbytes);
                return refuse(format!(
                    "region {index} has {src} bytes in the source, {dst} in the destination"
                ));
            }
        }
        let differ = self.kinds.iter().zip(&dst.kinds).enumerate().find(|(_, (src, dst))| src != dst);
        if let Some((index, (src, dst))) = differ {
            return refuse(format!("region {index} is of {src} in the source, of {dst} in the destination"));
        }
        Ok(())
    }

    /// Returns the relation to the memory of another store. O(1) after the first call.
    pub(crate) fn relation(&self, other: &Self) -> Relation {
        if self.handle == other.handle {
            return Relation::Same;
        }
        if self.device != other.device {
            return Relation::Apart;
        }
        let mut relations = self.relations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = relations.get(&other.handle) {
            return known;
        }
        // A handle is never used twice, so a cached relation remains true. The limit bounds the size of
        // the cache when stores are created and dropped again and again.
        if relations.len() >= 64 {
            relations.clear();
        }
        let relation = self.compare(other);
        relations.insert(other.handle, relation);
        relation
    }

    fn compare(&self, other: &Self) -> Relation {
        if self.regions == other.regions {
            return Relation::Same;
        }
        let extents = |store: &Self| {
            let ends = store.regions.iter().map(|region| (region.base, region.end(store.num_blocks)));
            let mut extents: Vec<_> = ends.collect();
            extents.sort_unstable();
            extents
        };
        let theirs = extents(other);
        let mut next = 0;
        let mut reach = 0;
        for (base, end) in extents(self) {
            while next < theirs.len() && theirs[next].0 < end {
                reach = reach.max(theirs[next].1);
                next += 1;
            }
            if reach > base {
                return Relation::Entangled;
            }
        }
        Relation::Apart
    }
}

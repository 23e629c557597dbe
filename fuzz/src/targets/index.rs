//! Compares `PrefixIndex` with a map from contents to blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, Inserted, PrefixIndex, Verify};
use kvpool_lab::model::reference::{block_ids, indices};

use crate::bytes::{pick, smaller, tokens, up_to};
use crate::case::{Machine, Script};
use kvpool_lab::failure::{Failure, holds, same};

const BLOCK_SIZE: usize = 2;

/// The size of the index, and how it verifies hits.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    num_blocks: usize,
    verify: Verify,
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let num_blocks = 2 + up_to(bytes, 10)?;
        Ok(Self { num_blocks, verify: [Verify::None, Verify::Fingerprint, Verify::Tokens][up_to(bytes, 2)?] })
    }
}

/// An operation on the index. Block ids may be below or above the valid range.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Registers a block with the content at the given position of a prompt.
    Insert(usize, Vec<u32>, usize),
    /// Marks the content of a block as computed.
    MarkComputed(usize),
    /// Removes a block.
    Remove(usize),
    /// Removes all blocks.
    Clear,
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(match pick(bytes, &[8, 6, 5, 1])? {
            0 => Self::Insert(up_to(bytes, 13)?, tokens(bytes, 8)?, up_to(bytes, 4)?),
            1 => Self::MarkComputed(up_to(bytes, 13)?),
            2 => Self::Remove(up_to(bytes, 13)?),
            _ => Self::Clear,
        })
    }
}

/// The index under test, and its expected state: the content of each block, and the blocks of each
/// content in the order in which lookups return them.
#[derive(Debug)]
pub struct Index {
    index: PrefixIndex,
    hasher: Arc<BlockHasher>,
    contents: BTreeMap<usize, (Vec<u32>, bool)>,
    copies: BTreeMap<Vec<u32>, Vec<usize>>,
    num_blocks: usize,
}

impl Index {
    fn cursor(&self, tokens: &[u32]) -> Result<HashCursor, Failure> {
        let cursor = HashCursor::new(Arc::clone(&self.hasher), ExtraKeys::default());
        let mut cursor = cursor.map_err(|error| Failure::new("setting", error.to_string()))?;
        cursor.append(tokens);
        Ok(cursor)
    }

    fn forget(&mut self, block: usize) -> bool {
        let Some((content, _)) = self.contents.remove(&block) else { return false };
        if let Some(copies) = self.copies.get_mut(&content) {
            copies.retain(|&copy| copy != block);
        }
        true
    }

    /// Compares every content that was ever registered: its copies in order, and the result of a
    /// lookup.
    fn compare(&self) -> Result<(), Failure> {
        for (content, copies) in &self.copies {
            let cursor = self.cursor(content)?;
            let last = content.len() / BLOCK_SIZE - 1;
            let found = indices(&self.index.copies(&cursor.chain().hashes()[last]));
            same("copies", &found, copies)?;
            let first = copies.first().copied().filter(|block| self.contents[block].1);
            let found = self.index.find(cursor.chain(), last).map(kvpool::BlockId::index);
            same("block found", &found, &first)?;
            same("is_registered", &self.index.is_registered(cursor.chain(), last), &!copies.is_empty())?;
        }
        for block in 0..self.num_blocks {
            let id = block_ids(&[block])[0];
            let known = self.contents.get(&block);
            let found = (self.index.contains(id), self.index.is_computed(id), self.index.depth_of(id));
            let depth = known.map(|(content, _)| (content.len() / BLOCK_SIZE - 1) as u32);
            same("entry", &found, &(known.is_some(), known.is_some_and(|known| known.1), depth))?;
            let twins = known.map_or(0, |(content, _)| {
                self.copies[content].iter().filter(|&&copy| copy != block && self.contents[&copy].1).count()
            });
            same("has_other_computed_copy", &self.index.has_other_computed_copy(id), &(twins > 0))?;
        }
        let hashes = self.copies.values().filter(|copies| !copies.is_empty()).count();
        same(
            "counts",
            &(self.index.num_registered(), self.index.num_hashes()),
            &(self.contents.len(), hashes),
        )
    }
}

impl Machine for Index {
    type Setting = Setting;
    type Operation = Operation;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let wrong = |error: &dyn ToString| Failure::new("setting", error.to_string());
        let Setting { num_blocks, verify } = *setting;
        let index =
            PrefixIndex::with_parents(num_blocks, BLOCK_SIZE, verify).map_err(|error| wrong(&error))?;
        let config = HasherConfig { block_size: BLOCK_SIZE, verify, ..Default::default() };
        let hasher = Arc::new(BlockHasher::new(config).map_err(|error| wrong(&error))?);
        Ok(Self { index, hasher, contents: BTreeMap::new(), copies: BTreeMap::new(), num_blocks })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        let real = |block: usize| (1..self.num_blocks).contains(&block);
        match operation {
            Operation::Insert(block, tokens, position) => {
                let cursor = self.cursor(tokens)?;
                let content = tokens.get(..(position + 1) * BLOCK_SIZE);
                let fine = real(*block) && content.is_some() && !self.contents.contains_key(block);
                script.line(|| {
                    crate::text::outcome(
                        &format!("index.insert(BlockId::new({block}), &chain(&{tokens:?}), {position})"),
                        fine,
                    )
                });
                let found = self.index.insert(block_ids(&[*block])[0], cursor.chain(), *position);
                same("outcome of insert", &found.is_ok(), &fine)?;
                holds("collision", found != Ok(Inserted::Collision), || "of equal contents".into())?;
                if let (true, Some(content)) = (fine, content) {
                    self.contents.insert(*block, (content.to_vec(), false));
                    self.copies.entry(content.to_vec()).or_default().push(*block);
                }
            }
            Operation::MarkComputed(block) => {
                let fine = self.contents.contains_key(block);
                script.line(|| {
                    crate::text::outcome(&format!("index.mark_computed(BlockId::new({block}))"), fine)
                });
                let found = self.index.mark_computed(block_ids(&[*block])[0]);
                same("outcome of mark_computed", &found.is_ok(), &fine)?;
                if let Some((content, computed)) =
                    self.contents.get_mut(block).filter(|(_, computed)| !computed)
                {
                    *computed = true;
                    let content = content.clone();
                    if let Some(copies) = self.copies.get_mut(&content) {
                        copies.retain(|copy| copy != block);
                        // Move the copy to its place in the model: after the copies that became
                        // computed earlier, and before all copies that are not computed.
                        let computed = copies.iter().take_while(|&copy| self.contents[copy].1).count();
                        copies.insert(computed, *block);
                    }
                }
            }
            Operation::Remove(block) => {
                let expected = self.forget(*block);
                script.line(|| {
                    let not = if expected { "" } else { "!" };
                    format!("assert!({not}index.remove(BlockId::new({block})));")
                });
                same("outcome of remove", &self.index.remove(block_ids(&[*block])[0]), &expected)?;
            }
            Operation::Clear => {
                self.contents.clear();
                self.copies.values_mut().for_each(Vec::clear);
                script.line(|| "index.clear();".into());
                self.index.clear();
            }
        }
        self.index.check_invariants()?;
        self.compare()
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        let verify =
            (setting.verify != Verify::None).then(|| Setting { verify: Verify::None, ..setting.clone() });
        let blocks = (2..setting.num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        verify.into_iter().chain(blocks).collect()
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        match operation {
            Operation::Insert(block, tokens, position) => {
                let shorter = smaller(tokens.len()).map(|len| tokens[..len].to_vec());
                let zeros = Some(vec![0; tokens.len()]).filter(|zeros| zeros != tokens);
                let blocks = smaller(*block).map(|block| Operation::Insert(block, tokens.clone(), *position));
                let positions = smaller(*position).map(|at| Operation::Insert(*block, tokens.clone(), at));
                let prompts = shorter.chain(zeros).map(|tokens| Operation::Insert(*block, tokens, *position));
                prompts.chain(positions).chain(blocks).collect()
            }
            Operation::MarkComputed(block) => smaller(*block).map(Operation::MarkComputed).collect(),
            Operation::Remove(block) => smaller(*block).map(Operation::Remove).collect(),
            Operation::Clear => Vec::new(),
        }
    }

    const ITEMS: &[(&str, &str)] = &[
        ("indices", "use kvpool_lab::model::reference::indices;\n"),
        ("index", "use kvpool::*;\n"),
        ("&chain(", CHAIN),
    ];

    fn opening(setting: &Setting) -> Vec<String> {
        let Setting { num_blocks, verify } = setting;
        vec![format!(
            "let mut index = PrefixIndex::with_parents({num_blocks}, {BLOCK_SIZE}, \
             Verify::{verify:?}).unwrap();"
        )]
    }

    fn closing(&self) -> Vec<String> {
        let mut lines = vec!["index.check_invariants().unwrap();".to_owned()];
        for (content, copies) in self.copies.iter().filter(|(_, copies)| !copies.is_empty()) {
            let last = content.len() / BLOCK_SIZE - 1;
            let first = copies.first().filter(|&block| self.contents[block].1);
            lines.push(format!(
                "assert_eq!(indices(&index.copies(&chain(&{content:?}).hashes()[{last}])), {copies:?});"
            ));
            lines.push(format!(
                "assert_eq!(index.find(&chain(&{content:?}), {last}).map(BlockId::index), {first:?});"
            ));
        }
        lines
    }
}

const CHAIN: &str = "
fn chain(tokens: &[u32]) -> HashChain {
    let config = HasherConfig { block_size: 2, verify: Verify::Tokens, ..Default::default() };
    let hasher = std::sync::Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys::default()).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}
";

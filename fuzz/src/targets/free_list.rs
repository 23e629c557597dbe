//! Compares `FreeBlockList` with a plain vector.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::FreeBlockList;
use kvpool_lab::model::reference::{block_ids, indices};

use crate::bytes::{pick, simpler_list, smaller, some, up_to};
use crate::case::{Machine, Script};
use kvpool_lab::failure::{Failure, same};

/// The setting of the list: its number of blocks, including the null block.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    num_blocks: usize,
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(Self { num_blocks: 2 + up_to(bytes, 12)? })
    }
}

/// An operation on the list. Block ids may be below or above the valid range.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Allocates this number of blocks from the front of the list.
    Pop(usize),
    /// Frees a block at the front of the list, so that it is allocated next.
    PushFront(usize),
    /// Frees a block at the back of the list, so that it is allocated last.
    PushBack(usize),
    /// Frees blocks with consecutive ids.
    PushRun(Vec<usize>),
    /// Removes a block from any position of the list.
    Remove(usize),
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(match pick(bytes, &[6, 6, 3, 3, 4])? {
            0 => Self::Pop(up_to(bytes, 7)?),
            1 => Self::PushFront(up_to(bytes, 15)?),
            2 => Self::PushBack(up_to(bytes, 15)?),
            3 => Self::PushRun(some(bytes, 4, 15)?),
            _ => Self::Remove(up_to(bytes, 15)?),
        })
    }
}

/// The list under test, and a vector with its expected content.
#[derive(Debug)]
pub struct FreeList {
    list: FreeBlockList,
    model: Vec<usize>,
    num_blocks: usize,
}

impl FreeList {
    fn may_free(&self, block: usize) -> bool {
        (1..self.num_blocks).contains(&block) && !self.model.contains(&block)
    }
}

impl Machine for FreeList {
    type Setting = Setting;
    type Operation = Operation;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let list = FreeBlockList::new(setting.num_blocks)
            .map_err(|error| Failure::new("setting", error.to_string()))?;
        Ok(Self { list, model: (1..setting.num_blocks).collect(), num_blocks: setting.num_blocks })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        let id = |block: usize| block_ids(&[block])[0];
        let (found, expected) = match operation {
            Operation::Pop(n) => {
                let fits = *n <= self.model.len();
                let expected: Option<Vec<_>> = fits.then(|| self.model.drain(..n).collect());
                script.line(|| {
                    format!(
                        "assert_eq!(list.pop_front_n({n}).ok().map(|blocks| indices(&blocks)), {});",
                        crate::text::option(expected.as_ref())
                    )
                });
                let found = self.list.pop_front_n(*n).ok().map(|blocks| indices(&blocks));
                same("blocks of pop_front_n", &found, &expected)?;
                (fits, fits)
            }
            Operation::PushFront(block) => {
                let fine = self.may_free(*block);
                if fine {
                    self.model.insert(0, *block);
                }
                script
                    .line(|| crate::text::outcome(&format!("list.push_front(BlockId::new({block}))"), fine));
                (self.list.push_front(id(*block)).is_ok(), fine)
            }
            Operation::PushBack(block) => {
                let fine = self.may_free(*block);
                if fine {
                    self.model.push(*block);
                }
                script.line(|| crate::text::outcome(&format!("list.push_back(BlockId::new({block}))"), fine));
                (self.list.push_back(id(*block)).is_ok(), fine)
            }
            Operation::PushRun(blocks) => {
                let twice = (1..blocks.len()).any(|at| blocks[..at].contains(&blocks[at]));
                let fine = !twice && blocks.iter().all(|&block| self.may_free(block));
                if fine {
                    blocks.iter().for_each(|&block| self.model.insert(0, block));
                }
                script.line(|| {
                    crate::text::outcome(&format!("list.push_front_n(&block_ids(&{blocks:?}))"), fine)
                });
                (self.list.push_front_n(&block_ids(blocks)).is_ok(), fine)
            }
            Operation::Remove(block) => {
                let at = self.model.iter().position(|other| other == block);
                if let Some(at) = at {
                    self.model.remove(at);
                }
                script.line(|| {
                    crate::text::outcome(&format!("list.remove(BlockId::new({block}))"), at.is_some())
                });
                (self.list.remove(id(*block)).is_ok(), at.is_some())
            }
        };
        same("outcome", &found, &expected)?;
        self.list.check_invariants()?;
        same("order", &self.list.iter().map(kvpool::BlockId::index).collect(), &self.model)?;
        same("length", &(self.list.len(), self.list.is_empty()), &(self.model.len(), self.model.is_empty()))?;
        let contained = (0..self.num_blocks).filter(|&block| self.list.contains(id(block))).count();
        same("blocks contained", &contained, &self.model.len())
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        (2..setting.num_blocks).map(|num_blocks| Setting { num_blocks }).collect()
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        match operation {
            Operation::Pop(n) => smaller(*n).map(Operation::Pop).collect(),
            Operation::PushFront(block) => smaller(*block).map(Operation::PushFront).collect(),
            Operation::PushBack(block) => std::iter::once(Operation::PushFront(*block))
                .chain(smaller(*block).map(Operation::PushBack))
                .collect(),
            Operation::PushRun(blocks) => simpler_list(blocks).into_iter().map(Operation::PushRun).collect(),
            Operation::Remove(block) => smaller(*block).map(Operation::Remove).collect(),
        }
    }

    const ITEMS: &[(&str, &str)] = &[
        ("block_ids", "use kvpool_lab::model::reference::block_ids;\n"),
        ("indices", "use kvpool_lab::model::reference::indices;\n"),
        ("BlockId::", "use kvpool::BlockId;\n"),
        ("FreeBlockList", "use kvpool::FreeBlockList;\n"),
    ];

    fn opening(setting: &Setting) -> Vec<String> {
        vec![format!("let mut list = FreeBlockList::new({}).unwrap();", setting.num_blocks)]
    }

    fn closing(&self) -> Vec<String> {
        vec![
            "list.check_invariants().unwrap();".into(),
            format!(
                "assert_eq!(indices(&list.iter().collect::<Vec<_>>()), {});",
                crate::text::list(&self.model)
            ),
        ]
    }
}

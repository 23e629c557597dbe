//! `CacheManager` with KV-cache groups against the engine of [`kvpool_testing::groups`], which reads every cell that a token needs.
//!
//! Owns how groups and operations become simpler. What is right is the model's to say: it stops at the first
//! thing that is wrong, and the place where it stops is the kind of the failure.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::groups::GroupSpec;
use kvpool::{CacheManager, Part};
use kvpool_testing::groups::{Operation, World, operation, specs};

use crate::bytes::{smaller, up_to};
use crate::case::{Failure, Machine, Script};

/// The groups of a model, and the blocks that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    specs: Vec<GroupSpec>,
    /// Null block included.
    num_blocks: usize,
}

/// Draws from bytes; where there are no more, the simplest.
fn draw<'a>(bytes: &'a mut Unstructured<'_>) -> impl FnMut(u8) -> usize + 'a {
    |most| up_to(bytes, most).unwrap_or(0)
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(Self { num_blocks: 2 + up_to(bytes, 38)?, specs: specs(&mut draw(bytes)) })
    }
}

/// An operation from bytes: a type of the model's is none of this crate's.
#[derive(Clone, Debug, PartialEq)]
pub struct Done(Operation);

impl<'a> Arbitrary<'a> for Done {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(Self(operation(&mut draw(bytes))))
    }
}

/// The model.
#[derive(Debug)]
pub struct Hybrid(World);

impl Machine for Hybrid {
    type Setting = Setting;
    type Operation = Done;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let Setting { specs, num_blocks } = setting.clone();
        let world = World::new(specs, num_blocks, CacheManager::new);
        world.map(Self).map_err(|error| Failure::new("setting", error.to_string()))
    }

    fn apply(&mut self, Done(operation): &Done, script: &mut Script) -> Result<(), Failure> {
        script.line(|| {
            let operation = format!("{operation:?}").replace('[', "vec![");
            format!("drop(world.apply(&{operation}));")
        });
        drop(self.0.apply(operation));
        Ok(())
    }

    fn simpler_settings(Setting { specs, num_blocks }: &Setting) -> Vec<Setting> {
        let mut simpler = Vec::new();
        let mut add = |at: usize, spec: Option<GroupSpec>| {
            let mut specs = specs.clone();
            specs.splice(at..=at, spec);
            simpler.push(Setting { specs, num_blocks: *num_blocks });
        };
        for (at, &spec) in specs.iter().enumerate() {
            if specs.len() > 1 {
                add(at, None);
            }
            if spec != GroupSpec::new(spec.kind, spec.block_tokens) {
                add(at, Some(GroupSpec::new(spec.kind, spec.block_tokens)));
            }
            if spec.block_tokens > 2 {
                add(at, Some(GroupSpec { block_tokens: 2, ..spec }));
            }
            if spec.margin > 0 {
                add(at, Some(GroupSpec { margin: 0, ..spec }));
            }
            if spec.sink_tokens > 0 {
                add(at, Some(GroupSpec { sink_tokens: 0, ..spec }));
            }
        }
        let fewer = (2..*num_blocks).map(|num_blocks| Setting { specs: specs.clone(), num_blocks });
        simpler.extend(fewer);
        simpler
    }

    fn simpler_operations(Done(operation): &Done) -> Vec<Done> {
        let least = |least: usize, number: usize| smaller(number).filter(move |&other| other >= least);
        let with = |change: &dyn Fn(&mut Operation)| {
            let mut simpler = operation.clone();
            change(&mut simpler);
            simpler
        };
        let mut simpler = Vec::new();
        match operation {
            Operation::Admit { turn: most, tokens: all, .. } => {
                simpler.push(with(&|one| {
                    if let Operation::Admit { id, way, part, .. } = one {
                        (*id, *way, *part) = (0, 1, Part::WHOLE);
                    }
                }));
                simpler.extend(least(1, *all).map(|fewer| {
                    with(&|one| {
                        if let Operation::Admit { tokens, .. } = one {
                            *tokens = fewer;
                        }
                    })
                }));
                simpler.extend(smaller(*most).map(|earlier| {
                    with(&|one| {
                        if let Operation::Admit { turn, .. } = one {
                            *turn = earlier;
                        }
                    })
                }));
            }
            Operation::Append { ids: rows, .. } => {
                let fewer = if rows.len() > 1 { vec![rows[0]] } else { vec![0] };
                simpler.push(with(&|one| {
                    if let Operation::Append { ids, .. } = one {
                        ids.clone_from(&fewer);
                    }
                }));
                simpler.push(with(&|one| {
                    if let Operation::Append { tokens, lookahead, accepted, .. } = one {
                        (*tokens, *lookahead, *accepted) = (1, 0, 0);
                    }
                }));
            }
            Operation::SwapOut(ids) if ids.len() > 1 => simpler.push(Operation::SwapOut(vec![ids[0]])),
            Operation::SwapIn(ids) if ids.len() > 1 => simpler.push(Operation::SwapIn(vec![ids[0]])),
            Operation::Resume { id, part } if *part != Part::WHOLE => {
                simpler.push(Operation::Resume { id: *id, part: Part::WHOLE });
            }
            Operation::Preempt { id, until: Some(_) } => {
                simpler.push(Operation::Preempt { id: *id, until: None });
            }
            Operation::Release { id, until: Some(_) } => {
                simpler.push(Operation::Release { id: *id, until: None });
            }
            Operation::Extend { id, slots } => {
                simpler.extend(smaller(*slots).map(|slots| Operation::Extend { id: *id, slots }));
            }
            Operation::Compute { id, tokens } if *tokens < usize::MAX => {
                simpler.push(Operation::Compute { id: *id, tokens: usize::MAX });
            }
            Operation::Draft { id, tokens } => {
                simpler.extend(least(1, *tokens).map(|tokens| Operation::Draft { id: *id, tokens }));
            }
            Operation::Truncate { id, by } => {
                simpler.extend(least(1, *by).map(|by| Operation::Truncate { id: *id, by }));
            }
            Operation::Evict(n) => simpler.extend(least(1, *n).map(Operation::Evict)),
            _ => {}
        }
        simpler.retain(|one| one != operation);
        simpler.into_iter().map(Done).collect()
    }

    const ITEMS: &[(&str, &str)] = &[
        ("CacheManager", "use kvpool::CacheManager;\n"),
        ("Part {", "use kvpool::Part;\n"),
        ("GroupSpec", "use kvpool::groups::{GroupKind::*, GroupSpec, Keep::*};\n"),
        ("world.apply", "use kvpool_testing::groups::Operation::*;\n"),
        ("World", "use kvpool_testing::groups::World;\n"),
    ];

    fn opening(Setting { specs, num_blocks }: &Setting) -> Vec<String> {
        vec![
            format!("let specs = vec!{specs:?};"),
            format!("let mut world = World::new(specs, {num_blocks}, CacheManager::new).unwrap();"),
        ]
    }

    fn closing(&self) -> Vec<String> {
        vec!["world.check_refused_growth();".into(), "world.finish();".into()]
    }
}

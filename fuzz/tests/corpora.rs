//! Runs the committed corpora and some thousand random inputs through every target. So a fault that an
//! input of a corpus once revealed is detected again.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use kvpool_fuzz::random::Inputs;
use kvpool_fuzz::{TARGETS, Target};

fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn fine(target: &Target, input: &[u8], name: &str) {
    if let Err(failure) = (target.check)(input) {
        let report = (target.report)(input).err();
        panic!("{} {name}: {failure}\n{}", target.name, report.unwrap());
    }
}

#[test]
fn committed_inputs_find_nothing() {
    for target in TARGETS {
        let inputs = inputs(&corpus(target));
        assert!(inputs.len() >= 5, "{} has no corpus", target.name);
        for (path, input) in inputs {
            fine(target, &input, &path.display().to_string());
        }
    }
}

#[test]
fn the_corpora_stay_small() {
    let folders: Vec<_> = TARGETS.iter().map(corpus).collect();
    let inputs: Vec<_> = folders.iter().flat_map(|folder| inputs(folder)).collect();
    let bytes: usize = inputs.iter().map(|(_, input)| input.len()).sum();
    assert!(inputs.len() <= 100 * TARGETS.len() && bytes < 200_000, "{} inputs, {bytes} bytes", inputs.len());
    let names = fs::read_dir(folders[0].parent().unwrap()).unwrap().count();
    assert_eq!(names, TARGETS.len(), "a corpus without a target");
}

#[test]
fn random_inputs_find_nothing() {
    for (seed, target) in TARGETS.iter().enumerate() {
        let corpus = inputs(&corpus(target)).into_iter().map(|(_, input)| input).collect();
        let mut inputs = Inputs::new(seed as u64, corpus);
        for nth in 0..500 {
            fine(target, &inputs.next_input(), &format!("input {nth} of seed {seed}"));
        }
    }
}

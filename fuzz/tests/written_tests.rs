//! A failing case is written as a Rust test. That test must compile, and pass if the source has no
//! defect. The files in `rendered` are such tests, and they run here.
//!
//! `KVPOOL_UPDATE=1` writes them again.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::fs;
use std::path::Path;

use kvpool_fuzz::random::Inputs;
use kvpool_fuzz::targets::{free_list::FreeList, index::Index};
use kvpool_fuzz::{Case, Machine};

const MOST: usize = 80;

/// Returns the longest case with at most [`MOST`] operations. Chooses among the first inputs of a seed.
fn text<M: Machine>(seed: u64) -> String {
    let mut inputs = Inputs::new(seed, Vec::new());
    let cases = (0..40).filter_map(|_| Case::<M>::decode(&inputs.next_input()));
    let short = cases.filter(|case| case.operations.len() <= MOST);
    short.max_by_key(|case| case.operations.len()).unwrap().to_rust("written").0
}

#[test]
fn the_rendered_tests_are_what_cases_are_written_as() {
    for (name, text) in [("free_list", text::<FreeList>(3)), ("index", text::<Index>(3))] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/rendered/{name}.rs"));
        if std::env::var_os("KVPOOL_UPDATE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap() == text, "{name} is written otherwise: KVPOOL_UPDATE=1");
    }
}

macro_rules! rendered {
    ($($name:ident)*) => {
        $(
            mod $name {
                include!(concat!("rendered/", stringify!($name), ".rs"));
            }
        )*
    };
}

rendered!(free_list index);

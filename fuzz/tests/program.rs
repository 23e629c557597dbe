//! Tests the output and the exit codes of the program `kvpool-fuzz`.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::path::Path;
use std::process::Command;

/// Runs the program. Returns the exit code and all output.
fn run(arguments: &[&str]) -> (i32, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kvpool-fuzz")).args(arguments).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8(said).unwrap())
}

fn corpus(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn random_inputs_find_nothing_and_are_counted() {
    let (code, said) = run(&["random", "free_list", "--seconds", "0.1", "--corpus", &corpus("free_list")]);
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("free_list: ") && said.ends_with("nothing found\n"), "{said}");
}

#[test]
fn inputs_are_replayed_and_only_failing_ones_can_be_shrunk() {
    let input = format!("{}/000", corpus("pool"));
    assert_eq!(run(&["replay", "pool", &input]), (0, String::new()));
    let (code, said) = run(&["shrink", "pool", &input]);
    assert!(code == 2 && said.contains("does not fail"), "{said}");
}

#[test]
fn bad_usage_gives_an_error_message() {
    for (arguments, message) in [
        (&["random"][..], "a command and a target are needed"),
        (&["random", "pools"], "no target \"pools\": there are free_list, index, pool, manager"),
        (&["walk", "pool"], "no command \"walk\""),
        (&["random", "pool", "--seconds"], "\"--seconds\" needs a value"),
        (&["random", "pool", "--seconds", "long"], "--seconds cannot be \"long\""),
        (&["random", "pool", "--seconds", "inf"], "--seconds is no time"),
        (&["random", "pool", "--speed", "1"], "no option \"--speed\""),
        (&["replay", "pool", "/nowhere"], "/nowhere: "),
    ] {
        let (code, said) = run(arguments);
        assert!(code == 2 && said.contains(message), "{arguments:?}: {said}");
        assert!(said.contains("usage: kvpool-fuzz random TARGET"), "{said}");
    }
}

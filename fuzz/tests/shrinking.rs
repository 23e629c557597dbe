//! Tests the shrinker of failing cases on a fuzz target with known bugs.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool_fuzz::{Case, Failure, Machine, Script, shrink};

/// A fuzz target for the tests: a counter with three planted bugs.
struct Counter {
    value: u32,
    armed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Setting {
    noisy: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Operation {
    Add(u32),
    Arm,
    Fire,
    Nothing,
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        Ok(Self { noisy: bytes.arbitrary()? })
    }
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let byte: u8 = bytes.arbitrary()?;
        Ok(match byte % 4 {
            0 => Self::Add(u32::from(byte)),
            1 => Self::Arm,
            2 => Self::Fire,
            _ => Self::Nothing,
        })
    }
}

impl Machine for Counter {
    type Setting = Setting;
    type Operation = Operation;

    fn new(_: &Setting) -> Result<Self, Failure> {
        Ok(Self { value: 0, armed: false })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        script.line(|| format!("counter.{operation:?};"));
        match operation {
            Operation::Add(n) => self.value += n,
            Operation::Arm => self.armed = true,
            Operation::Fire if self.armed && self.value >= 7 => {
                return Err(Failure::new("fired", format!("at {}", self.value)));
            }
            Operation::Fire if self.armed => self.armed = false,
            Operation::Fire | Operation::Nothing => {}
        }
        assert!(self.value != 1000, "a thousand");
        if self.value == 500 { Err(Failure::new("half", "five hundred")) } else { Ok(()) }
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        if setting.noisy { vec![Setting { noisy: false }] } else { Vec::new() }
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        match operation {
            Operation::Add(n) if *n > 0 => [0, n / 2, n - 1].map(Operation::Add).to_vec(),
            _ => Vec::new(),
        }
    }

    const ITEMS: &[(&str, &str)] =
        &[("Arm", "use first;\n"), ("Fire", "\nfn second() {}\n"), ("Missing", "use third;\n")];

    fn opening(setting: &Setting) -> Vec<String> {
        vec![format!("let counter = {};", setting.noisy)]
    }

    fn closing(&self) -> Vec<String> {
        vec![format!("value {}", self.value)]
    }
}

fn case(operations: Vec<Operation>) -> Case<Counter> {
    Case { setting: Setting { noisy: true }, operations }
}

/// Shrinks two hundred operations to the three that cause the failure. The value of one of them is
/// reduced to 7.
#[test]
fn shrinking_removes_irrelevant_operations() {
    let mut operations = vec![Operation::Nothing; 200];
    operations[20] = Operation::Add(3);
    operations[60] = Operation::Add(90);
    operations[61] = Operation::Fire;
    operations[133] = Operation::Arm;
    operations[180] = Operation::Fire;
    let (small, failure) = shrink(&case(operations)).unwrap();
    assert_eq!(failure, Failure::new("fired", "at 7"));
    assert!(!small.setting.noisy);
    assert_eq!(small.operations.len(), 3);
    assert!(small.operations.contains(&Operation::Add(7)), "{:?}", small.operations);
    assert_eq!(small.operations[2], Operation::Fire);
}

/// The shrinker does not accept a smaller case that fails in another way. In this test, the last
/// operation alone would panic.
#[test]
fn the_way_of_failing_is_kept() {
    let operations = vec![Operation::Add(250), Operation::Add(250), Operation::Add(500)];
    let (small, failure) = shrink(&case(operations)).unwrap();
    assert_eq!(failure.kind, "half");
    assert_eq!(small.operations, [Operation::Add(250), Operation::Add(250)]);

    let operations = vec![Operation::Nothing, Operation::Add(600), Operation::Arm, Operation::Add(400)];
    let (small, failure) = shrink(&case(operations)).unwrap();
    assert_eq!((failure.what.as_str(), small.operations.len()), ("a thousand", 2));
    assert!(failure.kind.starts_with("panic at ") && failure.kind.contains("shrinking.rs:"), "{failure}");
}

#[test]
fn a_case_that_does_not_fail_is_not_shrunk() {
    assert!(shrink(&case(vec![Operation::Arm, Operation::Fire])).is_none());
}

#[test]
fn a_case_is_written_as_a_test_up_to_its_failure() {
    let text =
        case(vec![Operation::Arm, Operation::Add(8), Operation::Fire, Operation::Arm]).to_rust("found");
    let (text, calls) = text;
    let expected = "use first;\n\nfn second() {}\n\n/// fired: at 8\n#[test]\nfn found() {\n    let \
         counter = true;\n    counter.Arm;\n    counter.Add(8);\n    counter.Fire;\n    value 8\n}\n";
    assert_eq!((text.as_str(), calls), (expected, 3));
}

#[test]
fn any_bytes_are_a_case() {
    assert_eq!(Case::<Counter>::decode(&[]).unwrap().operations, []);
    let all: Vec<u8> = (0..=255).cycle().take(2000).collect();
    assert_eq!(Case::<Counter>::decode(&all).unwrap().operations.len(), kvpool_fuzz::MOST_OPERATIONS);
}

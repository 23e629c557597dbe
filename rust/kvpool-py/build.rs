//! Generates the macro `doc!`, which contains the docstring of each name in the stubs. The extension uses it
//! for its docstrings.
//!
//! `doc!("BlockPool.allocate")` is the docstring of that method in `python/kvpool/_core/pool.pyi`,
//! without its indentation. The key of a class or function is its name. The key of a module is its
//! path, `kvpool._core.pool`. The first of several overloads has the docstring. The build stops at a
//! public name without a docstring, and at a name that no stub has.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

const STUBS: &str = "../../python/kvpool/_core";
const QUOTES: &str = "\"\"\"";

fn main() {
    println!("cargo::rerun-if-changed={STUBS}");
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(error) = docs().and_then(|docs| write(&docs)) {
        println!("cargo::error={error}");
    }
}

fn write(docs: &str) -> Result<(), String> {
    let path = Path::new(&env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("docs.rs");
    fs::write(&path, docs).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the Rust source of the macro `doc!`.
fn docs() -> Result<String, String> {
    let mut stubs: Vec<PathBuf> = fs::read_dir(STUBS)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| format!("{STUBS}: {error}"))?;
    stubs.retain(|path| path.extension().is_some_and(|extension| extension == "pyi"));
    stubs.sort();
    let mut source = String::from("macro_rules! doc {\n");
    for path in stubs {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (name, doc) in (Stub { path: &path, lines: text.lines().collect() }).docs()? {
            writeln!(source, "    ({name:?}) => {{ {doc:?} }};").map_err(|error| error.to_string())?;
        }
    }
    source.push_str("}\n");
    Ok(source)
}

/// A stub file, from which docstrings are read.
struct Stub<'a> {
    path: &'a Path,
    lines: Vec<&'a str>,
}

impl Stub<'_> {
    /// Returns each public name that exists at run time, with its docstring.
    fn docs(&self) -> Result<Vec<(String, String)>, String> {
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let module = if stem == "__init__" { "kvpool._core".into() } else { format!("kvpool._core.{stem}") };
        let (doc, mut at) = self.docstring(0)?;
        let mut docs = vec![(module, doc.ok_or_else(|| self.error(0, "the module has no docstring"))?)];
        let (mut class, mut for_checkers) = (None, false);
        while let Some(&line) = self.lines.get(at) {
            let (indent, text) = split(line);
            let start = at;
            at += 1;
            if text == "@type_check_only" {
                for_checkers = true;
            }
            let Some((is_class, name)) = declared(text) else { continue };
            if indent == 0 {
                class = is_class.then_some((name, for_checkers));
            }
            let (owner, hidden) = match class {
                Some((owner, hidden)) if indent > 0 => (Some(owner), hidden),
                _ => (None, for_checkers),
            };
            for_checkers = false;
            at = self.end_of_signature(start)?;
            let (doc, end) = self.docstring(at)?;
            at = end;
            if hidden || name.starts_with('_') {
                continue;
            }
            let name = owner.map_or_else(|| name.to_owned(), |owner| format!("{owner}.{name}"));
            match doc {
                Some(doc) if docs.iter().all(|(known, _)| *known != name) => docs.push((name, doc)),
                None if docs.iter().any(|(known, _)| *known == name) => {}
                Some(_) => return Err(self.error(start, &format!("{name} has a second docstring"))),
                None => return Err(self.error(start, &format!("{name} has no docstring"))),
            }
        }
        Ok(docs)
    }

    /// Returns the number of the line after the signature that begins in line `start`.
    fn end_of_signature(&self, start: usize) -> Result<usize, String> {
        let mut depth = 0_i32;
        for (at, line) in self.lines.iter().enumerate().skip(start) {
            let line = line.split("  # ").next().unwrap_or_default();
            let count = |brackets: [char; 2]| line.matches(brackets).count() as i32;
            depth += count(['(', '[']) - count([')', ']']);
            if depth == 0 && (line.ends_with(':') || line.ends_with(": ...")) {
                return Ok(at + 1);
            }
        }
        Err(self.error(start, "a signature without end"))
    }

    /// Returns the docstring that begins in line `start`, if there is one, in the form of
    /// `inspect.cleandoc`. Also returns the number of the line after it.
    fn docstring(&self, start: usize) -> Result<(Option<String>, usize), String> {
        let Some(&first) = self.lines.get(start) else { return Ok((None, start)) };
        let (indent, text) = split(first);
        let (raw, Some(text)) = (text.starts_with('r'), text.trim_start_matches('r').strip_prefix(QUOTES))
        else {
            return Ok((None, start));
        };
        let (mut doc, mut rest, mut at) = (String::new(), text, start);
        loop {
            if !raw && rest.contains('\\') {
                return Err(self.error(at, "a backslash needs a raw docstring"));
            }
            if let Some((last, behind)) = rest.split_once(QUOTES) {
                doc.push_str(last);
                if !behind.is_empty() {
                    return Err(self.error(at, "text after a docstring"));
                }
                return Ok((Some(doc.trim_end().to_owned()), at + 1));
            }
            doc.push_str(rest);
            doc.push('\n');
            at += 1;
            let Some(&line) = self.lines.get(at) else {
                return Err(self.error(start, "a docstring without end"));
            };
            rest = match line.split_at_checked(indent) {
                Some((before, rest)) if before.trim().is_empty() => rest,
                _ if line.is_empty() => line,
                _ => return Err(self.error(at, "a line of a docstring is indented less than the first")),
            };
        }
    }

    fn error(&self, at: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path.display(), at + 1)
    }
}

/// Returns the indentation of a line, and the rest of the line.
fn split(line: &str) -> (usize, &str) {
    let text = line.trim_start();
    (line.len() - text.len(), text)
}

/// Returns whether a line declares a class, and the name of the class or function.
fn declared(text: &str) -> Option<(bool, &str)> {
    let (is_class, rest) = match text.strip_prefix("class ") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("def ")?),
    };
    rest.split(['(', ':', '[']).next().map(|name| (is_class, name))
}

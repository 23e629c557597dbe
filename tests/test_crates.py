"""Every published crate has a licence and a README. The docs of the manager have an overview that
contains every method.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def published() -> dict[str, dict[str, Any]]:
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {one["name"]: one for one in json.loads(told)["packages"] if one["publish"] != []}


CRATES = published()


@pytest.mark.parametrize("name", CRATES)
def test_each_has_the_licence_and_a_readme_with_an_example_that_runs(name: str) -> None:
    folder = Path(CRATES[name]["manifest_path"]).parent
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert CRATES[name]["readme"] == "README.md"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {name}\n\n")
    assert any(f"`{other}`" in readme for other in CRATES.keys() - {name})
    # The README is included in the crate's docs, so its examples run as tests.
    assert "```rust\n" in readme
    assert 'doc = include_str!("../README.md")]' in (folder / "src/lib.rs").read_text(encoding="utf-8")


def test_the_quickstart_names_the_version() -> None:
    readme = (ROOT / "rust/kvpool/README.md").read_text(encoding="utf-8")
    (named,) = re.findall(r'^kvpool = "(\d+\.\d+)"$', readme, flags=re.MULTILINE)
    (version,) = {crate["version"] for crate in CRATES.values()}
    assert version.startswith(f"{named}.")


def test_the_overview_of_the_manager_has_every_method() -> None:
    folder = ROOT / "rust/kvpool/src/manager"
    text = (folder / "mod.rs").read_text(encoding="utf-8")
    overview = text[text.index("/// # Admit") : text.index("pub struct CacheManager")]
    impl = re.compile(r"^impl CacheManager \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
    found, left_out = set(), {"new", "with_evictor", "with_hasher"}
    for path in folder.glob("*.rs"):
        if path.name in {"observe.rs", "checks.rs"}:
            continue  # for observers and checks
        for block in impl.findall(path.read_text(encoding="utf-8")):
            found |= set(re.findall(r"^    pub (?:const )?fn (\w+)", block, re.MULTILINE))
            left_out |= set(
                re.findall(r"#\[doc\(hidden\)\]\n(?:    [#/].*\n)*    pub (?:const )?fn (\w+)", block)
            )
    missing = sorted(name for name in found - left_out if f"(Self::{name})" not in overview)
    assert (len(found) > 60, missing) == (True, [])

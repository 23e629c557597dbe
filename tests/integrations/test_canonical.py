"""Tests canonical texts of settings. Equal settings have equal texts, different settings have different
texts, and no text contains a memory address.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from kvpool.errors import InvalidArgumentError
from kvpool.integrations import canonical
from kvpool.integrations.canonical import Canonical, digest_of, fields_of, short

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Kind(enum.Enum):
    A = 1
    B = 2


class Level(enum.IntEnum):
    A = 1


@dataclasses.dataclass
class Record:
    name: str
    inside: Any = None


class Struct:
    """A stand-in with the interface of msgspec's structs, a kind of settings object."""

    __struct_fields__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Described:
    """A class like the model configurations of transformers."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def to_dict(self) -> dict[str, Any]:
        return self.fields


class Model:
    """A stand-in with the interface of pydantic's models, a kind of settings object."""

    model_fields: ClassVar = {"name": None}

    def __init__(self, name: str) -> None:
        self.name = name


@dataclasses.dataclass
class Transformers(Described):
    """A class like the model configurations of transformers 5, which are dataclasses."""

    model_type: ClassVar = "llama"
    fields: dict[str, Any]


Named = collections.namedtuple("Named", "name")


def text(value: Any, name: str = "setting") -> str:
    written = Canonical()
    found = written.text(name, value)
    assert written.unknown == []
    return found


def test_values_that_differ_have_texts_that_differ() -> None:
    values: list[Any] = [
        *(
            None,
            True,
            False,
            0,
            1,
            2,
            0.0,
            1.0,
            -0.0,
            float("nan"),
            float("inf"),
            "",
            "1",
            "None",
            "true",
            b"1",
            b"",
        ),
        *(
            [],
            [1],
            ["1"],
            [1, 2],
            [2, 1],
            [[1], 2],
            [1, [2]],
            {},
            {"a": 1},
            {"a": "1"},
            {"a": {"b": 1}},
            {1: 1},
        ),
        *(
            {"1": 1},
            set(),
            {1},
            {"1"},
            Kind.A,
            Kind.B,
            Level.A,
            torch.bfloat16,
            torch.float16,
            torch.device("cpu"),
        ),
        *(
            Record("a"),
            Record("b"),
            Record("a", Record("b")),
            Struct("a"),
            Model("a"),
            Model("b"),
            Named("a"),
            Described(a=1),
            Described(a=2),
        ),
        *("{}", '{"a": 1}', '{"a": 2}', "[1]", "{broken", dict, list),
    ]
    texts = [text(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert all("0x" not in one for one in texts)


def test_order_and_spaces_that_mean_nothing_are_not_in_a_text() -> None:
    assert text({"a": 1, "b": 2}) == text({"b": 2, "a": 1})
    assert text({"b", "a", "c"}) == text({"c", "b", "a"})
    assert text('{"a": 1, "b": [1, 2]}') == text('{"b":[1,2],\n "a":1}')
    assert text([1, 2]) == text((1, 2)), "a list that went through JSON"


def test_texts_are_the_same_in_every_process() -> None:
    script = (
        "from kvpool.integrations.canonical import Canonical\n"
        "print(Canonical().text('a', {'x': {'b', 'a', 'c'}, 'y': [1.5, None, '{\"k\": 1}']}))"
    )
    texts = set()
    for seed in ("1", "2"):
        kept = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=kept, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1


def test_a_string_that_names_a_file_counts_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scales.json"
    plain = text(str(path))
    path.write_text("one")
    first = text(str(path))
    assert first != plain
    times = path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert text(str(path)) != first
    path.write_text("one")
    os.utime(path, (1, 1))
    assert text(str(path)) == first
    assert text(path) == first
    inside = text(f'{{"file": "{path}"}}')
    path.write_text("three")
    assert text(f'{{"file": "{path}"}}') != inside, "inside of JSON, too"
    monkeypatch.chdir(tmp_path)
    assert text("scales.json") != text("missing.json")


def test_a_folder_counts_where_a_path_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        (tmp_path / "cuda").mkdir(exist_ok=True)
        (tmp_path / "cuda" / "file").write_text(str(number))
        if number == 1:
            device, path, whole = (
                text("cuda", "device"),
                text("cuda", "kt_weight_path"),
                text(str(tmp_path / "cuda")),
            )
    assert text("cuda", "device") == device, "a word that is a folder's name by chance"
    assert text("cuda", "kt_weight_path") != path
    assert text(str(tmp_path / "cuda")) != whole


def test_a_value_of_an_unknown_type_is_reported_and_never_written_with_its_address() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)

    class Broken:
        def to_dict(self) -> dict[str, Any]:
            raise RuntimeError("planted")

    class BrokenTransformers(Broken):
        model_type = "llama"
        __struct_fields__ = ()

    for value in (
        object(),
        lambda: None,
        Broken(),
        BrokenTransformers(),
        cyclic,
        {"a": [object()]},
        type("<locals>.A", (), {}),
    ):
        written = Canonical()
        found = written.text("setting", value)
        assert "0x" not in found
        assert len(written.unknown) == 1
        assert written.unknown[0].startswith("setting")


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object) -> str:
        raise InvalidArgumentError("planted")

    (tmp_path / "file").touch()
    monkeypatch.setattr(canonical, "content_of", fail)
    written = Canonical()
    written.text("setting", str(tmp_path / "file"))
    assert written.unknown == ["setting (builtins.str)"]


def test_fields_of_records() -> None:
    assert fields_of(Record("a", 1)) == {"name": "a", "inside": 1}
    assert fields_of(Struct("a")) == {"name": "a"}
    assert fields_of(Model("a")) == fields_of(Named("a")) == {"name": "a"}
    assert fields_of({}) is fields_of(1) is fields_of(Record) is None


def test_fields_that_are_skipped_are_in_no_text() -> None:
    def found(value: Any, **skipped: str) -> str:
        return Canonical(lambda owner, name: skipped.get(type(owner).__name__) == name).text("setting", value)

    assert found(Record("a", 1), Record="name") == found(Record("b", 1), Record="name")
    assert found([{"x": Record("a", 1)}], Record="name") == found([{"x": Record("b", 1)}], Record="name")
    assert found(Record("a", 1), Record="name") != found(Record("a", 2), Record="name")
    assert found(Record("a"), Struct="name") != found(Record("b"), Struct="name")
    assert found({"name": 1}, dict="name") != found({"name": 2}, dict="name"), (
        "a mapping of the user's has no fields"
    )
    for kind in (Described, Transformers):
        one, two = ({"a": 1, "inside": [{"path": path, "b": 1}], "path": path} for path in "12")
        skipped = {kind.__name__: "path"}
        assert found(kind(fields=one), **skipped) == found(kind(fields=two), **skipped), "at any depth"
        assert found(kind(fields=one)) != found(kind(fields=two))


def test_a_cycle_takes_no_more_time_than_its_values() -> None:
    cyclic: list[Any] = []
    cyclic += [cyclic] * 4
    written = Canonical()
    written.text("setting", cyclic)
    assert len(written.unknown) == 4


def test_a_huge_folder_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_MOST_FILES", 3)
    for number in range(4):
        assert text(str(tmp_path)) != ""
        (tmp_path / str(number)).mkdir()
    written = Canonical()
    written.text("setting", str(tmp_path))
    assert written.unknown == ["setting (builtins.str)"]


def test_a_long_text_is_replaced_by_its_digest() -> None:
    assert short("a" * 64) == "a" * 64
    assert short("a" * 65) == digest_of("a" * 65) != short("a" * 66)
    assert digest_of("\udcff") != digest_of("\udcfe"), "bytes of an environment variable that are no text"

"""Tests the shadow's files with the last calls before a difference: the values in them, and the texts
that describe values.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kvpool import errors
from kvpool.integrations.vllm.trail import (
    Operation,
    Other,
    Raised,
    RequestState,
    Trail,
    brief_values,
    error_summary,
    first_difference,
    plain,
    same,
    told,
)
from tests.integrations.shadow_stand_ins import (
    SALT,
    SECRET,
    BlockRemoved,
    Blocks,
    Event,
    Pool,
    request,
    trail_of,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Trail, "folder", str(tmp_path / "trails"))
    return tmp_path / "trails"


def test_equal_results_have_equal_plain_values() -> None:
    pool = Pool(4)
    one, two = pool.blocks[1:3]
    assert plain(Blocks(([one, two], []))) == ((1, 2), ()) == plain(((one, two), []))
    assert plain((Blocks(([one],)), 16, 0)) == (((1,),), 16, 0)
    assert plain({"r": [(0, 5, 32)], "s": one}) == {"r": ((0, 5, 32),), "s": 1}
    assert plain({3, 1}) == {1, 3}
    assert [plain(value) for value in (None, True, 0.5, "r", b"k")] == [None, True, 0.5, "r", b"k"]
    assert plain(request()) == RequestState("first", 3, 1, 1)
    assert plain(print) == Other("builtin_function_or_method")
    assert plain(Blocks(([],))) != plain(None)


def test_a_plain_value_does_not_change_with_what_it_is_of() -> None:
    blocks = Pool(4).blocks[1:3]
    value = plain(blocks)
    del blocks[:]
    assert value == (1, 2)


def test_keys_that_are_removed_together_have_no_order() -> None:
    a, b, stored = BlockRemoved([b"a"], []), BlockRemoved([b"b"], []), Event([b"c"], [1])
    assert same((a, b, stored), (b, a, stored))
    assert not same((a, stored, b), (b, stored, a))
    assert not same((a,), (b,))
    assert not same((stored,), (Event([b"c"], [2]),))
    assert not same((), (a,))
    assert same((1, 2), (1, 2))


def test_described_values_contain_no_tokens() -> None:
    assert told((Event([b"a", b"b"], [SECRET]),)) == [{"event": "Event", "hashes": 2}]
    assert told(b"\x01" * 32) == "01" * 8
    assert told((b"\x01" * 32, b"\x02" * 32)) == {"hashes": 2, "last": "02" * 8}
    assert told(plain(request())) == {"request": "first", "tokens": 3, "computed": 1, "hashes": 1}
    assert told({b"\x01": (1,)}) == {"01": [1]}
    assert told(frozenset({3, 1})) == [1, 3]
    assert told(plain(object())) == "<object>"
    assert told(Raised.of(ValueError(SALT))) == {"raised": "ValueError"}


def test_the_first_difference_is_described_with_its_position() -> None:
    assert first_difference((1, (2, 3)), (1, (2, 4))) == ({"at": [1, 1], "is": 3}, {"at": [1, 1], "is": 4})
    assert first_difference((1,), (1, 2)) == ({"at": [1], "is": "<nothing>"}, {"at": [1], "is": 2})
    assert first_difference({"a": 1}, {"b": 1}) == ({"at": ["a"], "is": 1}, {"at": ["a"], "is": "<nothing>"})
    assert first_difference(None, 3) == (None, 3)
    events = (Event([b"a"], [SECRET]),), (Event([b"a"], [SECRET + 1]),)
    field = {"at": [0, "token_ids"], "is": "<different>"}
    assert first_difference(*events) == (field, field)
    long = tuple(range(1000))
    assert brief_values(long, (*long[:-1], 7)) == ('{"at": [999], "is": 999}', '{"at": [999], "is": 7}')
    assert brief_values((1,), (2,)) == ("[1]", "[2]")


def test_of_an_error_only_text_about_blocks_is_logged() -> None:
    def raise_it(error: Exception) -> str:
        try:
            raise error
        except Exception as caught:
            return error_summary(caught)

    assert SALT not in raise_it(KeyError(SALT))
    assert raise_it(KeyError(SALT)).startswith("KeyError (test_vllm_trail.py:")
    assert "block 3" in raise_it(errors.InvalidBlockError("block 3 is free"))
    assert str(SECRET) not in raise_it(errors.TokenError(str(SECRET)))


def test_a_trail_keeps_the_last_operations(folder: Path) -> None:
    trail = Trail()
    for number in range(1000):
        trail.add(Operation(number, "free", (), None))
    path = trail.write({"vllm": "0.32.0"}, {"difference": "results"})
    first, *operations, last = trail_of(folder)
    assert Path(path).parent == folder
    assert first == {"vllm": "0.32.0"}
    assert [one["operation"] for one in operations] == list(range(1000 - 256, 1000))
    assert last == {"difference": "results"}


def test_without_a_folder_a_trail_goes_where_temporary_files_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Trail, "folder", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(Trail().write({}, {})).parent == tmp_path

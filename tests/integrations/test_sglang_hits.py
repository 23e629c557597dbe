"""Compares SGLang's queries with a model. The model decides page by page which prefixes can be
restored, as SGLang's documentation describes.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvpool.integrations.sglang.hits import ends_of_blocks, grouped, leading, trailing

PRESENT = st.lists(st.booleans(), max_size=12)


@given(PRESENT)
def test_leading_pages_are_those_before_the_first_that_is_not_there(present: list[bool]) -> None:
    found = leading(present)
    assert all(present[:found])
    assert found == len(present) or not present[found]


@given(PRESENT, st.integers(1, 14))
def test_a_length_needs_the_window_before_it(present: list[bool], window: int) -> None:
    lengths = [
        length for length in range(1, len(present) + 1) if all(present[max(0, length - window) : length])
    ]
    assert trailing(present, window) == lengths


@given(PRESENT, st.integers(0, 4), st.integers(0, 4))
def test_only_whole_groups_count(present: list[bool], group: int, block: int) -> None:
    found = grouped(present, group, block)
    if group == 0 or block == 0:
        assert found == 0
        return
    groups = found // block
    assert all(present[: groups * group])
    assert len(present[groups * group :]) < group or not all(present[groups * group : (groups + 1) * group])


@given(st.integers(0, 12), st.integers(0, 5), st.integers(0, 5))
def test_a_block_has_the_pages_at_its_end(pages: int, group: int, block: int) -> None:
    keys = [str(page) for page in range(pages)]
    wanted: list[str] = []
    if group and block:
        for number in range(pages // block):
            wanted += keys[max(0, (number + 1) * block - group) : (number + 1) * block]
    assert ends_of_blocks(keys, group, block) == wanted

"""Property 25: hits + computed tokens == prompt tokens, however often a request is refused or preempted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=6),
    script=st.lists(st.tuples(st.sampled_from("accprtx"), st.integers(0, 5)), max_size=50),
    num_blocks=st.integers(4, 14),
)
def test_property_25_hits_and_computed_tokens_are_the_prompt_tokens(
    prompts: list[list[int]], script: list[tuple[str, int]], num_blocks: int
) -> None:
    """vllm#25780, vllm#43736: each retry and each preemption counted the prompt's hits again."""
    manager = kvpool.CacheManager(num_blocks, B)
    admitted: dict[int, int] = {}
    refusals = 0
    for what, at in script:
        name = at % len(prompts)
        try:
            if what == "a" and name not in admitted:
                admitted[name] = manager.admit(name, prompts[name]).cached_tokens
            elif what == "c":
                manager.commit(name, manager.request(name).tokens)
            elif what == "p":
                manager.preempt(name)
            elif what == "r":
                manager.resume(name)
            elif what == "t":
                manager.append([name], [at])
            elif what == "x":
                manager.release(name)
        except kvpool.errors.OutOfBlocksError:
            refusals += what in "ar"
        except (kvpool.errors.UnknownRequestError, kvpool.errors.RequestStateError):
            continue
        stats = manager.stats()
        assert stats.admissions == len(admitted)
        assert stats.prompt_tokens == sum(len(prompts[name]) for name in admitted)
        assert stats.hit_tokens == sum(admitted.values())
        assert stats.hit_tokens + stats.computed_tokens == stats.prompt_tokens
        assert stats.refusals == refusals
        assert stats.resumed_hit_tokens <= stats.resumed_tokens

"""Tests the example engine with the hybrid model. Its output has the same bits as that of a plain
forward pass, even if its blocks are evicted, moved or computed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

# Add the repository's root to the path, because the examples are not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.paged_engine import check as check_module
from examples.paged_engine import model as model_module
from examples.paged_engine.__main__ import main
from examples.paged_engine.check import Workload
from examples.paged_engine.display import limits
from examples.paged_engine.engine import Engine, EngineConfig, EngineStats
from examples.paged_engine.hybrid import Hybrid, HybridConfig, hybrid_weights
from examples.paged_engine.kv_cache import Group
from examples.paged_engine.model import Tile, batch_invariant
from examples.paged_engine.request import Hit, RequestTooLargeError
from examples.paged_engine.sampling import Sampling
from kvpool.errors import OutOfBlocksError
from tests.paged_engines import (
    assert_all_blocks_are_back,
    assert_paged_is_plain,
    assert_the_model_computes_what_a_textbook_says,
    one_thread,  # noqa: F401
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from examples.paged_engine.engine import TokenEvent
    from examples.paged_engine.kv_cache import Keep
    from examples.paged_engine.request import Request

#: A tiny model. Its windows have one and a half blocks and five blocks (of 8 tokens), and its state
#: fits into one of their pages.
TINY = HybridConfig(
    vocab_size=272,
    hidden_size=32,
    intermediate_size=48,
    num_layers=4,
    num_heads=4,
    head_dim=8,
    max_positions=256,
    end_tokens=(256,),
    kinds=("state", 12, "full", 40),
    state_key=8,
    state_value=8,
    conv_width=3,
)
ROOMY = EngineConfig(blocks=400, block_size=8, host_blocks=200, watermark=0.0, keep=16, poison=True)
FULL, NARROW, WIDE, STATE = range(4)


@pytest.fixture(scope="module")
def model() -> Hybrid:
    hybrid = Hybrid(TINY, hybrid_weights(TINY, seed=1))
    hybrid.choose_tile()
    return hybrid


def tokens(count: int, seed: int = 0) -> list[int]:
    made: list[int] = torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return made


def prompts() -> list[list[int]]:
    """Returns prompts that share prefixes of several lengths. Two of the prompts occur twice."""
    shared = tokens(56)
    made = [shared[: 36 + 4 * number] + tokens(6 + number, seed=number + 1) for number in range(5)]
    return [*made, made[1], made[3] + [1, 2, 3]]


@pytest.fixture(scope="module")
def plain(model: Hybrid) -> Any:
    """Computes logits in one forward pass over a whole sequence, without a cache or blocks."""
    known: dict[tuple[int, ...], Tensor] = {}

    def logits(sequence: list[int]) -> Tensor:
        return known.setdefault(tuple(sequence), model.forward_plain(sequence))

    return logits


def check_bits(events: Iterable[TokenEvent], requests: list[Request], plain: Any) -> None:
    """Checks that the logits have the expected bits. Token ids follow from logits, so they are equal,
    too.
    """
    samples, asked = defaultdict(list), {request.number: request.prompt for request in requests}
    for event in events:
        samples[event.request, event.sample].append(event)
    assert set(samples) == {(r.number, sample) for r in requests for sample in range(r.sampling.n)}
    for (request, _), own in samples.items():
        prompt = asked[request]
        expected = plain([*prompt, *(event.token for event in own[:-1])])[len(prompt) - 1 :]
        assert torch.equal(torch.stack([event.logits for event in own]), expected)


def run(
    model: Hybrid, plain: Any, n: int = 2, max_tokens: int = 7, **settings: Any
) -> tuple[EngineStats, list[Request]]:
    """Runs the prompts, and compares every row of logits. The last prompts arrive while the first ones
    are running.
    """
    with Engine(model, dataclasses.replace(ROOMY, **settings)) as engine:
        first, last = prompts()[:4], prompts()[4:]
        requests = [
            engine.submit(prompt, Sampling(n, max_tokens, seed=seed)) for seed, prompt in enumerate(first)
        ]
        events = [event for _ in range(9) for event in engine.step()]
        requests += [
            engine.submit(prompt, Sampling(n, max_tokens, seed=9 + seed)) for seed, prompt in enumerate(last)
        ]
        events += engine.run()
        assert_all_blocks_are_back(engine)
        check_bits(events, requests, plain)
        return engine.stats(), requests


def test_the_model_computes_what_a_textbook_says(model: Hybrid) -> None:
    assert_the_model_computes_what_a_textbook_says(model)


def test_layers_that_keep_the_same_are_a_group() -> None:
    kinds: tuple[Any, ...] = ("state", 32, 32, "full", "state", "full")
    config = dataclasses.replace(TINY, num_layers=6, kinds=kinds)
    hybrid = Hybrid(config, hybrid_weights(config))
    state = config.state_numbers
    assert hybrid.groups == [Group((3, 5)), Group((1, 2), window=32), Group((0, 4), state=state)]
    assert [group.name for group in hybrid.groups] == ["full attention", "window of 32", "state"]


@pytest.mark.parametrize("block_size", [7, 8, 100])
def test_paged_is_plain_to_the_bit_however_it_is_chunked(model: Hybrid, block_size: int) -> None:
    assert_paged_is_plain(model, block_size)


def test_a_recurrence_that_minds_the_place_of_a_row_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = Hybrid(TINY, hybrid_weights(TINY))
    read_out = Hybrid._read_out

    def placed(self: Hybrid, convolved: Tensor, matrices: Tensor, gates: Tensor) -> Tensor:
        return read_out(self, convolved, matrices, gates) * (1 + torch.arange(len(gates))[:, None] * 1e-6)

    monkeypatch.setattr(Hybrid, "_read_out", placed)
    assert not batch_invariant(hybrid, 8)
    assert batch_invariant(hybrid, 1)


def test_a_state_that_no_page_holds_is_refused(model: Hybrid) -> None:
    with pytest.raises(
        ValueError, match="224 numbers does not fit a page of 192, of 6 tokens: blocks need 7 tokens"
    ):
        Engine(model, dataclasses.replace(ROOMY, block_size=6))


@pytest.mark.parametrize(
    ("keep", "token_budget"),
    [("all", 5), ("all", 256), ("junctions", 24), ("junctions", 256), (16, 5), (64, 24)],
)
def test_hits_and_chunks_change_nothing(model: Hybrid, plain: Any, keep: Any, token_budget: int) -> None:
    stats, requests = run(model, plain, keep=keep, token_budget=token_budget)
    assert stats.steps * token_budget >= stats.prefill_tokens + stats.decoded_tokens
    assert stats.hit_tokens > 0
    assert stats.checkpoints > 0
    assert stats.cow_copies > 0
    assert stats.prefill_tokens + stats.saved_tokens == stats.prompt_tokens
    assert max(request.hit.cached for request in requests if request.hit) >= 40


def test_without_a_cache_nothing_is_hit_or_kept(model: Hybrid, plain: Any) -> None:
    stats, _ = run(model, plain, prefix_caching=False, token_budget=24)
    assert (stats.saved_tokens, stats.checkpoints) == (0, 0)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("preempt", ["swap", "recompute"])
def test_preemption_changes_nothing(model: Hybrid, plain: Any, preempt: str, prefix_caching: bool) -> None:
    settings: dict[str, Any] = {
        "blocks": 34,
        "preempt": preempt,
        "prefix_caching": prefix_caching,
        "token_budget": 24,
    }
    stats, _ = run(model, plain, n=3, **settings)
    assert (stats.swapped_out if preempt == "swap" else stats.recomputes) > 10
    assert stats.swapped_out == stats.swapped_in
    assert (stats.evicted > 0) == prefix_caching


def test_a_small_host_swaps_some_and_recomputes_others(model: Hybrid, plain: Any) -> None:
    stats, _ = run(model, plain, n=3, blocks=34, host_blocks=16, token_budget=24)
    assert min(stats.swapped_out, stats.recomputes) > 0


def test_a_pool_that_just_holds_one_sequence_is_enough(model: Hybrid, plain: Any) -> None:
    chunk, size = 16, ROOMY.block_size
    for length in range(41, 64, 7):
        prompt, most = tokens(length, seed=length), 12
        blocks = sum(group.most_blocks(length + most - 1, size, chunk) for group in model.groups)
        settings = dataclasses.replace(
            ROOMY, blocks=blocks, token_budget=chunk, preempt="recompute", host_blocks=0
        )
        too_small, words = (
            dataclasses.replace(settings, blocks=blocks - 1),
            f"{blocks} blocks: the pool has {blocks - 1}",
        )
        with Engine(model, too_small) as engine, pytest.raises(RequestTooLargeError, match=words):
            engine.submit(prompt, Sampling(max_tokens=most))
        with Engine(model, settings) as engine:
            requests = [engine.submit(prompt, Sampling(n=2, max_tokens=most, seed=seed)) for seed in range(2)]
            check_bits(engine.run(), requests, plain)
            assert_all_blocks_are_back(engine)


def test_a_sample_that_gets_no_block_for_its_state_is_computed_again(
    model: Hybrid, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    with Engine(model, ROOMY) as engine:
        fork = engine.manager.fork

        class Manager:
            """A manager that refuses every fork, as if it had no block for a second sample."""

            def __getattr__(self, name: str) -> Any:
                return getattr(engine.manager, name)

            def __contains__(self, key: str) -> bool:
                return key in engine.manager

            def fork(self, parent: str, child: str) -> None:
                if child.endswith(".1"):
                    refused.append(child)
                    raise OutOfBlocksError("no block for a state")
                fork(parent, child)

        monkeypatch.setattr(engine.scheduler, "_manager", Manager())
        requests = [engine.submit(prompt, Sampling(n=3, max_tokens=5, seed=3)) for prompt in prompts()[:2]]
        # Each sample has only one token, so it finishes at once.
        requests.append(engine.submit(tokens(20), Sampling(n=2, max_tokens=1)))
        check_bits(engine.run(), requests, plain)
        assert_all_blocks_are_back(engine)
    assert sorted(refused) == ["0.1", "1.1", "2.1"]


@pytest.mark.parametrize("when", [1, 2, 4, 7])
def test_an_abort_returns_all_blocks(model: Hybrid, plain: Any, when: int) -> None:
    with Engine(model, dataclasses.replace(ROOMY, blocks=40, token_budget=24)) as engine:
        requests = [engine.submit(prompt, Sampling(n=2, max_tokens=6, seed=1)) for prompt in prompts()[:4]]
        for _ in range(when):
            engine.step()
        for request in requests[::2]:
            engine.abort(request)
        events = list(engine.run())
        assert {event.request for event in events} <= {1, 3}
        assert_all_blocks_are_back(engine)
        again = [engine.submit(prompt, Sampling(n=2, max_tokens=6, seed=1)) for prompt in prompts()[:4]]
        renumbered = [
            dataclasses.replace(event, request=event.request - len(requests)) for event in engine.run()
        ]
        check_bits(
            renumbered, [dataclasses.replace(r, number=number) for number, r in enumerate(again)], plain
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_loads_change_nothing(model: Hybrid, plain: Any, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=random))

    keeps: list[Keep] = ["all", "junctions", 8, 16, 24, 64]
    config = dataclasses.replace(
        ROOMY,
        blocks=draw(26, 60),
        block_size=[8, 8, 9, 16][draw(0, 3)],
        host_blocks=[0, 12, 60][draw(0, 2)],
        token_budget=[1, 5, 16, 24, 40][draw(0, 4)],
        keep=keeps[draw(0, 5)],
        prefix_caching=draw(0, 9) > 0,
        watermark=draw(0, 1) * 0.1,
    )
    shared = tokens(60, seed=draw(0, 3))
    with Engine(model, config) as engine:
        requests: list[Request] = []
        events: list[TokenEvent] = []
        aborted = set()
        for _ in range(30):
            match draw(0, 3):
                case 0:
                    prompt = shared[: draw(0, 60)] + tokens(draw(1, 12), seed=draw(0, 3))
                    sampling = Sampling(n=draw(1, 4), max_tokens=draw(1, 9), seed=draw(0, 99))
                    with contextlib.suppress(RequestTooLargeError):
                        requests.append(engine.submit(prompt, sampling))
                case 1 if requests and draw(0, 3) == 0:
                    victim = requests[draw(0, len(requests) - 1)]
                    aborted.add(victim.number)
                    engine.abort(victim)
                case 2 if draw(0, 3) == 0:
                    engine.manager.evict(draw(0, 9))
                case _:
                    events += engine.step()
        events += engine.run()
        assert_all_blocks_are_back(engine)
    whole = [request for request in requests if request.number not in aborted]
    check_bits([event for event in events if event.request not in aborted], whole, plain)


def in_turn(engine: Engine, plain: Any, *sequences: list[int]) -> list[Hit]:
    """Runs the prompts one after another, and compares every row of logits."""
    hits = []
    for prompt in sequences:
        request = engine.submit(prompt, Sampling(max_tokens=3))
        events = [dataclasses.replace(event, request=0) for event in engine.run()]
        check_bits(events, [dataclasses.replace(request, number=0)], plain)
        assert request.hit is not None
        hits.append(request.hit)
    return hits


def test_a_hit_ends_where_a_state_was_kept(model: Hybrid, plain: Any) -> None:
    prompt = tokens(100)
    with Engine(model, dataclasses.replace(ROOMY, keep=32)) as engine:
        hits = in_turn(
            engine, plain, prompt, prompt[:60] + tokens(9), prompt, prompt[:60] + tokens(8, seed=1)
        )
        names = [group.name for group in model.groups]
    # These are the ends of the hits. The first prompt has none. The others end at a multiple of 32, at
    # the end of the prompt, and where the second prompt diverged, whose state was kept there.
    assert [hit.cached for hit in hits] == [0, 32, 96, 56]
    assert limits(hits[0], names) == limits(hits[2], names) == limits(hits[3], names) == ""
    # For hits of 32, 64 and 96 tokens, the wider window needs every block of the hit.
    assert limits(hits[1], names) == (
        "; window of 12 and state had no more: full attention 56, window of 12 32, window of 40 56, state 32"
    )


@pytest.mark.parametrize("group", [NARROW, WIDE])
def test_a_hit_ends_before_evicted_blocks_of_a_window(model: Hybrid, plain: Any, group: int) -> None:
    prompt = tokens(100)
    with Engine(model, dataclasses.replace(ROOMY, keep="all", token_budget=100)) as engine:
        request = engine.submit(prompt, Sampling(max_tokens=3))
        while not engine.step():
            pass
        # The test drops the last full block of the prompt, which hits of longer prompts need, too. A partial
        # block with 4 tokens follows it.
        lost = engine.manager.block_ids("0.0", group=group)[-2:-1]
        list(engine.run())
        assert engine.manager.drop_cached(lost) > 0
        (hit,) = in_turn(engine, plain, [*prompt, 5])
        assert request.hit == Hit(0, [0, 0, 0, 0])
        # A window of any length needs the lost block for a hit after it. So all hits end before this
        # block.
        assert hit.cached == 88
        assert hit.reach == [88 if number == group else 96 for number in range(4)]


def test_the_words_for_a_hit() -> None:
    names = ["full", "window", "state"]
    assert limits(Hit(64, [64, 64, 64]), names) == ""
    assert limits(Hit(32, [64, 64, 32]), names) == "; state had no more: full 64, window 64, state 32"
    assert limits(Hit(0, [64, 32, 48]), names) == (
        "; no more is cached in all groups at once: full 64, window 32, state 48"
    )


def test_a_window_that_reads_a_token_too_many_shows(model: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    visible = model_module.visible

    def further(tile: Tile, group: Group) -> dict[int, Tensor]:
        wider = group if group.window != 12 else dataclasses.replace(group, window=21)
        return visible(tile, wider)

    monkeypatch.setattr(model_module, "visible", further)
    with Engine(model, ROOMY) as engine:
        engine.submit(tokens(60), Sampling(max_tokens=8))
        with pytest.raises(AssertionError, match="never written"):
            list(engine.run())


@pytest.mark.parametrize("lost", ["forks", "hits"])
def test_a_lost_copy_of_a_state_shows(model: Hybrid, lost: str) -> None:
    with Engine(model, ROOMY) as engine:
        engine.submit(tokens(48), Sampling(max_tokens=2))
        list(engine.run())
        engine.scheduler._executor = Dropping(engine)  # type: ignore[assignment]
        prompt = [*tokens(48), 1] if lost == "hits" else tokens(30, seed=1)
        engine.submit(prompt, Sampling(n=2, max_tokens=4, seed=5))
        with pytest.raises(AssertionError, match="never written"):
            list(engine.run())


class Dropping:
    """A defective executor, which accepts plans of copies but copies nothing."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, swaps: Iterable[int] = ()) -> None:
        assert not list(swaps)
        self.engine.manager.take_plan()

    def poll(self) -> list[Any]:
        return []

    wait = poll


def test_a_new_state_that_is_not_zero_shows(model: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = Hybrid._mix

    def unaware(self: Hybrid, number: int, layer: Any, x: Tensor, tile: Tile, *rest: Any) -> Tensor:
        """Uses the content of the state's block even at position 0, where the state must be zero."""
        started = tile if number != 0 else dataclasses.replace(tile, positions=tile.positions.clamp(min=1))
        return mix(self, number, layer, x, started, *rest)

    monkeypatch.setattr(Hybrid, "_mix", unaware)
    with Engine(model, ROOMY) as engine:
        engine.submit(tokens(4), Sampling(max_tokens=2))
        with pytest.raises(AssertionError, match="never written"):
            list(engine.run())


def test_prompts_on_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Hybrid
) -> None:
    small = dataclasses.replace(TINY, vocab_size=96, end_tokens=(95,), kinds=HybridConfig().kinds)
    monkeypatch.setattr("examples.paged_engine.__main__.HybridConfig", lambda: small)
    monkeypatch.setattr(Hybrid, "choose_tile", lambda self: setattr(self, "tile", model.tile))
    shared = "You are a patient assistant who answers every question in one very short sentence. "
    prompts = [f"{shared}Why is the sky blue?", f"{shared}Who was it, and when?"]
    arguments = ["--model", "hybrid", "--in-turn", "--max-tokens", "2", *prompts]
    assert main(arguments) == 0
    lines = capsys.readouterr().out
    assert "  0 of 103 tokens cached\n" in lines
    assert "  64 of 104 tokens cached; state had no more: full attention 80, " in lines
    assert main([*arguments, "--keep", "all", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [hit["cached"] for hit in report["hits"]] == [0, 80]
    for wrong in ("some", "0"):
        assert main([*arguments, "--keep", wrong]) == 2
        assert "--keep" in capsys.readouterr().err
    assert main([*arguments, "--block-size", "4"]) == 2
    assert "does not fit a page" in capsys.readouterr().err


def test_the_check_knows_what_a_hybrid_must_show(model: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    # `make engine-check` runs all modes with the larger default model.
    some = [mode for mode in check_module._MODES if mode.name in ("uncached", "small chunks")]
    monkeypatch.setattr(check_module, "_MODES", some)
    report = check_module.check(model, Workload.make(TINY.vocab_size, prompts=12, n=2, max_tokens=4))
    assert report.problems == []
    modes = {outcome.mode: outcome for outcome in report.outcomes}
    assert list(modes) == ["uncached", "small chunks", "junctions", "plain forward"]
    stats = modes["junctions"].stats
    assert stats is not None
    assert min(stats.checkpoints, stats.unserved_tokens) > 0

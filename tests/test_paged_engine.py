"""Tests the example engine: its check of equal bits, its guarantees about blocks, and its command line."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from safetensors.torch import save_file

# Add the repository's root to the path, because the examples are not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.paged_engine import check
from examples.paged_engine.__main__ import main
from examples.paged_engine.check import Workload
from examples.paged_engine.checkpoint import (
    CheckpointError,
    ModelConfig,
    Weights,
    load_checkpoint,
    random_weights,
)
from examples.paged_engine.engine import Engine, EngineConfig, TokenEvent
from examples.paged_engine.model import TILES, Llama, batch_invariant
from examples.paged_engine.request import Request, RequestTooLargeError
from examples.paged_engine.sampling import Sampling, draw
from kvpool.transfer import FinishedSwap
from tests.paged_engines import (
    assert_all_blocks_are_back,
    assert_paged_is_plain,
    assert_the_model_computes_what_a_textbook_says,
    one_thread,  # noqa: F401
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    import kvpool

TINY = ModelConfig(
    vocab_size=272,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    head_dim=8,
    max_positions=256,
    end_tokens=(256,),
)
#: A pool that is too small for the prompts below, whose sequences have up to 5 blocks of 8 tokens.
TIGHT = EngineConfig(blocks=12, block_size=8, host_blocks=64, watermark=0.0, poison=True)
ROOMY = dataclasses.replace(TIGHT, blocks=500)
Outputs = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="module")
def model() -> Llama:
    llama = Llama(TINY, random_weights(TINY, seed=1))
    llama.choose_tile()
    return llama


def prompts(count: int = 6, length: int = 21) -> list[list[int]]:
    random = torch.Generator().manual_seed(5)
    return [torch.randint(256, (length + number,), generator=random).tolist() for number in range(count)]


def submit_all(engine: Engine, n: int = 2, max_tokens: int = 10, temperature: float = 1.0) -> list[Request]:
    return [
        engine.submit(prompt, Sampling(n, max_tokens, temperature, seed))
        for seed, prompt in enumerate(prompts())
    ]


def collect(events: Iterable[TokenEvent]) -> tuple[Outputs, dict[tuple[int, int, int], bytes]]:
    outputs: Outputs = defaultdict(list)
    logits = {}
    for event in events:
        outputs[event.request, event.sample].append(event.token)
        logits[event.request, event.sample, event.position] = event.logits.numpy().tobytes()
    return dict(outputs), logits


@pytest.fixture
def _small_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the command line use a smaller model by default. `make engine-check` runs the usual default
    model.
    """
    small = dataclasses.replace(TINY, vocab_size=96, end_tokens=(95,), max_positions=2048)
    monkeypatch.setattr("examples.paged_engine.__main__.ModelConfig", lambda: small)


@pytest.mark.usefixtures("_small_default")
def test_the_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--check-prompts", "12", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["problems"] == []
    modes = {mode["mode"]: mode for mode in report["modes"]}
    assert len(modes) == 8
    assert all(mode["identical"] for mode in modes.values())
    rows = {mode["logits_rows"] for mode in modes.values()}
    assert len(rows) == 1
    assert rows.pop() > 12 * 4 * 6
    assert modes["cached"]["saved_tokens"] > 0
    assert modes["swap"]["swapped_out"] > 0
    assert modes["recompute"]["recomputes"] > 0
    assert modes["recompute uncached"]["prefill_tokens"] > modes["uncached"]["prefill_tokens"]


@pytest.mark.usefixtures("_small_default")
def test_the_check_finds_a_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Engine.step

    def scribbling(engine: Engine) -> list[TokenEvent]:
        """Changes one value in the KV of a running sequence by a thousandth, once."""
        if engine.config.preempt == "recompute" and engine.stats().steps == 3:
            block = engine.scheduler.running[0].tables[0][0]
            engine.kv.pages[0][1, block, 0, 0, 0] += 0.001
        return step(engine)

    monkeypatch.setattr(Engine, "step", scribbling)
    # Run only the first mode, which is the reference, and two others. The test above runs all modes.
    modes = {mode.name: mode for mode in check._MODES}
    monkeypatch.setattr(check, "_MODES", [modes[name] for name in ("uncached", "swap", "recompute")])
    assert main(["--check", "--check-prompts", "12"]) == 1
    lines = capsys.readouterr().out.splitlines()
    differing = {line.split("  ")[0] for line in lines if line.rstrip().endswith(" no")}
    assert differing == {"recompute"}
    assert any(re.match(r"recompute: request \d+, sample \d, position \d+: logits ", line) for line in lines)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_the_model_computes_what_a_textbook_says(model: Llama) -> None:
    assert_the_model_computes_what_a_textbook_says(model)


@pytest.mark.parametrize("block_size", [1, 5, 16, 100])
def test_paged_is_plain_to_the_bit_however_it_is_chunked(model: Llama, block_size: int) -> None:
    assert_paged_is_plain(model, block_size)


def test_kernels_that_mind_the_place_of_a_row_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = Llama(TINY, random_weights(TINY))
    assert batch_invariant(llama, TILES[-1])
    norm = Llama._norm

    def placed(self: Llama, x: Tensor, weight: Tensor) -> Tensor:
        return norm(self, x, weight) * (1 + torch.arange(len(x))[:, None] * 1e-6)

    monkeypatch.setattr(Llama, "_norm", placed)
    assert not llama.choose_tile()
    assert llama.tile == TILES[-1] == 1


def test_greedy_samples_are_alike_and_repeat(model: Llama) -> None:
    results = []
    for _ in range(2):
        with Engine(model, TIGHT) as engine:
            submit_all(engine, n=3, temperature=0.0)
            results.append(collect(engine.run()))
    assert results[0] == results[1]
    outputs, _ = results[0]
    for request in range(len(prompts())):
        assert outputs[request, 0] == outputs[request, 1] == outputs[request, 2]


def test_the_first_sample_is_the_same_however_many_there_are(model: Llama) -> None:
    results = []
    for n in (1, 4):
        with Engine(model, ROOMY) as engine:
            submit_all(engine, n=n)
            results.append(collect(engine.run())[0])
    alone, together = results
    assert alone == {key: tokens for key, tokens in together.items() if key[1] == 0}
    assert len({tuple(tokens) for tokens in together.values()}) > len(alone)


def test_tokens_stream_in_order_and_samples_side_by_side(model: Llama) -> None:
    with Engine(model, TIGHT) as engine:
        requests = submit_all(engine, n=2)
        events = list(engine.run())
    by_sample = defaultdict(list)
    for event in events:
        by_sample[event.request, event.sample].append(event)
    assert set(by_sample) == {(request.number, sample) for request in requests for sample in range(2)}
    for (request, _), own in by_sample.items():
        start = len(requests[request].prompt)
        assert [event.position for event in own] == list(range(start, start + len(own)))
        assert [event.finished is not None for event in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].finished == ("end" if own[-1].token in TINY.end_tokens else "length")
    # The second request starts while the first one is still running. The engine samples one token of each of
    # a request's samples per step, so the samples take turns.
    first_of = {key: events.index(own[0]) for key, own in by_sample.items()}
    last_of = {key: events.index(own[-1]) for key, own in by_sample.items()}
    assert first_of[0, 1] < last_of[0, 0]
    assert first_of[1, 0] < last_of[0, 1]
    # The first sample of the first request gets its first token before all others.
    assert sorted(first_of, key=first_of.__getitem__)[0] == (0, 0)


@pytest.mark.parametrize(("length", "copies"), [(21, 3), (24, 0)])
def test_all_but_the_last_sample_copy_a_shared_block(model: Llama, length: int, copies: int) -> None:
    with Engine(model, ROOMY) as engine:
        engine.submit(list(range(length)), Sampling(n=4, max_tokens=4, seed=3))
        outputs, _ = collect(engine.run())
        assert all(len(tokens) > 1 for tokens in outputs.values())
        assert engine.stats().cow_copies == copies


def test_a_prompt_is_computed_once(model: Llama) -> None:
    with Engine(model, ROOMY) as engine:
        for _ in range(2):
            engine.submit(list(range(40)), Sampling(n=4, max_tokens=2))
            assert len(collect(engine.run())[0]) == 4
        stats = engine.stats()
    # When the prompt is repeated, all its blocks but the last are hits. The last token is always
    # computed.
    assert (stats.prompt_tokens, stats.hit_tokens, stats.prefill_tokens) == (80, 32, 48)
    assert stats.hit_rate == 0.4


def states(engine: Engine, request: Request) -> set[str]:
    """Returns the manager's states of a request's samples."""
    found = set()
    for sequence in request.sequences:
        if sequence.key not in engine.manager:
            found.add("new")
            continue
        info = engine.manager.request(sequence.key)
        if info.state == "moving":
            found.add("moving out" if info.tier == 0 else "moving in")
        else:
            found.add("prefilling" if info.state == "running" and sequence.left > 1 else info.state)
    return found


@pytest.mark.parametrize(
    "state", ["new", "prefilling", "running", "preempted", "moving out", "swapped", "moving in"]
)
def test_an_abort_returns_all_blocks(model: Llama, state: str) -> None:
    preempt: Literal["swap", "recompute"] = "recompute" if state == "preempted" else "swap"
    config = dataclasses.replace(TIGHT, preempt=preempt, token_budget=16)
    with Engine(model, config) as engine:
        submit_all(engine)
        expected, _ = collect(engine.run())
        assert_all_blocks_are_back(engine)
    with Engine(model, config) as engine:
        requests = submit_all(engine)
        events: list[TokenEvent] = []
        while not (victims := [request for request in requests if state in states(engine, request)]):
            assert engine.scheduler.busy, f"no sequence was ever {state}"
            events += engine.step()
        victim = victims[-1]
        engine.abort(victim)
        assert victim.sequences == []
        engine.manager.diagnose.check_invariants()
        before = len(events)
        events += engine.run()
        assert all(event.request != victim.number for event in events[before:])
        assert_all_blocks_are_back(engine)
    outputs, _ = collect(events)
    others = {key for key in expected if key[0] != victim.number}
    assert {key: outputs[key] for key in others} == {key: expected[key] for key in others}


def test_an_abort_of_all_that_runs(model: Llama) -> None:
    with Engine(model, TIGHT) as engine:
        requests = submit_all(engine)
        for _ in range(6):
            engine.step()
        for request in requests:
            engine.abort(request)
            engine.abort(request)  # a second abort is valid
        assert list(engine.run()) == []
        assert not engine.scheduler.busy
        assert_all_blocks_are_back(engine)


class FailingExecutor:
    """A defective executor, which copies nothing, so that every swap fails."""

    def __init__(self, manager: kvpool.CacheManager, *_: object) -> None:
        self.manager = manager
        self.begun: list[int] = []

    def run(self, swaps: Iterable[int] = ()) -> None:
        self.manager.take_plan()
        self.begun += swaps

    def poll(self) -> list[FinishedSwap]:
        failed, self.begun = self.begun, []
        for swap in failed:
            self.manager.swaps.abort(swap)
        return [FinishedSwap(swap, {}, RuntimeError("no copy")) for swap in failed]

    wait = poll


def test_a_swap_that_fails_becomes_a_recompute(model: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(model, ROOMY) as engine:
        submit_all(engine, n=1)
        expected = collect(engine.run())
    monkeypatch.setattr("examples.paged_engine.engine.PlanExecutor", FailingExecutor)
    with Engine(model, TIGHT) as engine:
        submit_all(engine, n=1)
        assert collect(engine.run()) == expected
        assert engine.stats().recomputes > 0
        assert engine.stats().swapped_out == 0
        assert_all_blocks_are_back(engine)


def test_what_can_never_fit_is_refused_up_front(model: Llama) -> None:
    with Engine(model, TIGHT) as engine:
        room = 12 * 8
        with pytest.raises(RequestTooLargeError, match="13 blocks: the pool has 12"):
            engine.submit([1] * 60, Sampling(max_tokens=room - 60 + 2))
        with pytest.raises(RequestTooLargeError, match="256 positions"):
            engine.submit([1] * 250, Sampling(max_tokens=8))
        for prompt, words in (([], "empty"), ([1, 272], "vocabulary"), ([-1], "vocabulary")):
            with pytest.raises(ValueError, match=words):
                engine.submit(prompt, Sampling())
        assert not engine.scheduler.busy
        # A request of exactly the largest accepted size runs, together with others.
        engine.submit([1] * 60, Sampling(n=2, max_tokens=room - 60 + 1, temperature=0.0))
        submit_all(engine)
        outputs, _ = collect(engine.run())
        assert len(outputs[0, 0]) == room - 60 + 1
        assert_all_blocks_are_back(engine)


def test_sampling_settings() -> None:
    refused: list[dict[str, Any]] = [
        {"n": 0},
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
    ]
    for settings in refused:
        with pytest.raises(ValueError, match="must be at least"):
            Sampling(**settings)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    counts = torch.zeros(4)
    for position in range(2000):
        counts[draw(logits, Sampling(temperature=0.5), sample=1, position=position)] += 1
    expected = torch.softmax(logits / 0.5, dim=0)
    assert counts[3] == 0
    torch.testing.assert_close(counts / 2000, expected, atol=0.03, rtol=0)


def save_checkpoint(directory: Path, config: ModelConfig, weights: Weights, **changes: Any) -> None:
    queries, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not changes.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = weights.head
    for number, layer in enumerate(weights.layers):
        at = f"model.layers.{number}"
        names = [f"{at}.self_attn.{name}_proj.weight" for name in "qkv"]
        tensors |= dict(zip(names, layer.qkv.tensor_split([queries, queries + kv]), strict=True))
        names = [f"{at}.mlp.{name}_proj.weight" for name in ("gate", "up")]
        tensors |= dict(zip(names, layer.gate_up.chunk(2), strict=True))
        tensors[f"{at}.self_attn.o_proj.weight"] = layer.output
        tensors[f"{at}.mlp.down_proj.weight"] = layer.down
        tensors[f"{at}.input_layernorm.weight"] = layer.attention_norm
        tensors[f"{at}.post_attention_layernorm.weight"] = layer.mlp_norm
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    names = sorted(tensors)
    for part, own in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: tensors[name] for name in own}, directory / f"model-0000{part}-of-00002.safetensors")
    settings: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_positions,
        "eos_token_id": list(config.end_tokens),
    }
    (directory / "config.json").write_text(json.dumps(settings | changes))


def test_a_checkpoint_is_loaded_as_it_was_saved(model: Llama, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, TINY, model.weights)
    config, weights, tokenizer = load_checkpoint(tmp_path)
    assert config == TINY
    loaded = Llama(config, weights)
    tokens = tokenizer.encode("Grüße")
    assert tokenizer.decode([*tokens, 256]) == "Grüße"
    assert torch.equal(loaded.forward_plain(tokens), model.forward_plain(tokens))


def test_a_tied_checkpoint_in_bfloat16(model: Llama, tmp_path: Path) -> None:
    weights = model.weights
    half = [
        dataclasses.replace(
            layer, **{name: getattr(layer, name).bfloat16() for name in ("qkv", "output", "down")}
        )
        for layer in weights.layers
    ]
    save_checkpoint(tmp_path, TINY, dataclasses.replace(weights, layers=half), tie_word_embeddings=True)
    _, loaded, _ = load_checkpoint(tmp_path)
    assert torch.equal(loaded.head, weights.embedding)
    assert loaded.layers[0].qkv.dtype == torch.float32
    assert torch.equal(loaded.layers[0].qkv, weights.layers[0].qkv.bfloat16().float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, 'model_type is "gpt2"; supported: "llama" or "mistral"'),
        ({"model_type": None}, "model_type is null"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"sliding_window": 4096}, "sliding_window is 4096; supported: none"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": 64}, r"is of shape \(272, 32\): config.json says \(272, 64\)"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2"),
        ({"tie_word_embeddings": True}, None),
    ],
)
def test_an_unsupported_checkpoint_is_refused(
    model: Llama, tmp_path: Path, change: dict[str, Any], words: str | None
) -> None:
    save_checkpoint(tmp_path, TINY, model.weights)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if words is None:
        load_checkpoint(tmp_path)
        return
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


def test_a_broken_checkpoint_is_refused(model: Llama, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, TINY, model.weights)
    config = (tmp_path / "config.json").read_text()
    for text in ("{", "[]", "{}", config.replace('"vocab_size"', '"vocabulary"')):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(config)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"nothing of that kind")
    with pytest.raises(CheckpointError, match="safetensors"):
        load_checkpoint(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no "):
        load_checkpoint(tmp_path)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_prompts_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Llama
) -> None:
    save_checkpoint(tmp_path, TINY, model.weights)
    arguments = [
        "one two three four",
        "one two three five",
        "--n",
        "3",
        "--max-tokens",
        "9",
        "--block-size",
        "4",
    ]
    small = [*arguments, "--blocks", "8", "--model", str(tmp_path)]
    swapped = json_of(capsys, *small)
    computed_again = json_of(capsys, *small, "--preempt", "recompute")
    assert swapped["samples"] == computed_again["samples"]
    assert swapped["stats"]["swapped_out"] > 0
    assert computed_again["stats"]["recomputes"] > 0
    assert [(sample["request"], sample["sample"]) for sample in swapped["samples"]] == [
        (request, sample) for request in range(2) for sample in range(3)
    ]
    assert json_of(capsys, *small, "--seed", "7")["samples"] != swapped["samples"]
    # Without --json, each prompt is printed with its samples below it, one line each.
    assert main(small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one two three four"
    assert lines[1] == "  0 of 18 tokens cached"
    assert [line[:5] for line in lines[2:5]] == ["  0.0", "  0.1", "  0.2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give either prompts or --check"),
        (["--check", "prompt"], 2, "give either prompts or --check"),
        (["prompt", "--n", "0"], 2, "--n"),
        (["prompt", "--preempt", "maybe"], 2, "--preempt"),
        (["prompt", "--device", "abacus"], 2, "--device"),
        ([""], 2, "error: the prompt is empty"),
        (["prompt", "--blocks", "2"], 2, "hint: raise --blocks"),
        (["prompt", "--model", "/nowhere"], 1, "error: /nowhere/config.json: No such file or directory"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert "--check" in out


def test_the_workload_is_the_same_every_time() -> None:
    one, other = (Workload.make(272, prompts=20) for _ in range(2))
    assert one == other
    assert one.prompts[15] == one.prompts[7]
    assert one.prompts[0][:80] == one.prompts[4][:80]
    assert one.num_tokens == 20 * 4 * 12

"""Checks which stored pages SGLang finds after a restart. ``make sglang-hicache-check`` runs it in
SGLang's environment.

- SGLang starts twice over one store, with a change between the starts. If the change affects KV, the
  second start misses; otherwise it finds the same pages.

- Every setting of SGLang's server is either part of the name of stored pages, or is listed as unrelated
  with a reason.

- The name for each common model's configuration is the same at each start.

- SGLang's own classes reset the prefix cache and update weights. Afterwards the store starts empty,
  unless ``on_reset`` is ``keep``.

- Pages of draft models for EAGLE, EAGLE3 and STANDALONE are found, as with SGLang's file back end.

Prints a line for each check. Exit code 0: no difference. 1: a difference.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import huggingface_hub.constants
import transformers
from sglang.srt import runtime_context
from sglang.srt.arg_groups.arg_utils import record_fields
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.server_args import ServerArgs

from kvpool.integrations.canonical import Canonical
from kvpool.integrations.sglang import unrelated
from kvpool.integrations.sglang.engine import Engine, _model_config
from kvpool.integrations.sglang.settings import Settings
from tools.sglang.changes import CHANGES, Place, draft_of
from tools.sglang.hicache import PAGE, attach, config, content, expect, fill, indices, key, mha
from tools.sglang.settings import RELATED, page

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = 20
#: Names of model configurations in transformers, and the architectures of SGLang that read them.
KINDS: Final = {
    "Qwen3Config": "Qwen3ForCausalLM",
    "Qwen3MoeConfig": "Qwen3MoeForCausalLM",
    "Qwen3NextConfig": "Qwen3NextForCausalLM",
    "Qwen3VLConfig": "Qwen3VLForConditionalGeneration",
    "DeepseekV3Config": "DeepseekV3ForCausalLM",
    "MixtralConfig": "MixtralForCausalLM",
    "Gemma3Config": "Gemma3ForConditionalGeneration",
    "Llama4Config": "Llama4ForConditionalGeneration",
    "GptOssConfig": "GptOssForCausalLM",
    "Glm4MoeConfig": "Glm4MoeForCausalLM",
    "Phi3Config": "Phi3ForCausalLM",
    "FalconH1Config": "FalconH1ForCausalLM",
}
KEYS: Final = [key(number) for number in range(PAGES)]


def publish(place: Place, **settings: Any) -> Any:
    """Makes the configuration of an SGLang server the current one, with all settings resolved as in
    SGLang. Returns it.
    """
    given: dict[str, Any] = {
        "model_path": str(place.model),
        "device": "cpu",
        "page_size": PAGE,
        "enable_hierarchical_cache": True,
        "hicache_storage_backend": "dynamic",
        **settings,
    }
    server = ServerArgs(**given)
    server.resolve_once()
    runtime_context.publish(server, role="scheduler")
    return server


@contextlib.contextmanager
def environment(changed: dict[str, str]) -> Iterator[None]:
    kept = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def start(place: Place, pool: Any, **settings: Any) -> Any:
    publish(place, **settings)
    return attach(place.store, pool, interface_v1=1, weights=None)


def two_starts(root: Path) -> None:
    """Starts twice. Checks that the second start finds either every page of the first with equal bytes,
    or no page.
    """
    pool = mha("page_first")
    for number, change in enumerate(CHANGES):
        place = Place(root / str(number))
        first, second = change.first(place), change.second(place)
        for one in range(PAGES):
            fill(pool, one * PAGE, one)
            fill(pool, (one + PAGES) * PAGE, -one - 1)
        with environment(first.pop("env", {})):
            backend = start(place, pool, **first)
            expect(
                backend.batch_set_v1(KEYS, indices(range(PAGES))), [True] * PAGES, f"{change.what}: stored"
            )
            expect(backend.batch_exists(KEYS), PAGES, f"{change.what}: found by the process that stored them")
            backend.close()
        change.alter(place)
        with environment(second.pop("env", {})):
            backend = start(place, pool, **second)
            expect(backend.batch_exists(KEYS), PAGES if change.hit else 0, f"{change.what}: pages found")
            loaded = backend.batch_get_v1(KEYS, indices(range(PAGES, 2 * PAGES)))
            expect(loaded, [change.hit] * PAGES, f"{change.what}: pages loaded")
            backend.close()
        same = [content(pool, one * PAGE) == content(pool, (one + PAGES) * PAGE) for one in range(PAGES)]
        expect(same, [change.hit] * PAGES, f"{change.what}: bytes")
        shutil.rmtree(root / str(number))
    hits = sum(change.hit for change in CHANGES)
    print(f"two starts over one store: {hits} changes find {PAGES} pages, {len(CHANGES) - hits} find none")


def every_setting(root: Path) -> None:
    """Checks that each setting of the installed SGLang is documented, and is either part of the name of
    stored pages or listed as unrelated.
    """
    place = Place(root)
    server = publish(place)
    names = [field.name for field in record_fields(ServerArgs)]
    expect(
        sorted(unrelated.SETTINGS.keys() | RELATED.keys()),
        sorted(names),
        "settings of ServerArgs in the tables",
    )
    expect(sorted(unrelated.SETTINGS.keys() & RELATED.keys()), [], "settings in both tables")
    known = vars(ModelConfig(str(place.model)))
    expect([name for name in unrelated.MODEL_CONFIG if name not in known], [], "attributes of ModelConfig")
    written = (ROOT / "design" / "sglang-settings.md").read_text(encoding="utf-8")
    expect(written == page(), True, "design/sglang-settings.md is what tools.sglang.settings writes")
    settings, resolved = Settings(capacity_bytes=1, root_dir="x", weights="1"), server.resolved_dict()

    def facts(**changed: Any) -> Any:
        record = types.SimpleNamespace(resolved_dict=lambda: {**resolved, **changed})
        kept = runtime_context.get_server_args
        runtime_context.get_server_args = lambda: record
        try:
            return Engine.found(settings, config(root)).facts
        finally:
            runtime_context.get_server_args = kept

    plain = facts()
    expect(facts() == plain, True, "two starts with the same settings")
    for name in [*names, "of_a_later_version"]:
        if name != "lora_paths":  # named by content instead
            expect(
                facts(**{name: "other"}) != plain, name not in unrelated.SETTINGS, f"{name} is in the name"
            )
    for value in (object(), lambda: None):
        expect(
            facts(of_a_later_version=value) != facts(of_a_later_version=value),
            True,
            "a value of an unknown type",
        )
    print(f"settings: {len(RELATED)} are part of the name, {len(unrelated.SETTINGS)} are listed as unrelated")


def model_configurations(root: Path) -> None:
    """Checks that every part of the configurations of common models can be written as the same text at
    each start. Otherwise the name of pages would change, and every start would be cold.
    """
    kept = runtime_context.process_model_config
    for kind, architecture in KINDS.items():
        configuration = getattr(transformers, kind)()
        configuration.architectures = [architecture]
        configuration.save_pretrained(root / kind)
        texts = []
        for _ in range(2):
            model = ModelConfig(str(root / kind))
            runtime_context.process_model_config = lambda model=model: model
            written = Canonical()
            texts.append(_model_config(written))
            expect(written.unknown, [], f"{architecture}: values without a canonical text")
        expect(texts[0], texts[1], f"{architecture}: configuration of two starts")
    runtime_context.process_model_config = kept
    print(f"model configurations: {len(KINDS)} kinds of models have the same name at each start")


def update_weights() -> None:
    """Calls SGLang's function that updates weights. The update fails here because there is no model."""
    with contextlib.suppress(AttributeError):
        WeightUpdater.update_weights_from_disk(types.SimpleNamespace(), "/model", "auto")


def resets(root: Path) -> None:
    """Checks that resets and weight updates of SGLang make the store start empty, unless ``on_reset``
    is ``keep``.
    """
    place, pool = Place(root), mha("page_first")
    group = HostPoolGroup(
        [PoolEntry(PoolName.KV, pool, None, lambda layer: layer, is_primary_index_anchor=True)]
    )
    for on_reset, left in (("renew", 0), ("keep", PAGES)):
        publish(place)
        for what, reset in (
            ("reset of the prefix cache", group.clear),
            ("update of the weights without a flush", update_weights),
            (
                "another weight version",
                lambda: runtime_context.get_context().override(
                    "scheduler.weight_version", weight_version="2"
                ),
            ),
        ):
            publish(place)
            backend = attach(place.store, pool, interface_v1=1, weights=None, on_reset=on_reset)
            backend.batch_set_v1(KEYS, indices(range(PAGES)))
            reset()
            expect(backend.batch_exists(KEYS), left, f"{what}, on_reset {on_reset}: pages found")
            backend.batch_set_v1(KEYS[:1], indices(range(1)))
            backend.close()
            publish(place)
            backend = attach(place.store, pool, interface_v1=1, weights=None, on_reset=on_reset)
            expect(
                backend.batch_exists(KEYS), left, f"{what}, on_reset {on_reset}: pages found after a restart"
            )
            backend.clear()
            backend.close()
    print(
        "resets of the prefix cache and updates of the weights renew what is stored, unless on_reset is keep"
    )


def drafts(root: Path) -> None:
    """Registers a draft model's host pool after the other pools, as SGLang does. Checks that the
    draft's pages are found.
    """
    for algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
        place = Place(root / algorithm)
        publish(place, **draft_of(place, speculative_algorithm=algorithm))
        pool, draft = mha("page_first"), mha("page_first")
        for one in range(PAGES):
            fill(pool, one * PAGE, one)
            fill(draft, one * PAGE, 100 + one)
        found = {}
        for name, restart in (("kvpool", False), ("kvpool", True), ("file", False)):
            if name == "kvpool":
                backend = StorageBackendFactory.create_backend(
                    "dynamic", config(place.store, weights=None), pool
                )
            else:
                backend = HiCacheFile(config(root), file_path=str(place.store / "file"))
            mine = types.SimpleNamespace(
                mem_pool_host=HostPoolGroup(
                    [PoolEntry(PoolName.KV, pool, None, lambda layer: layer, is_primary_index_anchor=True)]
                ),
                enable_storage=True,
                storage_backend=backend,
                extra_host_mem_release_queues={},
            )
            backend.register_mem_pool_host(pool)
            backend.register_mem_host_pool_v2(pool, PoolName.KV)
            backend.on_host_pools_registered()
            late = PoolEntry(PoolName.DRAFT, draft, None, lambda layer: layer)
            HybridCacheController.register_host_pool_entry(mine, late)
            both = [
                PoolTransfer(one, indices(range(PAGES)), keys=KEYS) for one in (PoolName.KV, PoolName.DRAFT)
            ]
            if not restart:
                stored = backend.batch_set_v2(both)
                expect(set(map(all, stored.values())), {True}, f"{algorithm}, {name}: stored")
            asked = [PoolTransfer(PoolName.DRAFT)]
            found[name, restart] = backend.batch_exists_v2(KEYS, asked).kv_hit_pages
            into = indices(range(PAGES, 2 * PAGES))
            for one in range(PAGES, 2 * PAGES):
                fill(pool, one * PAGE, -one)
                fill(draft, one * PAGE, -one)
            loaded = backend.batch_get_v2(
                [PoolTransfer(one, into, keys=KEYS) for one in (PoolName.KV, PoolName.DRAFT)]
            )
            expect(set(map(all, loaded.values())), {True}, f"{algorithm}, {name}: loaded")
            for one in range(PAGES):
                for host in (pool, draft):
                    same = content(host, one * PAGE) == content(host, (one + PAGES) * PAGE)
                    expect(same, True, f"{algorithm}, {name}: bytes of page {one}")
            if name == "kvpool":
                backend.close()
        expect(set(found.values()), {PAGES}, f"{algorithm}: pages found {found}")
    print(f"drafts of EAGLE, EAGLE3 and STANDALONE: {PAGES} of {PAGES} pages, as with SGLang's file back end")


def main() -> int:
    logging.getLogger("sglang").setLevel(logging.ERROR)  # SGLang logs lines at each start
    with tempfile.TemporaryDirectory(prefix="kvpool-sglang-") as folder:
        root = Path(folder)
        os.environ["KVPOOL_CONTENT_CACHE"] = str(root / "content.json")
        shutil.copytree(Place(root / "seed").hub, huggingface_hub.constants.HF_HUB_CACHE, dirs_exist_ok=True)
        two_starts(root / "starts")
        every_setting(root / "settings")
        model_configurations(root / "kinds")
        resets(root / "resets")
        drafts(root / "drafts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

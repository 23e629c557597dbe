"""Lists the kind of each argument of kvpool's calls. Most kinds apply to all arguments of a name,
others to one call.
"""

from __future__ import annotations

from typing import Final

import kvpool
from tests import kinds
from tests.kinds import Kind, choice, numbers, ranges, requests, sequence

TOKENS = numbers("token", kinds.TOKEN, kinds.TOKEN_TYPE)
COUNTS = numbers("count", kinds.VALUE, kinds.TYPE)
POLICIES = kvpool.policies.eviction_policies()
METHODS = choice("auto", "kernel", "batch", "staged", "memcpy", "cpu")

_NAMES: Final[dict[Kind, str]] = {
    kinds.count: """after_step allocate_tokens block_bytes block_tokens blocks bytes_per_token capacity_blocks
        capacity_bytes ceiling chunk computed_tokens database depth digest_every dst end epoch
        event_capacity external_tokens floor frame_bytes free_floor_bytes group host_blocks length limit
        loaded_tokens lookahead margin max_blocks max_payload max_running max_sampled_blocks max_tenants
        most most_blocks n num_tokens output_tokens pin_budget port position priority protocol records
        registration_limit requests reserve ring_bytes sample_every scanners scrub_blocks
        sessions_at_once sink size slot slot_bytes slots src staging_bytes start start_token step step_tokens
        swap tenant threads ticket tier until window""",
    kinds.size: "num_blocks block_size",
    kinds.seconds: "now ttl timeout time_to_live watermark step_ms rate_per_s",
    kinds.real: """accuracy agent_fraction chat_fraction event_gap_s fraction gib prefill_tokens_per_s share
        time window_s""",
    kinds.flag: """by_group check_prefixes commit demoted digest direct encoder fences hugepages idle
        io_uring keep_tokens metrics no_cache partial_hits payloads pinned refresh reuse sort tail_first
        tls""",
    kinds.own_block: "block_id",
    kinds.held_blocks: "block_ids",
    TOKENS: "tokens token_ids prompt",
    COUNTS: "offsets computed covered",
    kinds.request: "request_id parent_id",
    kinds.new_request: "child_id",
    requests(kinds.request): "request_ids parent_ids",
    requests(kinds.new_request): "child_ids",
    kinds.out: "out",
    kinds.text: """adapter adapter_path finish_reason hash_algorithm host kv_dtype model password salt scales
        seed text tls_server_name user username weights""",
    kinds.instance: """extra retention advisor explain journal chain link found parent like plan layers
        heads run""",
    kinds.key: "key",
    kinds.path: "path folder unix_socket tls_ca tls_certificate calibration",
    kinds.media: "multimodal",
    sequence(): "groups transfers candidates tenants digests stores tiers layouts",
    sequence(kinds.place): "scratch",
    sequence(kinds.policy): "policies",
    ranges("failed"): "failed",
    ranges("retention", kvpool.Retention()): "ranges",
    choice("sha256", "blake3"): "algorithm",
    choice("none", "fingerprint", "tokens"): "verify",
    choice("keep", "drop-on-release"): "duplicates",
    choice(*POLICIES): "eviction policy",
    choice("normal", "demote"): "then",
    choice("full", "sliding"): "kind",
    choice("lookup", "engine"): "mode",
    METHODS: "method",
    choice("pool", "stream"): "form",
    choice("mooncake"): "format",
    kinds.stream: "stream after",
    kinds.device: "device",
    kinds.store_block: "block",
    kinds.store_bytes: "data",
    kinds.regions: "regions",
    kinds.keep: "keep",
    kinds.node: "numa_node",
    kinds.anything: "keep_alive trace mapping hash_seed memory payload",
}
KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
#: Kinds of arguments of a single call, with the reason why they differ from other arguments of that
#: name.
ALONE: Final[dict[str, Kind]] = {
    **dict.fromkeys(("CacheManager.admit.request_id", "Step.admit.request_id"), kinds.new_request),
    **dict.fromkeys(
        ("CacheManager.admit.retention", "Step.admit.retention"), ranges("retention", kvpool.Retention())
    ),
    **dict.fromkeys(
        (f"CacheManager.{name}.request_id" for name in ("commit", "release", "truncate")), kinds.one_request
    ),
    "CacheManager.fork.parent_id": kinds.one_request,
    "CacheManager.append.request_ids": kinds.one_request,
    **dict.fromkeys(
        (f"CacheManager.{name} (batch).request_id" for name in ("commit", "release", "truncate")),
        kinds.batch_of(kinds.request),
    ),
    "CacheManager.fork (batch).parent_id": kinds.batch_of(kinds.request),
    "CacheManager.fork (batch).child_id": requests(kinds.new_request),
    "CacheManager.append (batch).request_ids": kinds.batch_of(kinds.request),
    # The argument `commit` has no effect in a call for a single request, and `lookahead` and `multimodal`
    # have none in a call for a batch.
    "CacheManager.append.commit": kinds.flag,
    "CacheManager.append (batch).lookahead": kinds.integer,
    "CacheManager.append (batch).multimodal": kinds.anything,
    **dict.fromkeys(
        ("CacheManager.commit (batch).computed_tokens", "CacheManager.truncate (batch).num_tokens"), COUNTS
    ),
    "CacheManager.release (batch).finish_reason": sequence(kinds.text),
    "CacheManager.prepare.tokens": kinds.prompt_or_request(TOKENS),
    **dict.fromkeys(
        (f"ManagerRetention.{name}.target" for name in ("retain", "end_of_life")),
        kinds.prompt_or_request(TOKENS),
    ),
    "ManagerRetention.retain.extra": kinds.anything,
    "ManagerRetention.end_of_life.extra": kinds.anything,
    "CacheManager.append_ragged.out": kinds.rows_out,
    "CacheManager.release (batch).output_tokens": sequence(kinds.count),
    # Any block may be read. The blocks of a match are only checked when they are acquired.
    **dict.fromkeys(("BlockPool.ref_count.block_id", "BlockPool.state.block_id"), kinds.one_block),
    **dict.fromkeys(
        ("BlockPool.ref_count (batch).block_id", "BlockPool.state (batch).block_id"), kinds.batch_of_blocks
    ),
    "BlockPool.ref_count.out": kinds.anything,
    "BlockPool.acquire.block_ids": kinds.held_blocks,
    **dict.fromkeys(
        ("Match.block_ids", "TieredPool.begin_swap.block_ids", "TieredPool.fit_swap.block_ids"),
        kinds.any_blocks,
    ),
    # A block that is absent is treated as already removed, so no id is wrong.
    **dict.fromkeys(("LruEvictor.remove.block_id", "PrefixIndex.remove.block_id"), kinds.block),
    **dict.fromkeys(("PoolDiagnose.copies.digest", "ChainLink.from_digest.digest"), kinds.digest),
    "BlockPool.set_payloads.payloads": sequence(kinds.payload),
    **dict.fromkeys(("CacheManager.resize.num_blocks", "BlockPool.resize.num_blocks"), kinds.count),
    **dict.fromkeys(("BlockStore.from_regions.num_blocks", "BlockStore.host.num_blocks"), kinds.count),
    "BlockStore.from_regions.regions": kinds.rows,
    "BlockStore.host.pinned": kinds.pinned,
    # A hasher raises another error for a wrong block size, and groups call the argument block_tokens.
    **dict.fromkeys(
        (
            f"{name}.block_size"
            for name in ("BlockHasher", "HashChain.from_digests", "GroupSpec", "Namespace", "Replay")
        ),
        kinds.count,
    ),
    **dict.fromkeys(("GroupSpec.window", "GroupSpec.chunk"), kinds.integer),
    "ExtraKeys.tenant": kinds.text,
    **dict.fromkeys(
        ("AdvisorConfig.seed", "Trace.generate.seed", "References.lru_with_hints.seed"), kinds.count
    ),
    "TieredPool.num_blocks": sequence(kinds.count),
    **dict.fromkeys(
        (f"TransferEngine.{name}" for name in ("copy.src", "copy.dst", "submit.src", "submit.dst")),
        kinds.instance,
    ),
    "References.blocks": choice("all", "full"),
    "HitCurve.worth.gib": sequence(kinds.amount),
    "Trace.parse.data": kinds.instance,
    "SharedFolder.group": kinds.flag,
    "Namespace.extra": kinds.instance,
    "Replay.watermark": kinds.real,
    "Replay.explain": kinds.flag,
}

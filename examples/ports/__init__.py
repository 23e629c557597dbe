"""Ports of the block managers of four engines to kvpool, and a scheduler written for kvpool.

``docs/porting.md`` lists the calls of these engines and of kvpool side by side.

Each module imitates one kind of block manager. It has the engine's calls twice: in plain Python, and
over kvpool. Both give the same answers. All code is written for this directory. ``python -m
examples.ports.sequence_manager`` runs a small workload, and so do the other modules.

- :mod:`~examples.ports.sequence_manager`: a manager over sequence objects, as in nano-vllm.
- :mod:`~examples.ports.ids_and_trie`: an allocator of ids and a trie of cached blocks, as in LMDeploy.
- :mod:`~examples.ports.radix_cache`: a radix tree, as in SGLang, over the same allocator. A match takes no
  references.
- :mod:`~examples.ports.index_only`: these two caches with the pool's batch calls, for an engine that owns
  the ids.
- :mod:`~examples.ports.block_space`: groups of sequences, copy-on-write and swap, as in vLLM v0.
- :mod:`~examples.ports.native`: a scheduler written on ``CacheManager``: chunked prefill and drafts,
  one call per step.
- :mod:`~examples.ports.in_flight`, :mod:`~examples.ports.disaggregated`, :mod:`~examples.ports.beams`:
  asynchronous scheduling, prefill and decode on two machines, beam search.
- :mod:`~examples.ports.memory`: KV memory that detects wrong content of blocks.
"""

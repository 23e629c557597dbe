"""Block managers of four engines and a scheduler of our own, on kvpool. ``docs/porting.md`` has the tables.

Each module is one shape of manager: what its engine calls, in plain Python and as a port with the same
answers. All are written for this directory. ``python -m examples.ports.sequence_manager`` runs a small
workload; so do the others.

- :mod:`~examples.ports.sequence_manager`: a manager over sequence objects, as in nano-vllm.
- :mod:`~examples.ports.ids_and_trie`: an allocator of ids and a trie of cached blocks, as in LMDeploy.
- :mod:`~examples.ports.radix_cache`: a tree whose matches hold nothing, as in SGLang; over the same
  allocator.
- :mod:`~examples.ports.index_only`: the same two with the pool's batch calls; ids are the engine's own.
- :mod:`~examples.ports.block_space`: groups of sequences, copy-on-write and swap, as in vLLM v0.
- :mod:`~examples.ports.native`: a scheduler written on ``CacheManager``: chunked prefill and drafts,
  one call per step.
- :mod:`~examples.ports.in_flight`, :mod:`~examples.ports.disaggregated`, :mod:`~examples.ports.beams`:
  asynchronous scheduling, prefill and decode on two machines, beam search.
- :mod:`~examples.ports.memory`: KV memory that finds every block that somebody else has written.
"""

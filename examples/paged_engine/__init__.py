"""A small inference engine on kvpool and torch.

It shows how to build a scheduler on :class:`kvpool.CacheManager`.

The engine has continuous batching, chunked prefill, prefix caching, parallel sampling with
copy-on-write, preemption by swap and by recompute, streaming and aborts. It runs a Llama-type model,
with random weights or a local checkpoint, and a hybrid of windows, a recurrent layer and full
attention. ``README.md`` describes the calls of a step in order.

- ``scheduler``, ``request``: the tokens that each step computes, and their blocks. The part that calls
  kvpool.
- ``engine``: joins model, memory and scheduler.
- ``kv_cache``: the tensors that block ids refer to.
- ``model``, ``hybrid``, ``checkpoint``, ``sampling``: the models, whose results do not depend on the
  batch.
- ``check``: checks that none of the above changes a bit of any result.
- ``display``: the output on the terminal.

``python -m examples.paged_engine --help`` runs it, from the repository's root.
"""

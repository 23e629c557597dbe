"""A small inference engine on kvpool and torch: how a scheduler is built on :class:`kvpool.CacheManager`.

Continuous batching, chunked prefill, prefix caching, parallel sampling with copy-on-write, preemption
by swap and by recompute, streaming and aborts, over a Llama-type model, with random weights or a local
checkpoint, and over a hybrid of windows, a recurrent layer and full attention. ``README.md`` says which
calls a step makes, in which order.

- ``scheduler``, ``request``: what each step computes, and with which blocks. The part that talks to kvpool.
- ``engine``: model, memory and scheduler, joined.
- ``kv_cache``: the tensors that block ids name.
- ``model``, ``hybrid``, ``checkpoint``, ``sampling``: the models, whose results do not depend on the batch.
- ``check``: shows that none of the above changes a bit of any result.
- ``display``: what people see of all that.

``python -m examples.paged_engine --help`` runs it, from the repository's root.
"""

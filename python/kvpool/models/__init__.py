"""KV-cache shapes of models: the bytes that a token, a state, a block and a request take.

Use it for sizing: "how many requests of 32,000 tokens of Gemma-3-27B fit into 60 GiB?". A model's shape
is a list of :class:`Layers`, one entry for each kind and amount of KV that layers keep: full attention
(including MLA), a sliding window, a chunk, or a recurrent state. :meth:`KvShape.groups` forms the
groups that share one pool of blocks of equal size, as vLLM does. The catalogue (:func:`kv_shape`) needs
no files and no network. :func:`read_config` reads the ``config.json`` of any model.

All sizes are bytes of the whole model, over all layers. With tensor parallelism, divide them by the
number of ranks. MLA latents are an exception: they are not split, so every rank holds all of them.

>>> llama = kv_shape("llama-3.1-8b")
>>> llama.bytes_per_token
131072
>>> llama.blocks_in(gib=60, block_size=16)
30720
>>> kv_shape("Llama-3.1-8B", dtype="fp8").bytes_per_token
65536

In Gemma 3, 5 of 6 layers have a sliding window. If all layers had full attention, 32,000 tokens would
take 15.1 GiB. The memory also depends on the chunk size of the prefill, because a window group also
holds the chunk that a step computes. Chunks of 2,048 tokens take less memory than the default of 8,192:

>>> gemma = kv_shape("Gemma-3-27B")
>>> groups = gemma.groups()
>>> [group.in_words() for group in groups.groups][:2], len(groups.groups)
(['full', 'sliding 1,024'], 7)
>>> round(gemma.bytes_per_token * 32_000 / 2**30, 2)
15.14
>>> [round(groups.request_bytes(32_000, chunk) / 2**30, 2) for chunk in (8192, 2048)]
[6.67, 3.85]
"""

from kvpool.models.catalogue import kv_shape, model_names, with_dtype
from kvpool.models.config import parse_config, read_config
from kvpool.models.dtypes import DTYPE_BYTES
from kvpool.models.groups import DEFAULT_CHUNK, KvGroup, KvGroups
from kvpool.models.layers import Kind, Layers
from kvpool.models.shape import KvShape

__all__ = [
    "DEFAULT_CHUNK",
    "DTYPE_BYTES",
    "Kind",
    "KvGroup",
    "KvGroups",
    "KvShape",
    "Layers",
    "kv_shape",
    "model_names",
    "parse_config",
    "read_config",
    "with_dtype",
]

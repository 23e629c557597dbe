"""Finds the family of a model's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvpool.errors import ModelConfigError
from kvpool.models.fields import words
from kvpool.models.table_attention import ATTENTION
from kvpool.models.table_states import STATES
from kvpool.models.table_windows import WINDOWS

if TYPE_CHECKING:
    from kvpool.models.families import Family
    from kvpool.models.fields import Fields

__all__ = ["FAMILIES", "family_of"]

FAMILIES: Final[tuple[Family, ...]] = (*ATTENTION, *WINDOWS, *STATES)

_ENCODERS: Final = words(
    "albert altclip bert camembert clip convbert data2vec-text deberta deberta-v2 distilbert "
    "electra ernie esm eurobert flaubert gte hubert ibert jina_embeddings_v3 layoutlm layoutlmv2 "
    "layoutlmv3 longformer luke megatron-bert mobilebert modernbert mpnet mra neobert new "
    "nomic_bert nystromformer qdqbert rembert roberta roberta-prelayernorm roc_bert roformer "
    "siglip siglip2 squeezebert vit dinov2 wav2vec2 wav2vec2-bert xlm xlm-roberta xlm-roberta-xl "
    "xmod yoso"
)
_ENCODER_DECODERS: Final = words(
    "bart bigbird_pegasus blenderbot blenderbot-small dia encoder-decoder florence2 fsmt led "
    "longt5 m2m_100 marian mbart moonshine mt5 musicgen mvp nemotron_parse nllb-moe pegasus "
    "pegasus_x plbart pix2struct prophetnet seamless_m4t seamless_m4t_v2 speech_to_text "
    "speech-encoder-decoder switch_transformers t5 t5gemma t5gemma2 udop umt5 "
    "vision-encoder-decoder whisper xlm-prophetnet"
)
#: Families that kvpool recognizes, but whose KV cache it cannot describe. Each has the reason.
_REFUSED: Final = {
    "deepseek_v4": "its attention keeps one entry for several tokens",
    "phi4flash": "half of its layers read the cache of one layer, and gated memory units keep states",
    "rwkv": "its states have no shape here",
    "xlstm": "its states have no shape here",
    "zamba": "its Mamba layers with several heads have no shape here",
    "gpt_neo": "its windows have no shape here",
}

#: Names of architectures are the name of the family and one of these endings. The longest match comes
#: first.
_ENDINGS: Final = (
    "forcausallm",
    "lmheadmodel",
    "forconditionalgeneration",
    "forsequenceclassification",
    "fortokenclassification",
    "forquestionanswering",
    "forprocessrewardmodel",
    "forrewardmodel",
    "model",
)


_UNKNOWN: Final = "a family that kvpool knows; docs/models.md lists them"


def _plain(name: str) -> str:
    """Return a name in lower case, without separators."""
    return name.lower().replace("_", "").replace("-", "")


def _architecture(name: str) -> str:
    plain = _plain(name)
    return next((plain.removesuffix(ending) for ending in _ENDINGS if plain.endswith(ending)), plain)


def _architectures() -> dict[str, str]:
    """Return the ``model_type`` for each name of an architecture.

    If a type ends in ``_text``, the ending is optional.
    """
    by_name = {_plain(kind): kind for family in FAMILIES for kind in family.types}
    return {_plain(kind.removesuffix("_text")): kind for kind in by_name.values()} | by_name


_BY_TYPE: Final = {kind: family for family in FAMILIES for kind in family.types}
_BY_ARCHITECTURE: Final = _architectures()
_PARAMS: Final = next(family for family in FAMILIES if not family.types)


def family_of(config: Fields, *, nested: bool = False) -> tuple[Family, str]:
    """Return the family of a configuration, and its ``model_type`` in lower case.

    Args:
        config: The configuration of a model that generates text.
        nested: Whether the configuration is inside another one. The outer model loads a nested part by
            its ``model_type`` alone, so an unknown architecture is then not an error.

    Raises:
        ModelConfigError: The family is unknown, keeps no KV, or has no shape here. The error names
            ``model_type``.
    """
    kind = config.text("model_type").lower()
    if kind in {"", "transformer"} and all(config.has(name) for name in ("dim", "n_layers", "n_heads")):
        return _PARAMS, kind
    if kind in _ENCODERS:
        raise config.refused("model_type", "a model that generates text: an encoder keeps no KV")
    if kind in _ENCODER_DECODERS:
        raise config.refused("model_type", "a model without an encoder: cross attention is not counted")
    if kind in _REFUSED:
        raise config.refused("model_type", f"a family with a shape in kvpool: {_REFUSED[kind]}")
    names = config.texts("architectures") if config.has("architectures") else []
    known = next((one for name in names if (one := _BY_ARCHITECTURE.get(_architecture(name)))), None)
    if kind not in _BY_TYPE and known is None:
        if not kind and not names:
            raise ModelConfigError("model_type is missing: it names the family of the model", "model_type")
        raise config.refused(
            "model_type" if kind else "architectures", _UNKNOWN, *([] if kind else names[:1])
        )
    if known is None and names and not nested:
        raise config.refused("architectures", _UNKNOWN, names[0])
    if known is not None and kind in _BY_TYPE and _BY_TYPE[kind] is not _BY_TYPE[known]:
        raise config.refused("architectures", f"of the family of model_type, {_BY_TYPE[kind].name}", names[0])
    if kind not in _BY_TYPE:
        kind = known or ""
    for name in ("use_bidirectional_attention", "is_causal"):
        value = config.raw(name)
        if value == "all" or value is (name == "use_bidirectional_attention"):
            raise config.refused(name, "absent: attention in both directions keeps no KV")
    return _BY_TYPE[kind], kind

"""Writes docs/sglang-settings.md: every setting of SGLang 0.5.23, and why it is part of the name of a page or not.

    python -m tools.sglang.settings > docs/sglang-settings.md

The settings that are not part of the name are in ``kvpool.integrations.sglang.unrelated``. ``RELATED`` has the others,
and only the page needs them. ``tools.sglang.identity`` compares both with SGLang.
"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Final

from kvpool.integrations.sglang import unrelated

__all__ = ["RELATED", "page"]


def _table(*rows: tuple[str, str]) -> MappingProxyType[str, str]:
    return MappingProxyType({name: reason for reason, names in rows for name in names.split()})


#: Settings that are part of the name, and why.
RELATED: Final = _table(
    (
        "which weights are served, and how they are loaded",
        """model_path revision load_format model_loader_extra_config custom_weight_loader weight_version
        trust_remote_code modelopt_quant modelopt_checkpoint_restore_path quantize_and_serve rl_quant_profile
        quantization quantization_param_path decrypted_config_file modelexpress_config weight_cache_mode
        checkpoint_engine_wait_weights_before_ready remote_instance_weight_loader_backend
        remote_instance_weight_loader_seed_instance_ip remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_start_seed_via_transfer_engine ple_offload_embedding kt_weight_path kt_method
        kt_num_gpu_experts kt_max_deferred_experts_per_token""",
    ),
    (
        "what the model computes",
        """json_model_override_args context_length is_embedding model_impl model_config_parser dllm_algorithm
        dllm_algorithm_config dllm_fdfo enable_mis enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
        enable_hisparse hisparse_config rl_on_policy_target enable_deterministic_inference forward_hooks
        debug_tensor_dump_input_file kv_canary kv_canary_real_data kv_canary_sweep_interval""",
    ),
    (
        "the type or the layout of what is cached",
        """dtype kv_cache_dtype page_size c128_page_size disable_hybrid_swa_memory prefill_only_disable_kv_cache
        enable_page_major_kv_layout enable_unified_memory mamba_ssm_dtype enable_mamba_cache_stochastic_rounding
        mamba_cache_philox_rounds mamba_radix_cache_strategy uses_mamba_radix_cache mamba_track_interval
        enable_int8_mamba_checkpoint enable_linear_replayssm enable_linear_replayssm_spec linear_replayssm_cache_len
        qsa_indexer_dtype prefill_kv_cache_dequant_dtype enable_lmcache enable_flexkv
        enable_unified_cache_external_linker""",
    ),
    (
        "which layers, heads, experts and tokens a rank computes",
        """tp_size pp_size dcp_size attn_dp_size attn_cp_size moe_dp_size dwdp_size ep_size enable_dp_attention
        enable_dp_lm_head enable_tp_lm_head_all_to_all enable_prefill_cp cp_strategy enable_dsa_cache_layer_split
        enable_cp_decode_attn_tp enable_cp_tp_group_sharing enable_kv_cache_sharding dcp_comm_backend
        dcp_replicate_q_proj enable_attn_tp_input_scattered enable_shared_experts_attn_tp shared_experts_tp_size
        enable_dense_mlp_attn_tp enable_layernorm_sp enable_megamoe_for_layernorm_sp disable_attn_tp_gather
        moe_dense_tp_size ep_num_redundant_experts ep_dispatch_algorithm init_expert_location elastic_ep_backend
        enable_elastic_expert_backup ep_join_mode ep_join_rank_offset elastic_ep_initial_size max_ep_size
        enable_waterfill enable_paged_experts paged_experts_num_resident""",
    ),
    (
        "which kernels compute, and with which precision",
        """device attention_backend decode_attention_backend prefill_attention_backend mm_attention_backend
        enable_lean_attention fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend dsa_prefill_backend
        dsa_decode_backend dsa_paged_mqa_logits_backend dsa_topk_backend dsa_triton_union enable_dsa_fused_indexer
        dsv4_prefill_backend dsv4_attn_backend disable_flashinfer_autotune flashinfer_autotune_skip_ops mamba_backend
        linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend
        triton_attention_reduce_in_fp32 triton_attention_num_kv_splits triton_attention_split_tile_size
        flashinfer_mla_disable_ragged enable_fused_qk_norm_rope enable_fused_moe_sum_all_reduce
        enable_deepseek_v4_fp4_indexer enable_torch_compile torch_compile_max_bs enable_tf32_matmul
        enable_amd_monokernel enable_nvidia_megakernel disable_chunked_prefix_cache moe_runner_backend
        moe_a2a_backend enable_w4a4_mxfp4_megamoe flashinfer_mxfp4_moe_precision deepep_mode deepep_v2_mode
        deepep_dispatcher_output_dtype deepep_config fuseep_mode flashinfer_a2a_dispatch_type
        disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion enforce_shared_experts_fusion
        enable_two_batch_overlap enable_single_batch_overlap tbo_token_distribution_threshold""",
    ),
    (
        "how sums over ranks are formed and rounded",
        """boundary_reduction disable_custom_all_reduce enable_mscclpp enable_torch_symm_mem enable_symm_mem
        enable_nccl_nvls enable_scattered_sconv enable_quant_communications enable_flashinfer_allreduce_fusion
        enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend enable_aiter_allreduce_fusion
        disable_aiter_allreduce_fusion_in_prefill disable_aiter_allreduce_fusion_in_decode""",
    ),
    (
        "the draft model, whose KV is stored beside the model's",
        """speculative_algorithm speculative_draft_model_path speculative_draft_model_revision
        speculative_draft_load_format speculative_draft_model_quantization
        _speculative_draft_quantization_explicitly_set decrypted_draft_config_file speculative_draft_kv_cache_dtype
        speculative_draft_attention_backend speculative_draft_window_size speculative_draft_sink_size
        speculative_attention_mode speculative_dsa_topk_backend speculative_moe_runner_backend
        speculative_moe_a2a_backend speculative_enable_w4a4_mxfp4_megamoe speculative_boundary_reduction
        speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens speculative_dflash_block_size
        speculative_dspark_block_size speculative_dspark_confidence_sts_path
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_domino_candidate_pool_size
        speculative_token_map speculative_adaptive speculative_adaptive_config enable_multi_layer_eagle
        decoupled_spec_role uno_lora_path aux_hidden_state_capture return_aux_hidden_state_layer_ids
        enable_return_aux_hidden_states""",
    ),
    (
        "how adapters are applied",
        """enable_lora max_lora_rank lora_target_modules lora_backend max_lora_chunk_size experts_shared_outer_loras
        lora_use_virtual_experts""",
    ),
    (
        "how images, audio and video become hidden states",
        """enable_multimodal mm_enable_dp_encoder mm_process_config trust_mm_content_hashes enable_mm_global_cache
        mm_global_cache_backend enable_prefix_mm_cache image_processor_backend disable_fast_image_processor
        enable_precise_embedding_interpolation encoder_only language_only language_model_only
        enable_adaptive_dispatch_to_encoder""",
    ),
    (
        "which part of the work this server does",
        "disaggregation_mode enable_pd_role_switch enable_pdmux pdmux_config_path sm_group_num",
    ),
)

_HEAD: Final = """# What names a page of SGLang

`make sglang-hicache-check` compares this page with SGLang 0.5.23, and `python -m tools.sglang.settings` writes it.
[kvpool beneath SGLang's HiCache](sglang.md#whose-bytes-they-are) says how the name is used.

A stored page is named by SGLang's whole configuration, except the settings that its bytes do not depend on. A setting
that a later SGLang adds is part of the name, so it is a cold start. A string that names a file counts by the file's
content.

These are part of the name besides the settings below:

- the version of SGLang;
- the commit or the content of the weights, and of the draft's weights;
- the content of each adapter of `--lora-paths`, by the id that SGLang gives it;
- the model's configuration after all overrides, except {model};
- environment variables that begin with `SGLANG_`, except those at the end of this page;
- the host pool: its kind, type, layout, strides, page size, layers and heads;
- the rank: its place in tensor, pipeline and context parallelism.

Python code can look up a reason:

```python
from kvpool.integrations.sglang.unrelated import SETTINGS

print(SETTINGS["schedule_policy"])
print("load_format" in SETTINGS)
```

```text
orders requests; the KV of a token does not depend on other requests
False
```
"""


def page() -> str:
    """Returns the text of the page."""
    rows = {name: (False, reason) for name, reason in unrelated.SETTINGS.items()}
    rows |= {name: (True, reason) for name, reason in RELATED.items()}
    model = ", ".join(f"`{name}`" for name in sorted(unrelated.MODEL_CONFIG))
    lines = [
        _HEAD.format(model=model),
        "## Settings of the server",
        "",
        "| setting | in the name | why |",
        "|---|---|---|",
        *(
            f"| `{name}` | {'yes' if inside else 'no'} | {reason} |"
            for name, (inside, reason) in sorted(rows.items(), key=lambda row: row[0].lstrip("_"))
        ),
        "",
        "## Environment variables that are not in the name",
        "",
        "| variable | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(unrelated.ENVIRONMENT.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

#!/usr/bin/env python3
"""Writes tiny random models of model families, two shapes each, and expected logits for them.

The first shapes of Mixtral and Qwen2-MoE are make_fixtures.py's.

The files are those of make_fixtures.py. What a family's tensors are called comes from transformers
itself, which saves a model under its published names; each tensor is then drawn by seed and name
alone and rounded to the stored type before anything is computed with it.
"""
import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import hf_reference
import make_fixtures
from make_fixtures import DTYPES, PROMPTS, SAFE_MARGIN, STEPS, tensor, write_json

# What both shapes of a family have, then each shape. Sizes are awkward on purpose.
SIZES = {
    "a": {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
          "num_hidden_layers": 3, "vocab_size": 97, "max_position_embeddings": 512,
          "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2},
    "b": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 1,
          "num_hidden_layers": 2, "vocab_size": 70, "max_position_embeddings": 256,
          "dtype": "float16", "bos_token_id": None, "eos_token_id": [3, 5]},
}
FAMILIES = {
    "mixtral": ("MixtralForCausalLM", {
        "b": {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24,
              "head_dim": 12, "tie_word_embeddings": True, "sliding_window": None,
              "rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.5}},
    }),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {
        "b": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 56,
              "shared_expert_intermediate_size": 24, "intermediate_size": 72,
              "num_hidden_layers": 4, "num_key_value_heads": 3, "decoder_sparse_step": 2,
              "mlp_only_layers": [], "norm_topk_prob": True, "qkv_bias": False,
              "tie_word_embeddings": True, "use_sliding_window": False,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "olmoe": ("OlmoeForCausalLM", {
        "a": {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24,
              "rope_theta": 10000.0, "norm_topk_prob": False, "num_key_value_heads": 4},
        "b": {"num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 56,
              "norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": 2,
              "rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.5}},
    }),
    "granitemoe": ("GraniteMoeForCausalLM", {
        "a": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24,
              "rope_theta": 10000.0, "embedding_multiplier": 3.5, "attention_multiplier": 0.4,
              "residual_multiplier": 0.6, "logits_scaling": 3.0, "tie_word_embeddings": False},
        "b": {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 56,
              "embedding_multiplier": 1.5, "attention_multiplier": 0.25, "attention_bias": True,
              "residual_multiplier": 0.3, "logits_scaling": 0.5, "tie_word_embeddings": True,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "glm4_moe": ("Glm4MoeForCausalLM", {
        "a": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "n_shared_experts": 1, "first_k_dense_replace": 1,
              "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
              "head_dim": 16, "partial_rotary_factor": 0.5, "rope_theta": 1000000.0,
              "attention_bias": True, "use_qk_norm": True},
        "b": {"n_routed_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
              "intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 0,
              "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": False,
              "head_dim": 12, "attention_bias": False, "use_qk_norm": False,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default",
                                  "partial_rotary_factor": 0.34}},
    }),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", {
        "a": {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
              "num_hidden_layers": 4, "moe_layer_end_index": 2, "moe_layer_interval": 1, "rope_theta": 500000.0,
              "use_bias": False, "tie_word_embeddings": True},
        "b": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 136,
              "intermediate_size": 24, "moe_num_shared_experts": 0, "moe_layer_start_index": 0,
              "num_hidden_layers": 4, "moe_layer_end_index": -1, "moe_layer_interval": 2, "tie_word_embeddings": False,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "minimax_m2": ("MiniMaxM2ForCausalLM", {
        "a": {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24,
              "head_dim": 16, "rotary_dim": 8, "rope_theta": 5000000.0},
        "b": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 56,
              "head_dim": 12, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {
        "a": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "n_shared_experts": 2, "first_k_dense_replace": 1,
              "n_group": 1, "topk_group": 1, "topk_method": "greedy", "norm_topk_prob": False,
              "routed_scaling_factor": 1.0, "q_lora_rank": None, "kv_lora_rank": 32,
              "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
              "num_key_value_heads": 4, "rope_theta": 10000.0,
              "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                               "mscale": 0.707, "mscale_all_dim": 0.5,
                               "original_max_position_embeddings": 128}},
        "b": {"n_routed_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
              "intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 0,
              "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
              "norm_topk_prob": False, "routed_scaling_factor": 16.0, "q_lora_rank": 20,
              "kv_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 28,
              "num_key_value_heads": 6,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {
        "a": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "n_shared_experts": 1, "first_k_dense_replace": 1,
              "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "norm_topk_prob": True,
              "scoring_func": "sigmoid", "routed_scaling_factor": 2.446, "q_lora_rank": None,
              "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
              "num_key_value_heads": 4, "rope_theta": 50000.0},
        "b": {"n_routed_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
              "intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 0,
              "n_group": 4, "topk_group": 2, "norm_topk_prob": False,
              "routed_scaling_factor": 1.5, "q_lora_rank": 20, "kv_lora_rank": 20,
              "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10,
              "num_key_value_heads": 6, "rope_interleave": True,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 40.0,
                                  "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                  "mscale_all_dim": 1.0,
                                  "original_max_position_embeddings": 64}},
    }),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", {
        "a": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "n_shared_experts": 1, "routed_scaling_factor": 1.8,
              "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "q_lora_rank": 24,
              "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
              "v_head_dim": 16, "num_key_value_heads": 4, "rope_theta": 1000000.0,
              "mlp_layer_types": ["dense", "sparse", "sparse"]},
        "b": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
              "intermediate_size": 24, "n_shared_experts": 2, "routed_scaling_factor": 1.0,
              "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "q_lora_rank": 20,
              "kv_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10,
              "num_key_value_heads": 6, "mlp_layer_types": ["sparse", "sparse"],
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "qwen3_next": ("Qwen3NextForCausalLM", {
        "a": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "shared_expert_intermediate_size": 56, "intermediate_size": 72, "head_dim": 16,
              "mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True,
              "partial_rotary_factor": 0.25, "rope_theta": 10000000.0,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
              "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
              "layer_types": ["linear_attention", "linear_attention", "full_attention"]},
        "b": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
              "shared_expert_intermediate_size": 24, "intermediate_size": 56, "head_dim": 12,
              "num_hidden_layers": 4, "mlp_only_layers": [1], "norm_topk_prob": False,
              "attention_bias": True, "full_attention_interval": 2,
              "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 10,
              "linear_value_head_dim": 6, "linear_conv_kernel_dim": 2,
              "tie_word_embeddings": True,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default",
                                  "partial_rotary_factor": 0.5}},
    }),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", {
        "a": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "shared_expert_intermediate_size": 56, "head_dim": 16,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
              "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
              "layer_types": ["linear_attention", "linear_attention", "full_attention"],
              "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default",
                                  "partial_rotary_factor": 0.25}},
        "b": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
              "shared_expert_intermediate_size": 24, "head_dim": 12, "attention_bias": True,
              "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 10,
              "linear_value_head_dim": 6, "linear_conv_kernel_dim": 3,
              "layer_types": ["full_attention", "linear_attention"],
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default",
                                  "partial_rotary_factor": 0.5}},
    }),
    "gpt_oss": ("GptOssForCausalLM", {
        "a": {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24,
              "head_dim": 16, "sliding_window": 8, "attention_bias": True, "swiglu_limit": 7.0,
              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
              "rope_theta": 150000.0,
              "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                               "beta_slow": 1.0, "truncate": False,
                               "original_max_position_embeddings": 64}},
        "b": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 35,
              "hidden_size": 42, "head_dim": 10, "sliding_window": 5, "attention_bias": False,
              "layer_types": ["full_attention", "sliding_attention"], "swiglu_limit": 0.75,
              "tie_word_embeddings": True,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
    "phimoe": ("PhimoeForCausalLM", {
        "a": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24,
              "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.3,
              "rope_theta": 10000.0, "sliding_window": 512, "original_max_position_embeddings": 64,
              "rope_scaling": {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3,
                               "original_max_position_embeddings": 64,
                               "short_factor": [1.0, 1.1, 1.5, 2.25, 3.5],
                               "long_factor": [1.0, 2.0, 4.5, 8.0, 16.0]}},
        # transformers takes the other magnitude of a longer text, but the short factors, so that
        # these are the same here.
        "b": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 56,
              "attention_bias": False, "lm_head_bias": False, "tie_word_embeddings": True,
              "sliding_window": 6, "original_max_position_embeddings": 4,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "longrope",
                                  "short_mscale": 0.8, "long_mscale": 1.4,
                                  "original_max_position_embeddings": 4,
                                  "short_factor": [1.0, 1.2, 3.0, 5.5],
                                  "long_factor": [1.0, 1.2, 3.0, 5.5]}},
    }),
    "gemma4_text": ("Gemma4ForCausalLM", {
        "a": {"num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24,
              "intermediate_size": 56, "enable_moe_block": True, "head_dim": 16,
              "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
              "sliding_window": 8, "hidden_size_per_layer_input": 0,
              "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
              "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
              "rope_parameters": {
                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                  "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0,
                                     "partial_rotary_factor": 0.25}}},
        "b": {"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 40,
              "intermediate_size": 24, "enable_moe_block": True, "head_dim": 12,
              "global_head_dim": 10, "num_key_value_heads": 2, "attention_bias": True,
              "sliding_window": 5, "hidden_size_per_layer_input": 0, "num_hidden_layers": 3,
              "layer_types": ["full_attention", "sliding_attention", "full_attention"],
              "use_bidirectional_attention": "vision", "tie_word_embeddings": False,
              "rope_parameters": {
                  "sliding_attention": {"rope_type": "linear", "rope_theta": 5000.0,
                                        "factor": 2.5},
                  "full_attention": {"rope_type": "default", "rope_theta": 20000.0}}},
    }),
    "lfm2_moe": ("Lfm2MoeForCausalLM", {
        "a": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
              "intermediate_size": 72, "num_dense_layers": 1, "conv_L_cache": 3, "norm_eps": 1e-5,
              "use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
              "layer_types": ["conv", "full_attention", "conv"], "rope_theta": 1000000.0,
              "tie_embedding": True},
        "b": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
              "intermediate_size": 24, "num_dense_layers": 0, "conv_L_cache": 2, "norm_eps": 1e-4,
              "use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5,
              "layer_types": ["full_attention", "conv"],
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    }),
}
SIGMOID = {"glm4_moe", "minimax_m2", "deepseek_v3", "glm4_moe_lite", "lfm2_moe"}
# Groups of experts are as good as their so many best ones.
GROUP_BEST = {"deepseek_v2": 1}


def config_of(family, shape):
    name, shapes = FAMILIES[family]
    cfg = {"architectures": [name], "model_type": family, "hidden_act": "silu",
           "tie_word_embeddings": False, **SIZES[shape], **shapes[shape]}
    return {key: cfg[key] for key in sorted(cfg)}


def draw(seed, name, shape, cfg):
    """Scales keep activations near 1 and routers decided; no norm or bias is trivial."""
    leaf = name.removesuffix(".weight")
    if len(shape) == 1 and name.endswith(("scale", "layer_scalar")):
        mean, std = 1.0, 0.25
    elif leaf.endswith("router.proj"):  # its inputs are divided by the root of their number
        mean, std = 0.0, 2.0
    elif leaf.endswith("norm") or "layernorm" in leaf:
        offset = cfg["model_type"].startswith("qwen3_") and "linear_attn" not in leaf
        mean, std = 0.0 if offset else 1.0, 0.25
    elif name.endswith(("e_score_correction_bias", "expert_bias")):
        mean, std = 0.0, 0.1
    elif leaf.endswith("sinks"):
        mean, std = 1.0, 1.0
    elif name.endswith("bias"):
        mean, std = 0.0, 0.5
    elif leaf.endswith("embed_tokens"):
        mean, std = 0.0, 0.3 if cfg["tie_word_embeddings"] else 1.0
    elif cfg["model_type"] == "gpt_oss" and len(shape) == 3:
        mean, std = 0.0, 1.3 / shape[1] ** 0.5
    elif leaf.endswith(("mlp.gate", "mlp.router", "moe.gate", "router.layer", "lm_head")):
        mean, std = 0.0, 2.0 / shape[-1] ** 0.5
    else:
        mean, std = 0.0, 1.3 / shape[-1] ** 0.5
    return tensor(seed, name, tuple(shape), mean, std)


def write_model(folder, cfg, seed):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", cfg)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(str(folder)))
    dtype = DTYPES[cfg.get("dtype") or cfg["torch_dtype"]]
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        names = load_file(Path(saved) / "model.safetensors")
    weights = {}
    for name, value in names.items():
        keep = torch.float32 if name.endswith(("e_score_correction_bias", "expert_bias")) else dtype
        weights[name] = draw(seed, name, value.shape, cfg).to(keep).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Margins:
    """How close the routers of one pass came to another choice: hooks see what they were given."""

    def __init__(self, model):
        self.config, self.seen, self.near, self.hooks = model.config, [], [], []
        for module in model.modules():
            if "Router" in type(module).__name__:
                self.hooks.append(module.register_forward_hook(self.keep))

    def keep(self, module, inputs, output):
        x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
        if hasattr(module, "proj"):
            x = module.norm(x).double() * module.scale.double() * module.scalar_root_size
            module = module.proj
        logits = x @ module.weight.double().T
        if isinstance(getattr(module, "bias", None), torch.Tensor):
            logits = logits + module.bias.double()
        sigmoid = self.config.model_type in SIGMOID
        scores = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, -1)
        bias = getattr(module, "e_score_correction_bias", None)
        if bias is None and hasattr(module, "moe_statics"):
            bias = module.moe_statics.e_score_correction_bias
        if bias is None and len(inputs) > 1:
            bias = inputs[1]
        scores = scores + (0 if bias is None else bias.reshape(1, -1).double())
        if self.config.model_type == "phimoe":
            self.near.append(self.of_mixer(logits.detach().numpy()))
        self.seen.append(scores.detach().numpy())

    def take(self):
        margin = np.ones(len(self.seen[0]))
        k = getattr(self.config, "num_experts_per_tok", None) or self.config.top_k_experts
        groups = getattr(self.config, "n_group", None) or 1
        if getattr(self.config, "topk_method", None) == "greedy":
            groups = 1
        for scores in self.seen:
            if groups > 1:
                margin = np.minimum(margin, self.of_groups(scores, groups))
            ranked = -np.sort(-scores, -1)
            if k < ranked.shape[-1]:
                margin = np.minimum(margin, ranked[:, k - 1] - ranked[:, k])
        for near in self.near:
            margin = np.minimum(margin, near)
        self.seen, self.near = [], []
        return margin

    def of_mixer(self, logits):
        """How close an output is to the bound below which it does not count, of either rank."""
        left, margin = logits.copy(), np.ones(len(logits))
        for _ in range(2):
            top = left.max(-1, keepdims=True)
            ratio = (top - logits) / np.maximum(np.abs(logits), top)
            margin = np.minimum(margin, np.abs(ratio - 2 * self.config.router_jitter_noise).min(-1))
            left[np.arange(len(left)), left.argmax(-1)] = -np.inf
        return margin

    def of_groups(self, scores, groups):
        """The margin between groups; scores of the others are put out of reach."""
        used = self.config.topk_group
        parts = scores.reshape(len(scores), groups, -1)
        best = GROUP_BEST.get(self.config.model_type, 2)
        values = -np.sort(-parts, -1)[..., :best].sum(-1)
        order = -np.sort(-values, -1)
        bar = order[:, used - 1]
        parts[values < bar[:, None]] = scores.min() - 1
        return bar - order[:, used] if used < groups else np.ones(len(scores))


def expect(model, margins, sequences):
    out = {"tokens": np.full((len(sequences), max(len(t) for _, t in sequences)), -1, np.int32),
           "lens": np.array([prompt for prompt, _ in sequences], np.int32)}
    logits, rows = [], []
    for i, (prompt, tokens) in enumerate(sequences):
        with torch.no_grad():
            got = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        out["tokens"][i, :len(tokens)] = tokens
        logits.append(got[prompt - 1:].astype(np.float32))
        rows.append(np.minimum.accumulate(margins.take())[prompt - 1:].astype(np.float32))
    return {**out, "logits": np.stack(logits), "margin": np.stack(rows)}


def batches_of(model, cfg, seed):
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    margins = Margins(model)
    return {batch: expect(model, margins,
                          [(n, rng.integers(0, cfg["vocab_size"], n + STEPS).tolist())
                           for n in lens])
            for batch, lens in PROMPTS.items()}


def make(out, family, shape, seed):
    cfg = config_of(family, shape)
    folder = out / f"{family}-{shape}"
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, cfg, seed)
        batches = batches_of(hf_reference.load(folder), cfg, seed)
        if make_fixtures.smallest_margin(batches) >= SAFE_MARGIN:
            break
        seed += 1
    make_fixtures.write_expect(folder / "expect", batches)
    double = batches_of(hf_reference.load(folder, torch.float64), cfg, seed)
    worst = max(hf_reference.relative_error(batches[b]["logits"], double[b]["logits"])
                for b in batches)
    used = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    logits = np.concatenate([v["logits"].ravel() for v in batches.values()])
    print(f"{folder.name} (seed {seed}, {used // 1024} KiB): logits std {logits.std():.2f} max "
          f"{np.abs(logits).max():.2f}, smallest margin "
          f"{make_fixtures.smallest_margin(batches):.1e}, float32 against float64 {worst:.1e}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python3 tools/hf/make_family_fixtures.py --out tests/data/models\n"
               "needs torch, transformers, safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model directories")
    parser.add_argument("--only", choices=sorted(FAMILIES), help="only this family")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try (default 1)")
    args = parser.parse_args()
    for family in [args.only] if args.only else FAMILIES:
        for shape in FAMILIES[family][1]:
            make(args.out, family, shape, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes a checkpoint of train.py as a Hugging Face model directory in BF16.

model.safetensors is a standard file in expert-major order: the header is padded with spaces so
that the data begins at a multiple of 4096 bytes, and gate, up and down of an expert follow one
another, so that each expert is one run of whole pages.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch

from tiny_moe import Config

PAGE = 4096
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
            "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def named_tensors(config, state):
    """(name, tensor) in file order: all experts, then everything else."""
    for i in range(config.layers):
        for e in range(config.experts):
            prefix = f"model.layers.{i}.mlp.experts.{e}"
            gate_up = state[f"layers.{i}.gate_up"][e]
            yield f"{prefix}.gate_proj.weight", gate_up[:config.inner]
            yield f"{prefix}.up_proj.weight", gate_up[config.inner:]
            yield f"{prefix}.down_proj.weight", state[f"layers.{i}.down"][e]
    yield "model.embed_tokens.weight", state["embed"]
    for i in range(config.layers):
        prefix, source = f"model.layers.{i}", f"layers.{i}"
        q_rows = config.heads * config.head_dim
        kv_rows = config.kv_heads * config.head_dim
        q, k, v = state[f"{source}.qkv"].split((q_rows, kv_rows, kv_rows))
        yield f"{prefix}.input_layernorm.weight", state[f"{source}.norm_attention.weight"]
        yield f"{prefix}.self_attn.q_proj.weight", q
        yield f"{prefix}.self_attn.k_proj.weight", k
        yield f"{prefix}.self_attn.v_proj.weight", v
        yield f"{prefix}.self_attn.o_proj.weight", state[f"{source}.out"]
        yield f"{prefix}.self_attn.q_norm.weight", state[f"{source}.norm_q.weight"]
        yield f"{prefix}.self_attn.k_norm.weight", state[f"{source}.norm_k.weight"]
        yield f"{prefix}.post_attention_layernorm.weight", state[f"{source}.norm_experts.weight"]
        yield f"{prefix}.mlp.gate.weight", state[f"{source}.router"]
    yield "model.norm.weight", state["norm.weight"]


def write_safetensors(path, tensors):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in tensors:
        blob = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(blobs)


def read_state(folder):
    """The inverse: the state dict of TinyMoe, in float32, from an exported directory."""
    from safetensors.torch import load_file

    config, raw = Config.from_dir(folder), load_file(Path(folder) / "model.safetensors")
    raw = {name.removeprefix("model."): tensor.float() for name, tensor in raw.items()}
    state = {"embed": raw["embed_tokens.weight"], "norm.weight": raw["norm.weight"]}
    for i in range(config.layers):
        prefix = f"layers.{i}"
        for mine, theirs in (("norm_attention", "input_layernorm"), ("norm_q", "self_attn.q_norm"),
                             ("norm_k", "self_attn.k_norm"),
                             ("norm_experts", "post_attention_layernorm")):
            state[f"{prefix}.{mine}.weight"] = raw[f"{prefix}.{theirs}.weight"]
        state[f"{prefix}.qkv"] = torch.cat([raw[f"{prefix}.self_attn.{x}_proj.weight"]
                                            for x in "qkv"])
        state[f"{prefix}.out"] = raw[f"{prefix}.self_attn.o_proj.weight"]
        state[f"{prefix}.router"] = raw[f"{prefix}.mlp.gate.weight"]
        experts = [f"{prefix}.mlp.experts.{e}" for e in range(config.experts)]
        state[f"{prefix}.gate_up"] = torch.stack([
            torch.cat((raw[f"{e}.gate_proj.weight"], raw[f"{e}.up_proj.weight"]))
            for e in experts])
        state[f"{prefix}.down"] = torch.stack([raw[f"{e}.down_proj.weight"] for e in experts])
    return config, state


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_configs(folder, config, ids):
    end, im_end = ids["<|endoftext|>"], ids["<|im_end|>"]
    write_json(folder / "config.json", {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "decoder_sparse_step": 1,
        "eos_token_id": im_end,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "initializer_range": 0.02,
        "intermediate_size": config.inner * config.top_k,
        "max_position_embeddings": config.max_position,
        "max_window_layers": config.layers,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": config.inner,
        "norm_topk_prob": True,
        "num_attention_heads": config.heads,
        "num_experts": config.experts,
        "num_experts_per_tok": config.top_k,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "output_router_logits": False,
        "rms_norm_eps": config.norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "router_aux_loss_coef": 0.01,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab,
    })
    write_json(folder / "generation_config.json", {
        "bos_token_id": end, "do_sample": True, "eos_token_id": [im_end, end],
        "pad_token_id": end, "temperature": 0.7, "top_k": 20, "top_p": 0.8})
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True} for token, i in ids.items()},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": config.max_position,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    })


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--checkpoint", type=Path, required=True)
    args.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    args.add_argument("--out", type=Path, required=True)
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = Config()
    checkpoint = torch.load(args.checkpoint, weights_only=True, map_location="cpu")
    write_safetensors(args.out / "model.safetensors", named_tensors(config, checkpoint["model"]))
    if args.tokenizer.resolve() != (args.out / "tokenizer.json").resolve():
        shutil.copyfile(args.tokenizer, args.out / "tokenizer.json")
    added = json.loads(args.tokenizer.read_text())["added_tokens"]
    write_configs(args.out, config, {token["content"]: token["id"] for token in added})
    print(f"{args.out}: step {checkpoint['step']}, {checkpoint['seen']} tokens, "
          f"{(args.out / 'model.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()

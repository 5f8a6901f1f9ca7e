"""A program with transformers: makes a small model, or runs one in every way it can compute experts.

usage: victim_transformers.py make FAMILY DIR [single]   FAMILY: qwen3_moe, gpt_oss, mixtral
       victim_transformers.py run DIR THREADS [write|fork]

`make` writes all experts of a layer as one tensor, as this library computes with them; `single`:
tensors for each expert, as most are published.
`run` prints JSON: for each implementation of the experts the SHA-256 of the logits of a prompt and
the tokens that follow it, and whether the experts lie in the file's mapping. `write` changes an
expert in place first, on its page of the mapping; `fork` computes in a child that was forked after
the first token.
"""
import hashlib
import json
import os
import sys

import torch
import transformers

SHAPE = dict(vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
             tie_word_embeddings=False, initializer_range=0.2)
FAMILIES = {
    "qwen3_moe": ("Qwen3Moe", dict(intermediate_size=256, moe_intermediate_size=192, num_experts=16,
                                   num_experts_per_tok=4, decoder_sparse_step=1, mlp_only_layers=[])),
    "gpt_oss": ("GptOss", dict(intermediate_size=192, num_local_experts=16, num_experts_per_tok=4)),
    "mixtral": ("Mixtral", dict(intermediate_size=256, num_local_experts=8, num_experts_per_tok=2)),
}
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


def make(family, folder, how="fused"):
    name, more = FAMILIES[family]
    torch.manual_seed(20)
    config = getattr(transformers, f"{name}Config")(**SHAPE, **more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder, save_original_format=how == "single")


def experts_of(model):
    return [(name, tensor) for name, tensor in model.named_parameters()
            if "experts" in name and tensor.dim() == 3]


def is_mapped(model, folder):
    """Do all experts lie between the first and the last byte of a mapping of the model's files?"""
    spans = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if os.path.realpath(folder) in line:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                spans.append((begin, end))
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    return all(low <= tensor.data_ptr() < high for _, tensor in experts_of(model))


def compute(model):
    prompt = torch.arange(1, 25)[None] * 7 % 512
    with torch.no_grad():
        logits = model(prompt).logits
        tokens = model.generate(prompt, max_new_tokens=24, do_sample=False)
    return [hashlib.sha256(logits.float().numpy().tobytes()).hexdigest(), tokens[0, 24:].tolist()]


def compute_in_child(model):
    with torch.no_grad():
        model(torch.tensor([[1]]))
    ends = os.pipe()
    if os.fork() == 0:
        os.write(ends[1], json.dumps(compute(model)).encode())
        os._exit(0)
    os.close(ends[1])
    with open(ends[0]) as told:
        return json.loads(told.read())


def run(folder, threads, *more):
    torch.set_num_threads(int(threads))
    result = {}
    for implementation in IMPLEMENTATIONS:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, experts_implementation=implementation)
        mapped = is_mapped(model, folder)
        if "write" in more:
            compute(model)
            with torch.no_grad():
                experts_of(model)[2][1][3].mul_(1.5)
        result[implementation] = [mapped] + (compute_in_child(model) if "fork" in more
                                             else compute(model))
        del model
    print(json.dumps(result))


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](*sys.argv[2:])

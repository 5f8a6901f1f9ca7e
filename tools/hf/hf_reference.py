"""What Hugging Face transformers computes for a model directory, in float32 on the CPU.

Shared by make_fixtures.py and compare_hf.py. One thread, eager attention and eager experts, one
sequence at a time without padding, so that a result depends on nothing but the weights and the
tokens.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers

transformers.utils.logging.disable_progress_bar()


def load(model_dir, dtype=torch.float32):
    """The model of a directory; refuses a checkpoint whose tensors are not exactly the model's."""
    torch.set_num_threads(1)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        str(model_dir), dtype=dtype, attn_implementation="eager", experts_implementation="eager",
        local_files_only=True, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(what):
            raise SystemExit(f"{model_dir}: {what}: {sorted(info[what])[:8]}")
    return model.eval()


def forward(model, tokens):
    """Teacher-forced pass over one sequence.

    Returns logits [len(tokens), vocabulary] and the router margins [len(tokens)]: over all MoE
    layers the smallest probability of rank k minus that of rank k + 1 (1 where nothing is cut).
    """
    ids = torch.tensor([list(map(int, tokens))])
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=False, output_router_logits=True)
    margin = np.ones(ids.shape[1])
    k = model.config.num_experts_per_tok
    for scores in out.router_logits:
        ranked = torch.softmax(scores.double(), -1).sort(-1, descending=True).values.numpy()
        if ranked.shape[-1] > k:
            margin = np.minimum(margin, ranked[:, k - 1] - ranked[:, k])
    return out.logits[0].numpy(), margin


def relative_error(got, want):
    """max|got - want| / max|want|, the measure of all comparisons of logits."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.abs(got - want).max() / np.abs(want).max())

"""Model files for the programs of this folder: names and places as in real ones, small, made up."""
import json
import random
import struct

F32 = 0


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(path, layers=4, experts=16, rows=96, columns=128):
    """Names of llama.cpp's Qwen3-MoE: dense tensors, and three of all experts for each layer."""
    shapes = [("token_embd.weight", [columns, 256])]
    for layer in range(layers):
        shapes.append((f"blk.{layer}.attn_q.weight", [columns, columns]))
        for part in ("gate", "up", "down"):
            shapes.append((f"blk.{layer}.ffn_{part}_exps.weight", [columns, rows, experts]))
    shapes.append(("output.weight", [columns, 250]))
    head = struct.pack("<IIQQ", 0x46554747, 3, len(shapes), 1)
    head += gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("qwen3moe")
    at, data = 0, []
    chance = random.Random(7)
    for name, shape in shapes:
        count = 1
        for n in shape:
            count *= n
        head += gguf_string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", F32, at)
        data.append(chance.randbytes(4 * count))
        at += 4 * count
    head += bytes(-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head)
        for block in data:
            file.write(block)
    return at


def safetensors(path, layers=4, experts=16, words=24 << 10):
    """Names of a checkpoint of the Hugging Face hub, a tensor for each expert."""
    names = [("model.embed_tokens.weight", 16 << 10)]
    for layer in range(layers):
        names.append((f"model.layers.{layer}.self_attn.q_proj.weight", 4 << 10))
        names += [(f"model.layers.{layer}.mlp.experts.{e}.gate_up_proj.weight", words)
                  for e in range(experts)]
    head, at, chance = {}, 0, random.Random(8)
    for name, count in names:
        head[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, count in names:
            file.write(chance.randbytes(4 * count))
    return at

#!/usr/bin/env python3
"""Tests of the training tools: python3 tools/train/test_train.py"""
import json
import random
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch

import export
import tasks
from evaluate import nats
from tiny_moe import Config, Experts, TinyMoe
from train import Batches, DOMAINS

SMALL = Config(layers=2, hidden=16, heads=2, kv_heads=1, head_dim=8, experts=4, top_k=2, inner=8,
               vocab=64)


def small_model():
    model = TinyMoe(SMALL)
    model.init_weights(3)
    return model


class ExpertsTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        make = lambda *shape: torch.randn(*shape, dtype=torch.double, requires_grad=True)
        self.x, self.weight = make(10, 6), make(10, 2)
        self.gate_up, self.down = make(5, 8, 6), make(5, 6, 4)
        # expert 4 is chosen by nobody
        self.chosen = torch.stack([torch.randperm(4)[:2] for _ in range(10)])

    def run_experts(self, x, weight, gate_up, down):
        return Experts.apply(x, self.chosen, weight, gate_up, down)

    def test_forward_is_the_plain_sum(self):
        got = self.run_experts(self.x, self.weight, self.gate_up, self.down)
        for t in range(10):
            want = 0
            for rank, e in enumerate(self.chosen[t].tolist()):
                gate, up = (self.gate_up[e] @ self.x[t]).split(4)
                mid = torch.nn.functional.silu(gate) * up
                want = want + self.weight[t, rank] * (self.down[e] @ mid)
            torch.testing.assert_close(got[t], want)

    def test_gradients(self):
        inputs = (self.x, self.weight, self.gate_up, self.down)
        self.assertTrue(torch.autograd.gradcheck(self.run_experts, inputs))


class ExportTest(unittest.TestCase):
    def test_round_trip_and_layout(self):
        model = small_model()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            tensors = list(export.named_tensors(SMALL, model.state_dict()))
            export.write_safetensors(path / "model.safetensors", tensors)
            export.write_configs(path, SMALL, {"<|endoftext|>": 61, "<|im_start|>": 62,
                                               "<|im_end|>": 63})
            config, state = export.read_state(path)
            raw = (path / "model.safetensors").read_bytes()
        self.assertEqual(config, SMALL)
        self.assertEqual(set(state), set(model.state_dict()))
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(state[name], tensor.bfloat16().float()), name)
        size = int.from_bytes(raw[:8], "little")
        self.assertEqual((8 + size) % 4096, 0)
        header = json.loads(raw[8:8 + size])
        self.assertEqual(header["model.layers.0.mlp.experts.0.gate_proj.weight"]["data_offsets"][0],
                         0)


class EvaluateTest(unittest.TestCase):
    def test_every_token_is_scored_once(self):
        model = small_model()
        with torch.no_grad():  # all logits equal: every token costs log(vocab)
            model.embed.zero_()
        for count in (2, 9, 10, 11, 33):
            ids = [i % SMALL.vocab for i in range(count)]
            self.assertAlmostEqual(nats(model, ids, 10, 4), (count - 1) * np.log(SMALL.vocab), 3)

    def test_windows_agree_with_one_long_window_on_its_part(self):
        model = small_model()
        ids = list(range(12))
        self.assertAlmostEqual(nats(model, ids, 12, 4), nats(model, ids, 100, 4), 4)


class TasksTest(unittest.TestCase):
    def test_shard_depends_on_seed_and_number_only(self):
        self.assertEqual(tasks.shard(1, 5), tasks.shard(1, 5))
        self.assertNotEqual(tasks.shard(1, 5), tasks.shard(2, 5))

    def test_sums_are_right(self):
        rng = random.Random(7)
        for _ in range(200):
            question, answer, asked = tasks.add(rng)
            self.assertEqual(eval(question), int(answer))
            self.assertIn(question, asked)


class BatchesTest(unittest.TestCase):
    def test_an_epoch_repeats_no_window(self):
        with tempfile.TemporaryDirectory() as folder:
            for i, domain in enumerate(DOMAINS):
                np.save(Path(folder) / f"{domain}.train.npy",
                        np.arange(1000, dtype=np.uint16) + 1000 * i)
            batches = Batches(Path(folder), "train", 1)
            first = torch.cat([batches.next(3, 10)[:, 0] for _ in range(60)])
        self.assertEqual(len(set(first.tolist())), len(first))
        self.assertEqual([int(t) // 1000 for t in first[:6]], [0, 1, 2, 0, 1, 2])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Prints quant_pins.inc: hashes of the values that the gguf package (pip install gguf) reads from the
blocks that tests/unit/kernels/blocks.h makes."""
import struct

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

# name, bytes of a block, where its 16-bit floats are
TYPES = [("Q4_0", 18, [0]), ("Q4_1", 20, [0, 2]), ("Q5_0", 22, [0]), ("Q5_1", 24, [0, 2]),
         ("Q8_0", 34, [0]), ("IQ4_NL", 18, [0]), ("MXFP4", 17, []), ("Q2_K", 84, [80, 82]),
         ("Q3_K", 110, [108]), ("Q4_K", 144, [0, 2]), ("Q5_K", 176, [0, 2]), ("Q6_K", 210, [208]),
         ("IQ4_XS", 136, [0]), ("IQ2_XXS", 66, [0]), ("IQ2_XS", 74, [0]), ("IQ2_S", 82, [0]),
         ("IQ3_XXS", 98, [0]), ("IQ3_S", 110, [0])]
BLOCKS = 64


def blocks(size, halves):
    state, out = 1, bytearray()
    for _ in range(BLOCKS):
        block = bytearray()
        for _ in range(size):
            state = (state * 1664525 + 1013904223) & 0xffffffff
            block.append(state >> 24)
        for at in halves:
            block[at + 1] = (block[at + 1] & 0x83) | 0x24
        if not halves:
            block[0] = 120 + (block[0] & 7)
        out += block
    return np.frombuffer(bytes(out), dtype=np.uint8).reshape(BLOCKS, size)


def fnv(values):
    value = 0xcbf29ce484222325
    for bits in (values.astype(np.float32).ravel() + np.float32(0)).view(np.uint32):
        value = ((value ^ int(bits)) * 0x100000001b3) & 0xffffffffffffffff
    return value


for name, size, halves in TYPES:
    values = dequantize(blocks(size, halves), GGMLQuantizationType[name])
    print("    { MP_WTYPE_%s, UINT64_C(0x%016x) }," % (name, fnv(values)))

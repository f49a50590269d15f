#!/usr/bin/env python3
"""Makes crates/model/tests/golden/: what the gguf package dequantises, and what transformers computes for rope configs.

Needs the packages of make-fixtures.py. Deterministic for given versions.
"""

import json
import math
from pathlib import Path

import gguf
import numpy as np
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = Path(__file__).resolve().parent.parent / "crates/model/tests/golden"
TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K".split()
F16_FIELDS = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
NUM_ELEMENTS = 1024


def dequantisation():
    """Random bytes are valid blocks of every type as long as their f16 scales are finite."""
    out = OUT / "dequant"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for name in TYPES:
        qtype = gguf.GGMLQuantizationType[name]
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
        count = NUM_ELEMENTS // block_len
        if name in ("F32", "F16", "BF16"):
            blocks = gguf.quants.quantize(rng.standard_normal(NUM_ELEMENTS).astype(np.float32), qtype).view(np.uint8)
        else:
            blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
            for offset in F16_FIELDS[name]:
                scales = rng.standard_normal(count).astype("<f2")
                blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks.reshape(1, -1), qtype).astype("<f4")
        assert values.size == NUM_ELEMENTS and np.isfinite(values).all(), name
        (out / f"{name}.bin").write_bytes(blocks.tobytes())
        (out / f"{name}.f32").write_bytes(values.tobytes())


SIZES = dict(vocab_size=128, hidden_size=512, intermediate_size=64, num_hidden_layers=1, rms_norm_eps=1e-5)
LONG = [round(1.0 + 0.9 * i**1.2, 3) for i in range(48)]
SHORT = [round(1.0 + 0.02 * i, 3) for i in range(48)]
# The rope settings of published models, on small sizes: name -> (config.json, longest context served).
ROPES = {
    "llama-2": (dict(model_type="llama", num_attention_heads=4, max_position_embeddings=4096), 4096),
    "llama-3.1": (
        dict(
            model_type="llama",
            num_attention_heads=4,
            max_position_embeddings=131072,
            rope_theta=500000.0,
            rope_scaling=dict(
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=8192,
                rope_type="llama3",
            ),
        ),
        131072,
    ),
    "linear": (
        dict(
            model_type="llama",
            num_attention_heads=4,
            max_position_embeddings=4096,
            rope_scaling=dict(type="linear", factor=2.5),
        ),
        8192,
    ),
    "qwen2.5-yarn": (
        dict(
            model_type="qwen2",
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=32768,
            rope_theta=1000000.0,
            rope_scaling=dict(factor=4.0, original_max_position_embeddings=32768, type="yarn"),
        ),
        131072,
    ),
    "qwen3-yarn-tuned": (
        dict(
            model_type="qwen3",
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=128,
            max_position_embeddings=40960,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=1000000.0,
                factor=2.0,
                original_max_position_embeddings=20480,
                beta_fast=24.0,
                beta_slow=2.0,
                truncate=False,
                attention_factor=1.25,
            ),
        ),
        40960,
    ),
    "phi-3-128k": (
        dict(
            model_type="phi3",
            num_attention_heads=4,
            num_key_value_heads=4,
            partial_rotary_factor=0.75,
            max_position_embeddings=131072,
            original_max_position_embeddings=4096,
            rope_theta=10000.0,
            rope_scaling=dict(type="longrope", long_factor=LONG, short_factor=SHORT),
        ),
        131072,
    ),
}
ROPES["phi-3-128k-short"] = (ROPES["phi-3-128k"][0], 4096)


def rope():
    cases = []
    for name, (given, max_len) in ROPES.items():
        given = {**SIZES, **given}
        loaded = AutoConfig.for_model(**json.loads(json.dumps(given)))
        kind = loaded.rope_parameters["rope_type"]
        if kind == "default":
            dim = loaded.head_dim
            inv_freq, attention = [loaded.rope_parameters["rope_theta"] ** (-i / dim) for i in range(0, dim, 2)], 1.0
        else:
            inv_freq, attention = ROPE_INIT_FUNCTIONS[kind](loaded, "cpu", seq_len=max_len)
            inv_freq = inv_freq.tolist()
        assert all(math.isfinite(f) for f in inv_freq)
        cases.append(dict(name=name, config=given, max_len=max_len, inv_freq=inv_freq, attention_factor=attention))
    OUT.mkdir(parents=True, exist_ok=True)
    document = dict(transformers=transformers.__version__, cases=cases)
    (OUT / "rope.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    dequantisation()
    rope()

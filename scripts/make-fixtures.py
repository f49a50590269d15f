#!/usr/bin/env python3
"""Makes fixtures/: tiny random checkpoints with the logits transformers computes for them.

Needs torch, transformers, safetensors, gguf and numpy; the versions used are written to every reference.json.
Deterministic for given versions: run it again and `git diff` shows what changed.

    python scripts/make-fixtures.py [NAME ...]

Layout of a fixture and how to read it: fixtures/README.md.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
VOCAB = 128
NUM_GREEDY = 16
VERSIONS = {m.__name__: m.__version__ for m in (torch, transformers, safetensors, np)}
VERSIONS["gguf"] = __import__("importlib.metadata").metadata.version("gguf")

SHARED = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)

LLAMA3 = dict(
    rope_type="llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
LONGROPE = dict(
    rope_type="longrope",
    short_factor=[1.0, 1.05, 1.1, 1.2, 1.4, 1.5],
    long_factor=[1.0, 1.3, 1.9, 2.7, 3.6, 4.2],
)

# name -> (model type, storage dtype, how to save, config on top of SHARED)
CHECKPOINTS = {
    "llama2": ("llama", "float16", {}, dict(num_key_value_heads=4, rms_norm_eps=1e-5)),
    "llama31": (
        "llama",
        "float32",
        dict(old_keys=True),
        dict(
            intermediate_size=64,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_theta=500.0, **LLAMA3),
            eos_token_id=[2, 3],
        ),
    ),
    "llama-sharded": ("llama", "bfloat16", dict(max_shard_size="60KB", stray=True), dict(num_key_value_heads=1)),
    "qwen2": ("qwen2", "bfloat16", dict(old_keys=True), dict(rms_norm_eps=1e-6, bos_token_id=None)),
    "qwen2-window": (
        "qwen2",
        "bfloat16",
        {},
        dict(rms_norm_eps=1e-6, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    ),
    "qwen3": (
        "qwen3",
        "bfloat16",
        {},
        dict(head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=dict(rope_theta=1e6)),
    ),
    "qwen3-yarn": (
        "qwen3",
        "bfloat16",
        {},
        dict(
            head_dim=32,
            rms_norm_eps=1e-6,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32
            ),
        ),
    ),
    "qwen3moe": (
        "qwen3_moe",
        "bfloat16",
        {},
        dict(
            head_dim=32,
            rms_norm_eps=1e-6,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
    ),
    "qwen3moe-mixed": (
        "qwen3_moe",
        "bfloat16",
        dict(old_keys=True),
        dict(
            head_dim=16,
            rms_norm_eps=1e-6,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            mlp_only_layers=[0],
        ),
    ),
    "phi3-window": ("phi3", "bfloat16", {}, dict(num_key_value_heads=4, sliding_window=24)),
    "phi4-longrope": (
        "phi3",
        "bfloat16",
        dict(old_keys=True),
        dict(
            tie_word_embeddings=True,
            original_max_position_embeddings=32,
            rope_parameters=dict(rope_theta=1000.0, partial_rotary_factor=0.75, **LONGROPE),
        ),
    ),
}

# name -> (checkpoint it is made from, how tensors are stored)
GGUFS = {
    "llama2-q8_0": ("llama2", "Q8_0"),
    "llama2-legacy": ("llama2", "legacy"),
    "llama31-f16": ("llama31", "F16"),
    "qwen2-q8_0": ("qwen2", "Q8_0"),
    "qwen3-f16": ("qwen3", "F16"),
    "qwen3-yarn-q8_0": ("qwen3-yarn", "Q8_0"),
    "qwen3moe-q8_0": ("qwen3moe", "Q8_0"),
    "phi3-window-q8_0": ("phi3-window", "Q8_0"),
    "phi4-longrope-f16": ("phi4-longrope", "F16"),
}


# ---- weights ----------------------------------------------------------------------------------------------------


def randomize(model, seed):
    """Weights under which every part matters: attention logits of a few units, decisive routing, real biases."""
    rng = torch.Generator().manual_seed(seed)

    def normal(shape, std):
        return torch.randn(shape, generator=rng) * std

    gain = {"q_proj": 1.4, "k_proj": 1.4, "qkv_proj": 1.4, "gate.weight": 3.0, "lm_head": 2.0}
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1.0 + normal(p.shape, 0.2))
            elif name.endswith(".bias"):
                p.copy_(normal(p.shape, 0.5))
            elif "embed_tokens" in name:
                p.copy_(normal(p.shape, 0.3 if tied else 1.0))
            else:
                scale = next((g for key, g in gain.items() if key in name), 1.0)
                p.copy_(normal(p.shape, scale / math.sqrt(p.shape[-1])))


def make_checkpoint(name, seed):
    kind, dtype, save, overrides = CHECKPOINTS[name]
    config = AutoConfig.for_model(kind, **{**SHARED, **json.loads(json.dumps(overrides))})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, seed)
    model.to(getattr(torch, dtype))
    out = fresh(name)
    model.save_pretrained(out, max_shard_size=save.get("max_shard_size", "1GB"))
    if save.get("old_keys"):
        rewrite_with_old_keys(out / "config.json")
    if save.get("stray"):
        safetensors.torch.save_file({"not.a.parameter": torch.ones(3)}, out / "consolidated.safetensors")
    write_reference(out, load(out))


def fresh(name):
    out = ROOT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def rewrite_with_old_keys(path):
    """As transformers 4 wrote it: rope_theta, rope_scaling and torch_dtype at the top level."""
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if config["model_type"] == "phi3" and key in rope:
            config[key] = rope.pop(key)
    if config["model_type"] == "phi3":
        rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(path):
    """The model in f32 over the stored weights, attention written out."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


# ---- reference --------------------------------------------------------------------------------------------------


def prompts(config):
    """Name, length, and the max_model_len a server must be set to (it decides which LongRoPE factors apply)."""
    original = getattr(config, "original_max_position_embeddings", None)
    short_limit = original if config.model_type == "phi3" and original < 128 else 128
    return [("one", 1, short_limit), ("short", 11, short_limit), ("long", 67, 128)]


def write_reference(out, model):
    rng = np.random.default_rng(7)
    entries, rows = [], []
    for name, length, max_model_len in prompts(model.config):
        tokens = rng.integers(3, VOCAB, length).tolist()
        logits = forward(model, tokens)
        greedy, margins = continue_greedily(model, tokens)
        entries.append(
            dict(
                name=name,
                tokens=tokens,
                max_model_len=max_model_len,
                first_row=sum(len(r) for r in rows),
                greedy=greedy,
                greedy_margins=margins,
            )
        )
        rows.append(logits)
    logits = np.concatenate(rows).astype("<f4")
    assert logits.std() > 1.0 and np.isfinite(logits).all(), (out.name, logits.std())
    reference = dict(versions=VERSIONS, vocab_size=VOCAB, logits="logits.f32", prompts=entries)
    (out / "reference.json").write_text(json.dumps(reference) + "\n")
    (out / "logits.f32").write_bytes(logits.tobytes())
    print(f"{out.name}: logits std {logits.std():.2f}, {sum(f.stat().st_size for f in out.iterdir())} bytes")


def forward(model, tokens):
    """Logits of every position, [len(tokens), vocab]."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def continue_greedily(model, tokens):
    tokens, margins = list(tokens), []
    for _ in range(NUM_GREEDY):
        top = torch.topk(torch.from_numpy(forward(model, tokens)[-1].copy()), 2)
        tokens.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 5))
    return tokens[-NUM_GREEDY:], margins


# ---- GGUF -------------------------------------------------------------------------------------------------------

GGUF_ARCH = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "phi3": "phi3"}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name):
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def permute(weight, heads):
    """Rows of a head reordered so that rotating pairs (i, i + d/2) become neighbours."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def unpermute(weight, heads):
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def permuted_heads(config, name):
    """How many heads a tensor's rows are permuted by; None for most."""
    if config.model_type != "llama":
        return None
    if name.endswith("attn_q.weight"):
        return config.num_attention_heads
    return config.num_key_value_heads if name.endswith("attn_k.weight") else None


def gguf_tensors(model):
    """GGUF name -> f32 array, before quantisation."""
    config, out = model.config, {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = value.float().numpy()
        if name.endswith("mlp.experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = np.split(value, 2, axis=1)
            out[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(gate)
            out[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(up)
            continue
        name = gguf_name(name)
        heads = permuted_heads(config, name)
        out[name] = np.ascontiguousarray(permute(value, heads) if heads else value)
    return out


def storage(style, name, value):
    if value.ndim == 1 or "ffn_gate_inp" in name:
        return gguf.GGMLQuantizationType.F32
    if style == "legacy":  # one of each older type, by role
        by_role = dict(attn_q="Q4_0", attn_k="Q4_1", attn_v="Q5_0", attn_output="Q5_1", ffn_gate="BF16", ffn_up="F16")
        style = next((t for role, t in by_role.items() if f".{role}." in name), "Q8_0")
    return gguf.GGMLQuantizationType[style]


def write_metadata(writer, config, arch):
    writer.add_name(f"random {arch}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if arch.startswith("qwen3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if not arch.startswith("qwen"):
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    eos = config.eos_token_id
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    if isinstance(eos, list):
        writer.add_eot_token_id(eos[1])
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)


def write_rope_tensors(writer, config):
    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))


def llama3_divisors(config):
    rope, head_dim = config.rope_parameters, config.head_dim
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, divisors = rope["original_max_position_embeddings"], []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            kept = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return np.array(divisors, np.float32)


def make_gguf(name):
    source, style = GGUFS[name]
    model = load(ROOT / source)
    arch = GGUF_ARCH[model.config.model_type]
    out = fresh(name)
    path = out / "model.gguf"
    writer = gguf.GGUFWriter(path, arch)
    write_metadata(writer, model.config, arch)
    write_rope_tensors(writer, model.config)
    for tensor, value in gguf_tensors(model).items():
        qtype = storage(style, tensor, value)
        data = gguf.quants.quantize(value, qtype)
        writer.add_tensor(tensor, data, raw_dtype=qtype)
    finish(writer)
    load_gguf_weights(model, path)
    write_reference(out, model)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_gguf_weights(model, path):
    """Puts the file's dequantised tensors into the model in place of its own."""
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    config, state = model.config, {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("mlp.experts.gate_up_proj"):
            layer = name.split(".")[2]
            halves = [tensors[f"blk.{layer}.ffn_{half}_exps.weight"] for half in ("gate", "up")]
            loaded = np.concatenate(halves, axis=1)
        else:
            loaded = tensors[gguf_name(name)]
            heads = permuted_heads(config, gguf_name(name))
            loaded = unpermute(loaded, heads) if heads else loaded
        state[name] = torch.from_numpy(np.array(loaded, np.float32)).reshape(value.shape)
    model.load_state_dict(state, strict=False)
    model.tie_weights()


# ---- K-quants ---------------------------------------------------------------------------------------------------


def random_k_blocks(rng, shape, qtype, std):
    """Random blocks of a K-quant whose values have about this standard deviation.

    The gguf package cannot quantise to these types, but any bytes are valid; only the f16 scales need care.
    """
    rows, cols = shape
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (rows * cols // block_len, block_bytes), dtype=np.uint8)

    def put(offset, values):
        blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)

    spread = rng.uniform(0.8, 1.2, len(blocks))
    if qtype == gguf.GGMLQuantizationType.Q6_K:
        put(208, spread * std / 1300)
    else:
        levels = 15 if qtype == gguf.GGMLQuantizationType.Q4_K else 31
        put(0, spread * std / (levels * 12))
        put(2, spread * std / 24)
    return blocks.reshape(rows, cols // block_len * block_bytes)


def make_k_quants(name):
    """One Llama layer wide enough for 256-element blocks, one type per role."""
    config = AutoConfig.for_model(
        "llama", **{**SHARED, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    randomize(model, 99)
    rng = np.random.default_rng(99)
    types = dict(attn_q="Q4_K", attn_k="Q5_K", attn_v="Q6_K", attn_output="Q4_K", ffn_gate="Q4_K", ffn_up="Q5_K")
    out = fresh(name)
    path = out / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, config, "llama")
    for tensor, value in gguf_tensors(model).items():
        if value.ndim == 1:
            writer.add_tensor(tensor, value)
            continue
        role = tensor.removesuffix(".weight").split(".")[-1]
        qtype = gguf.GGMLQuantizationType[types.get(role, "Q6_K")]
        data = random_k_blocks(rng, value.shape, qtype, float(value.std()))
        writer.add_tensor(tensor, data, raw_dtype=qtype)
    finish(writer)
    load_gguf_weights(model, path)
    write_reference(out, model)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for seed, name in enumerate(CHECKPOINTS):
        if not wanted or name in wanted:
            make_checkpoint(name, seed)
    for name in GGUFS:
        if not wanted or name in wanted:
            make_gguf(name)
    if not wanted or "llama-k" in wanted:
        make_k_quants("llama-k")


if __name__ == "__main__":
    main()

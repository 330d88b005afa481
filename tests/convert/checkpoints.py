"""Tiny random Hugging Face checkpoints, in every stored form that the readers take."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tokenizers
from safetensors.numpy import save_file

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Every dimension differs from every other, so that none can be taken for another.
D, F, N, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 24, 40, 5, 48, 4, 2, 8

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "num_experts_per_tok": 2,
    "eos_token_id": 3,
    "transformers_version": "5.24.0",
}


def mixtral_config(**changes: Any) -> dict[str, Any]:
    """config.json of a Mixtral of two layers."""
    family = {"model_type": "mixtral", "num_local_experts": N, "intermediate_size": F}
    return {**_COMMON, **family, **changes}


def qwen3_moe_config(**changes: Any) -> dict[str, Any]:
    """config.json of a Qwen3-MoE whose layer 0 is dense."""
    family = {
        "model_type": "qwen3_moe",
        "num_experts": N,
        "moe_intermediate_size": F,
        "intermediate_size": 28,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    }
    return {**_COMMON, **family, **changes}


def fused_tensors(config: dict[str, Any], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Random tensors under the names of transformers 5 with fused experts."""
    rng = np.random.default_rng(0)
    shapes = dict(_shapes(config))
    return {
        name: (rng.standard_normal(shape, np.float32) * 0.1).astype(dtype)
        for name, shape in shapes.items()
    }


def _shapes(config: dict[str, Any]):
    qwen = config["model_type"] == "qwen3_moe"
    yield "model.embed_tokens.weight", (VOCAB, D)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (D,)
        yield f"{layer}.post_attention_layernorm.weight", (D,)
        yield f"{layer}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, D)
        yield f"{layer}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, D)
        yield f"{layer}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, D)
        yield f"{layer}.self_attn.o_proj.weight", (D, HEADS * HEAD_DIM)
        if qwen:
            yield f"{layer}.self_attn.q_norm.weight", (HEAD_DIM,)
            yield f"{layer}.self_attn.k_norm.weight", (HEAD_DIM,)
        if qwen and i in config["mlp_only_layers"]:
            yield f"{layer}.mlp.gate_proj.weight", (config["intermediate_size"], D)
            yield f"{layer}.mlp.up_proj.weight", (config["intermediate_size"], D)
            yield f"{layer}.mlp.down_proj.weight", (D, config["intermediate_size"])
            continue
        yield f"{layer}.mlp.gate.weight", (N, D)
        yield f"{layer}.mlp.experts.gate_up_proj", (N, 2 * F, D)
        yield f"{layer}.mlp.experts.down_proj", (N, D, F)
    yield "model.norm.weight", (D,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (VOCAB, D)


def per_expert(tensors: dict[str, np.ndarray], model_type: str) -> dict[str, np.ndarray]:
    """The same weights under the names of the published checkpoints, experts apart."""
    mixtral = model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    result = {}
    for name, x in tensors.items():
        prefix = name.rpartition(".mlp.")[0] + (".block_sparse_moe" if mixtral else ".mlp")
        if name.endswith("experts.gate_up_proj"):
            for e in range(N):
                result[f"{prefix}.experts.{e}.{gate}.weight"] = x[e, :F].copy()
                result[f"{prefix}.experts.{e}.{up}.weight"] = x[e, F:].copy()
        elif name.endswith("experts.down_proj"):
            for e in range(N):
                result[f"{prefix}.experts.{e}.{down}.weight"] = x[e].copy()
        elif name.endswith("mlp.gate.weight"):
            result[f"{prefix}.gate.weight"] = x
        else:
            result[name] = x
    return result


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], shards: int = 0
) -> Path:
    """Write a checkpoint with a tokenizer; ``shards`` 0 is one file without an index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    write_tokenizer(folder)
    write_weights(folder, tensors, shards)
    return folder


def write_weights(folder: Path, tensors: dict[str, np.ndarray], shards: int = 0) -> None:
    """Write the tensors; with ``shards``, names that follow one another lie in different files."""
    if not shards:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    weight_map = {
        name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors"
        for index, name in enumerate(sorted(tensors))
    }
    for file in set(weight_map.values()):
        part = {name: x for name, x in tensors.items() if weight_map[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer of the vocabulary's size, with a chat template of its own file."""
    vocab = {f"w{i}": i for i in range(VOCAB - 1)} | {"<end>": VOCAB - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")

"""Write a random Qwen3-MoE checkpoint for benchmarks, as a Hugging Face folder.

    python scripts/make_bench_checkpoint.py bench-checkpoint

The default is 892 million bfloat16 parameters, 1.8 GB, of which 805 million are in experts. One
shard a layer is drawn and written at a time. The seed is fixed: equal arguments give equal files.

Weights are scaled so that every layer passes on a signal of the size it got. Router logits have a
standard deviation of ``--router-scale``; with random weights every row prefers other experts, so a
batch uses almost as many distinct experts as chance gives.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, pre_tokenizers

from lynx_jax.arguments import Parser

_END_OF_TEXT = 2


def main() -> None:
    """Command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=512, help="width of one expert")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--router-scale", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True)
    config = _config(options)
    _write_json(folder / "config.json", config)
    _write_tokenizer(folder, options.vocab)
    size = _write_shards(folder, _shards(config, options.router_scale, options.seed))
    print(f"{size / 2e6:.0f} million parameters, {size / 1e9:.2f} GB in {folder}")


def _config(options: argparse.Namespace) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "bfloat16",
        "vocab_size": options.vocab,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.head_dim,
        "intermediate_size": 4 * options.hidden,
        "moe_intermediate_size": options.hidden,
        "num_experts": options.experts,
        "num_experts_per_tok": options.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": _END_OF_TEXT,
    }


def _shards(
    config: Mapping[str, object], router_scale: float, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """The tensors of each shard: embedding and head, then the layers."""
    random = np.random.default_rng(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        values = random.standard_normal((rows, columns), np.float32)
        return (values * (scale / math.sqrt(columns))).astype(ml_dtypes.bfloat16)

    size = {name: value for name, value in config.items() if isinstance(value, int)}
    vocab, width, hidden = size["vocab_size"], size["hidden_size"], size["moe_intermediate_size"]
    queries = size["num_attention_heads"] * size["head_dim"]
    keys = size["num_key_value_heads"] * size["head_dim"]
    ones = np.ones(width, ml_dtypes.bfloat16)
    yield {
        "model.embed_tokens.weight": normal(vocab, width, math.sqrt(width)),
        "lm_head.weight": normal(vocab, width),
        "model.norm.weight": ones,
    }
    for layer in range(size["num_hidden_layers"]):
        tensors = {
            "input_layernorm.weight": ones,
            "post_attention_layernorm.weight": ones,
            "self_attn.q_proj.weight": normal(queries, width),
            "self_attn.k_proj.weight": normal(keys, width),
            "self_attn.v_proj.weight": normal(keys, width),
            "self_attn.o_proj.weight": normal(width, queries),
            "self_attn.q_norm.weight": ones[: size["head_dim"]],
            "self_attn.k_norm.weight": ones[: size["head_dim"]],
            "mlp.gate.weight": normal(size["num_experts"], width, router_scale),
        }
        for expert in range(size["num_experts"]):
            prefix = f"mlp.experts.{expert}"
            tensors[f"{prefix}.gate_proj.weight"] = normal(hidden, width)
            tensors[f"{prefix}.up_proj.weight"] = normal(hidden, width)
            tensors[f"{prefix}.down_proj.weight"] = normal(width, hidden)
        yield {f"model.layers.{layer}.{name}": tensor for name, tensor in tensors.items()}


def _write_shards(folder: Path, shards: Iterator[dict[str, np.ndarray]]) -> int:
    """Write the shards as they come, and their index; the size of all tensors in bytes."""
    weight_map, size = {}, 0
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
        size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
    return size


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """A tokenizer of one word an id: ``t17`` is 17."""
    words = {f"t{i}": i for i in range(vocab)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = f"t{_END_OF_TEXT}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "unk_token": "t0"}
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

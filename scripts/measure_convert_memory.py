"""Peak memory of a conversion and of a load: writes a random checkpoint, prints both peaks.

    python scripts/measure_convert_memory.py --folder FOLDER [--shape S] [--layers N] [-- OPTIONS]

The checkpoint and the result are removed at the end. Needs twice the checkpoint's size on the disk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from lynx_jax.arguments import Parser

# Hugging Face configs; expert sizes of Qwen3-30B-A3B with half the experts, and of Mixtral-8x7B.
_COMMON = {
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 32000,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "mixtral": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 14336,
    },
}
_DEFAULT_LAYERS = {"qwen3_moe": 5, "mixtral": 1}


def tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Names and shapes of one shard after another, in the layout of the published checkpoints."""
    width, vocab = config["hidden_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    mixtral = config["model_type"] == "mixtral"
    experts = config["num_local_experts" if mixtral else "num_experts"]
    hidden = config["intermediate_size" if mixtral else "moe_intermediate_size"]
    block = "block_sparse_moe" if mixtral else "mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        shard = {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
            f"{attention}.q_proj.weight": (query, width),
            f"{attention}.k_proj.weight": (key, width),
            f"{attention}.v_proj.weight": (key, width),
            f"{attention}.o_proj.weight": (width, query),
            f"{layer}.{block}.gate.weight": (experts, width),
        }
        if not mixtral:
            shard |= {f"{attention}.{n}_norm.weight": (config["head_dim"],) for n in "qk"}
        yield f"attention-{i}", shard
        for e in range(experts):
            expert = f"{layer}.{block}.experts.{e}"
            yield (
                f"expert-{i}-{e}",
                {
                    f"{expert}.{gate}.weight": (hidden, width),
                    f"{expert}.{up}.weight": (hidden, width),
                    f"{expert}.{down}.weight": (width, hidden),
                },
            )
    ends = {"model.embed_tokens.weight": (vocab, width), "lm_head.weight": (vocab, width)}
    yield "ends", {**ends, "model.norm.weight": (width,)}


def write_checkpoint(folder: Path, config: dict[str, Any]) -> int:
    """Write random bfloat16 weights, a shard at a time; returns their bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    total = 0
    for name, shapes in tensor_shapes(config):
        file = f"model-{name}.safetensors"
        tensors = {
            key: rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
            for key, shape in shapes.items()
        }
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(x.nbytes for x in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


def peak_rss(arguments: list[str]) -> tuple[int, float]:
    """Run Python with arguments; its peak resident bytes by the kernel's own mark, and seconds."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    peak = 0
    while process.poll() is None:
        peak = max(peak, _high_water_mark(process.pid))
        time.sleep(0.005)
    if process.returncode:
        sys.exit(f"exit code {process.returncode} of python {' '.join(arguments)}")
    return peak, time.perf_counter() - began


def _high_water_mark(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(marks[0]) * 1024 if marks else 0


_LOAD = """
import sys
from lynx_jax.backends import get_backend
from lynx_jax.loading import load_model
model = load_model(sys.argv[1], backend=get_backend("loop"))
"""


def main() -> None:
    """Write, load, convert, report, remove."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="to create and remove")
    parser.add_argument("--shape", choices=sorted(_SHAPES), default="qwen3_moe")
    parser.add_argument("--layers", type=int, help="default: enough for 3 GB")
    parser.add_argument("convert_options", nargs="*", help="after --: options for the converter")
    args = parser.parse_args()
    layers = args.layers or _DEFAULT_LAYERS[args.shape]
    config = {**_COMMON, **_SHAPES[args.shape], "num_hidden_layers": layers}
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        size = write_checkpoint(args.folder / "source", config)
        idle = "import time; time.sleep(0.3)"
        empty, _ = peak_rss(["-c", idle])
        imports, _ = peak_rss(["-c", f"import lynx_jax.convert.conversion; {idle}"])
        source, target = str(args.folder / "source"), str(args.folder / "target")
        loading, loading_seconds = peak_rss(["-c", _LOAD, source])
        options = args.convert_options
        peak, seconds = peak_rss(["-m", "lynx_jax.convert", source, target, *options])
    finally:
        shutil.rmtree(args.folder, ignore_errors=True)
    print(
        f"{args.shape} {size / 1e9:.2f} GB: empty process {empty / 1e6:.0f} MB, with the converter "
        f"imported {imports / 1e6:.0f} MB, converting at most {peak / 1e6:.0f} MB "
        f"({(peak - empty) / 1e6:.0f} MB above the empty process), {seconds:.1f} s; loading it "
        f"as it is, in the memory of the host: {(loading - size - empty) / 1e6:.0f} MB above the "
        f"weights and the empty process, {loading_seconds:.1f} s"
    )


if __name__ == "__main__":
    main()

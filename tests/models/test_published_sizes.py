"""Real sizes: published configs build with the published number of parameters, and the weight
tables take every tensor of the published files and miss none."""

import functools
import math
from pathlib import Path

import pytest

from lynx_jax.convert.plan import match
from lynx_jax.convert.quantization import read_packing
from lynx_jax.convert.reader import abstract_model, parameters_of
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.errors import InputError
from lynx_jax.models import get_family
from tests.models.published import count_elements
from tests.models.published_checkpoints import CHECKPOINTS
from tests.models.tables import size_row

DOCS = Path(__file__).parents[2] / "docs" / "models.md"


@functools.cache
def built(model_type, config):
    """The model of a config, without arrays; quantised checkpoints have that of the plain ones."""
    return abstract_model(get_family(model_type), config)


def model_of(name):
    """The model that a published config describes."""
    raw = CHECKPOINTS[name].config
    return built(raw["model_type"], get_family(raw["model_type"]).config_class.from_dict(raw))


@functools.cache
def shapes_of(name):
    """Path and shape of every parameter."""
    return {path: parameter.shape for path, parameter in parameters_of(model_of(name)).items()}


def stored(name):
    """The checkpoint's tensors as the headers of its files tell them."""
    published = CHECKPOINTS[name]
    found = [
        StoredTensor(tensor, Path("model.safetensors"), code, shape, 0)
        for tensor, code, shape in published.listing(published.config)
    ]
    return {tensor.name: tensor for tensor in found}


def place(name, tensors):
    """What ``match`` makes of these tensors: the source of every parameter."""
    raw = CHECKPOINTS[name].config
    table = get_family(raw["model_type"]).weights
    return match(table, shapes_of(name), tensors, name, read_packing(raw))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameter_count(name):
    assert sum(map(math.prod, shapes_of(name).values())) == CHECKPOINTS[name].parameters


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_published_tensor_has_its_place(name):
    published, tensors = CHECKPOINTS[name], stored(name)
    listed = [(t.name, t.code, t.shape) for t in tensors.values()]
    assert count_elements(listed) == (published.elements or published.parameters)
    assert published.tensors in (None, len(tensors))
    assert place(name, tensors).keys() == shapes_of(name).keys()


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if not name.endswith("-FP8")])
def test_the_docs_state_the_size(name):
    assert size_row(name, model_of(name)) in DOCS.read_text().splitlines()


def test_a_tensor_too_few_or_too_many_is_found():
    name = "DeepSeek-V2-Lite"
    tensors = stored(name)
    lost = tensors.pop("model.layers.9.mlp.experts.41.up_proj.weight")
    with pytest.raises(InputError, match=f"1 missing .{lost.name}"):
        place(name, tensors)
    with pytest.raises(InputError, match=r"1 unexpected \(model\.layers\.9\.mlp\.extra"):
        place(name, tensors | {lost.name: lost, "model.layers.9.mlp.extra": lost})

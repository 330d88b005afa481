"""The demo model as it is shipped."""

import importlib.resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from demo_recipe import chat, dataset, evaluate, training_model

from lynx_jax.loading import LoadedModel, load
from lynx_jax.models.rope import Rope

MAX_BYTES = 32_000_000


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load("demo", backend="reference")


def test_package_data_stays_small() -> None:
    folder = Path(str(importlib.resources.files("lynx_jax.demo")))
    assert sum(path.stat().st_size for path in folder.glob("*.*")) <= MAX_BYTES


def test_form_is_the_recipe_s(demo: LoadedModel) -> None:
    shape = training_model.Shape()
    for name in shape.__dataclass_fields__:
        if name != "rope_theta":
            assert getattr(demo.config, name) == getattr(shape, name), name
    assert demo.config.rope == Rope(shape.rope_theta)
    assert demo.config.tie_word_embeddings


def test_special_tokens_are_known_to_the_tokenizer(demo: LoadedModel) -> None:
    ids = [demo.tokenizer.encode(text, add_special_tokens=False) for text in dataset.SPECIALS]
    assert ids == [[0], [1], [2]]
    assert demo.eos_token_ids == {0, 2}
    assert demo.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]).startswith(
        f"{chat.START}user\nHi{chat.END}\n"
    )


def test_weights_have_learnt_the_language(demo: LoadedModel) -> None:
    text = "import os\n\n\ndef main(self, name):\n    return os.path.join(self.name, name)\n" * 2
    ids = demo.tokenizer.encode(text)
    loss, choices = evaluate.measure(demo.model, jnp.asarray([ids]))
    assert float(loss) / (len(ids) - 1) < 4.0  # a uniform guess is at 8.3
    assert choices.shape == (4, 64)
    np.testing.assert_array_equal(choices.sum(axis=1), (len(ids) - 1) * 8)


def test_card_states_the_shipped_step() -> None:
    folder = Path(str(importlib.resources.files("lynx_jax.demo")))
    step, _ = evaluate.trained(folder)
    assert f"{step:,} steps" in (folder / "README.md").read_text()

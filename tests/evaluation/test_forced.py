"""Teacher-forced decode in one pass equals decoding the texts through the engine's programs."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.evaluation.forced import ForcedBatch, ForcedDecoder
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import OEA, Demand, Lynx, Policy, XShare
from lynx_jax.sampling import SamplingFlags, SamplingRows
from lynx_jax.steps import Prompt, Settings, decode_step, init_state, prefill_step
from tests.models import golden

# Tokens of each row: prompt, then what it decodes. The last row holds nothing.
_PROMPTS, _TEXTS = (6, 3, 5, 1, 0), (5, 6, 2, 6, 0)
_BUCKET, _STEPS = max(_PROMPTS), max(_TEXTS)


# Their attention and routers differ; what the other families add is the same in every phase.
_FAMILIES: dict[str, Policy] = {
    "deepseek_v3": XShare(8),
    "gpt_oss": Lynx(0.5, 1, damping=0.5),
    "qwen3_moe": Demand.for_model(3, 12),
}


def _two_layers(case: str) -> DecoderForCausalLM:
    """The case's model cut to its second and third layer, which differ where a family mixes."""
    model = nnx.clone(golden.load(case, "reference").model)
    model.layers = nnx.List(model.layers[1:3])
    return model


# These programs run a few times: compiling them well costs more than it gains.
_quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


class _Recorded:
    """A model that keeps the logits it gives."""

    def __init__(self, model: DecoderForCausalLM) -> None:
        self.forward, self.init_cache, self._logits = model.forward, model.init_cache, model.logits

    def logits(self, hidden: jax.Array) -> jax.Array:
        self.given = self._logits(hidden)
        return self.given


def _texts(vocab: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [
        rng.integers(0, vocab, p + t).astype(np.int32)
        for p, t in zip(_PROMPTS, _TEXTS, strict=True)
    ]


def _forced_batch(texts: list[np.ndarray]) -> ForcedBatch:
    tokens = np.zeros((len(texts), _BUCKET + _STEPS), np.int32)
    live = np.zeros(tokens.shape, bool)
    for row, text in enumerate(texts):
        start = _BUCKET - _PROMPTS[row]
        tokens[row, start : start + len(text)] = text
        live[row, start : start + len(text)] = True
    return ForcedBatch(tokens, live, _BUCKET)


class _Engine:
    """Decodes the texts step by step through the engine's programs.

    Args:
      prefills: prompts go through the prefill program, else token by token through the decode
        program with no other row live, where every policy keeps plain top-k.
    """

    def __init__(self, model: DecoderForCausalLM, policy: Policy, *, prefills: bool) -> None:
        self._graphdef, self._params = nnx.split(model)
        self._settings = Settings(policy, (), SamplingFlags())
        self._state = init_state(model, len(_PROMPTS), 16, None)
        self._feed = self._prefill if prefills else self._decode_alone
        self._step = _quick_jit(self._one_step)

    def decode(self, texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logits [rows, steps, vocab], experts and top-k's experts [steps, layers]."""
        for row, text in enumerate(texts):
            if len(text):
                self._feed(row, text[: _PROMPTS[row]])
        texts_left, prompts = jnp.array(_TEXTS), jnp.array(_PROMPTS)
        self._state = replace(
            self._state, live=texts_left > 0, positions=prompts, remaining=texts_left
        )
        results = []
        for number in range(_STEPS):
            at = [prompt + number for prompt in _PROMPTS]
            fed = [text[i] if i < len(text) else 0 for text, i in zip(texts, at, strict=True)]
            outputs, logits = self._decode(fed)
            assert outputs.was_live.tolist() == [number < text for text in _TEXTS]
            results.append((logits, outputs.experts, outputs.topk_experts))
        logits, experts, topk_experts = (np.stack(part) for part in zip(*results, strict=True))
        return logits.swapaxes(0, 1), experts, topk_experts

    def _one_step(self, params, state):
        recorded = _Recorded(nnx.merge(self._graphdef, params))
        state, outputs = decode_step(recorded, state, self._settings)
        return state, outputs, recorded.given

    def _decode(self, tokens):
        state = replace(self._state, tokens=jnp.array(tokens, jnp.int32))
        self._state, outputs, logits = self._step(self._params, state)
        return outputs, logits

    def _decode_alone(self, row: int, prompt: np.ndarray) -> None:
        alone = jnp.arange(len(_PROMPTS)) == row
        self._state = replace(
            self._state,
            live=alone,
            remaining=jnp.where(alone, 99, 0),
            positions=jnp.where(alone, 0, jnp.array(_PROMPTS)),  # others write where they go on
        )
        for token in prompt:
            self._decode([token] * len(_PROMPTS))

    def _prefill(self, row: int, prompt: np.ndarray) -> None:
        zero = jnp.float32(0)
        sampling = SamplingRows(
            zero, jnp.int32(0), zero, zero, zero, jnp.uint32(0), jnp.int32(0), None
        )
        into_slot = Prompt(
            tokens=jnp.pad(jnp.asarray(prompt), (0, _BUCKET - len(prompt))),
            length=jnp.int32(len(prompt)),
            slot=jnp.int32(row),
            remaining=jnp.int32(1 + _TEXTS[row]),
            ignore_eos=jnp.bool_(True),
            sampling=sampling,
        )
        model = nnx.merge(self._graphdef, self._params)
        program = _quick_jit(
            lambda state, prompt: prefill_step(model, state, prompt, self._settings)
        )
        self._state, _ = program(self._state, into_slot)


def _check(case: str, policy: Policy, *, prefills: bool = False) -> None:
    """Compare both ways on a checkpoint where the policy changes something."""
    model = _two_layers(case)
    texts = _texts(model.config.vocab_size)
    expected, experts, topk_experts = _Engine(model, policy, prefills=prefills).decode(texts)
    batch = _forced_batch(texts)
    result = ForcedDecoder(model)(batch, policy)
    logits = np.asarray(model.logits(result.hidden))
    live = batch.live[:, _BUCKET:]
    np.testing.assert_allclose(logits[live], expected[live], atol=1e-4, rtol=1e-4)
    counts = np.stack([layer.active.sum(axis=-1) for layer in result.layers], axis=1)
    np.testing.assert_array_equal(counts, experts)
    tops = np.stack([layer.num_active_topk for layer in result.layers], axis=1)
    np.testing.assert_array_equal(tops, topk_experts)
    assert (experts < topk_experts).any()


@pytest.mark.parametrize("family", _FAMILIES)
def test_families_decode_as_the_engine_does(family: str) -> None:
    _check(family, _FAMILIES[family])


def test_prompts_are_prefilled_as_the_engine_does() -> None:
    _check("qwen3_moe", OEA(1), prefills=True)

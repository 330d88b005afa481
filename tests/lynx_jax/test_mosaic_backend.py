"""The mosaic backend, its kernels interpreted on CPU, against the reference backend."""

import logging
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax import backends
from lynx_jax.backends import (
    ExpertSizes,
    LayerRouter,
    ReferenceBackend,
    get_backend,
)
from lynx_jax.convert.folder import read_config
from lynx_jax.errors import InputError
from lynx_jax.loading import load
from lynx_jax.models import get_family
from lynx_jax.mosaic_backend import MosaicBackend
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.policies import Lynx
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, route
from tests.models.golden import GOLDEN, decode

MOSAIC = MosaicBackend("H200")
N, K, D, F = 6, 2, 64, 64
CHANGES = {
    "hidden_size": D,
    "moe_intermediate_size": F,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


class Device:
    """What the choice of a backend looks at."""

    def __init__(self, platform, kind, capability):
        self.platform, self.device_kind, self.compute_capability = platform, kind, capability


H200 = Device("gpu", "NVIDIA H200", "9.0")


def layer(rows, seed=0, *, bias=False):
    """Rows (some not live, holding NaN), their routing, and weights of a layer."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)

    live = jnp.asarray(np.arange(rows) % 4 != 1)
    routing = route(
        jnp.asarray(rng.normal(size=(rows, N)), jnp.float32),
        live,
        k=K,
        router=Router("softmax", "renormalize"),
        policy=Lynx(alpha=1.0, beta=1),
        phase=Phase.DECODE,
    )
    biases = (normal(N, 2 * F), normal(N, D)) if bias else (None, None)
    weights = ExpertWeights(normal(N, 2 * F, D) / 8, normal(N, D, F) / 8, *biases)
    return jnp.where(live[:, None], normal(rows, D), jnp.nan), routing, weights


def compute(backend, arguments, form, phase):
    run = jax.jit(backend, static_argnames=("form", "phase"))
    with plgpu.force_gpu_interpret_mode():
        return np.asarray(run(*arguments, form=form, phase=phase), np.float32)


FORMS = [
    (ExpertForm(), False),
    (ExpertForm(scale_input=True), True),
    (ExpertForm("clamped_swiglu"), True),
]


def assert_one_rounding(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=2**-7 * np.abs(wanted).max())


@pytest.mark.parametrize(("form", "bias"), FORMS, ids=str)
@pytest.mark.parametrize("phase", Phase)
def test_it_equals_the_reference(phase, form, bias):
    arguments = layer(9, bias=bias)
    wanted = compute(ReferenceBackend(), arguments, form, phase)
    assert_one_rounding(compute(MOSAIC, arguments, form, phase), wanted)


@pytest.mark.parametrize("rows", [1, 64, 200])
def test_rows_in_any_number_are_grouped(rows):
    arguments = layer(rows, seed=rows)
    wanted = compute(ReferenceBackend(), arguments, ExpertForm(), Phase.PREFILL)
    assert_one_rounding(compute(MOSAIC, arguments, ExpertForm(), Phase.PREFILL), wanted)


@pytest.mark.parametrize(
    ("rows", "phase", "kernels"),
    [(64, Phase.DECODE, True), (65, Phase.DECODE, False), (64, Phase.PREFILL, False)],
)
def test_kernels_serve_decode_of_up_to_64_rows(rows, phase, kernels):
    run = partial(MOSAIC, form=ExpertForm(), phase=phase)
    program = str(jax.make_jaxpr(run)(*layer(rows)))
    found = [f"name={kernel}" in program for kernel in ("expert_ffn", "ragged_by_expert")]
    assert found == [kernels, not kernels]


def test_layers_of_a_step_are_lowered_once():
    x, routing, weights = layer(8)

    def step(x):
        for _ in range(3):
            logits = x[:, :N].astype(jnp.float32)
            settings = {"k": K, "router": Router("softmax", "renormalize"), "policy": Lynx(1.0, 1)}
            routed = MOSAIC.route(logits, routing.live, phase=Phase.DECODE, **settings)
            x = MOSAIC(x, routed, weights, form=ExpertForm(), phase=Phase.DECODE)
        return x

    eqns = jax.make_jaxpr(step)(x).eqns
    for name in ("route", "expert_ffn"):
        bodies = [eqn.params["jaxpr"] for eqn in eqns if eqn.params.get("name") == name]
        assert len(bodies) == 3
        assert len(set(map(id, bodies))) == 1


def test_a_whole_model_decodes_as_with_the_reference():
    """The architecture of a golden checkpoint, at the smallest widths that kernels take."""
    raw = {**read_config(GOLDEN / "qwen3_moe"), **CHANGES}
    family = get_family(raw["model_type"])
    config = family.config_class.from_dict(raw)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (3, 2))
    logits = {}
    for backend in (ReferenceBackend(), MOSAIC):
        model = family.model_class(config, backend=backend, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        with plgpu.force_gpu_interpret_mode():
            found = decode(model, ids, np.array([True, False, True]))
        logits[backend.name] = np.asarray(found, np.float32)[[0, 2]]
    assert np.ptp(logits["reference"]) > 1
    np.testing.assert_allclose(logits["mosaic"], logits["reference"], rtol=0, atol=0.05)


@pytest.fixture
def on(monkeypatch):
    def use(device):
        monkeypatch.setattr(jax, "devices", lambda: [device])

    return use


GOOD = ExpertSizes(D, F, jnp.bfloat16)
SOFTMAX = Router("softmax", "renormalize")
GOOD_ROUTER = LayerRouter(SOFTMAX, k=32, num_experts=256)


def test_auto_takes_mosaic_where_it_can_and_says_why(on, caplog):
    on(H200)
    with caplog.at_level(logging.INFO, logger="lynx_jax.backends"):
        backend = get_backend("auto", [GOOD])
    assert (backend.name, backend.device) == ("mosaic", "H200")
    assert caplog.messages[-1].startswith("expert backend: mosaic (its kernels take")
    assert hash(backend) == hash(get_backend("mosaic", [GOOD], [GOOD_ROUTER]))


REFUSED = [
    (Device("cpu", "cpu", ""), GOOD, r"expected a GPU of compute capability 9\.x .*, got cpu"),
    (Device("gpu", "NVIDIA B200", "10.0"), GOOD, r"got NVIDIA B200 \(capability 10\.0\)"),
    (Device("gpu", "NVIDIA A100", "8.0"), GOOD, r"got NVIDIA A100 \(capability 8\.0\)"),
    (H200, ExpertSizes(D, F, jnp.float32), "expected experts in bfloat16, got float32"),
    (H200, ExpertSizes(D, 96, jnp.bfloat16), "multiples of 64, got 64, 96"),
]


@pytest.mark.parametrize(("device", "sizes", "why"), REFUSED)
def test_what_mosaic_refuses_is_one_line_and_auto_takes_loop(on, caplog, device, sizes, why):
    on(device)
    with pytest.raises(InputError, match=f"{why}; --backend loop takes any") as raised:
        get_backend("mosaic", [GOOD, sizes])
    assert "\n" not in str(raised.value)
    with caplog.at_level(logging.INFO, logger="lynx_jax.backends"):
        assert get_backend("auto", [GOOD, sizes]).name == "loop"
    assert "(not mosaic: expected" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("router", "why"),
    [
        (LayerRouter(SOFTMAX, 8, 264), "kernels take 256 experts, the layer has 264"),
        (LayerRouter(SOFTMAX, 33, 256), "up to 32 experts a row, the layer uses 33"),
        (LayerRouter(Router("sparsemixer", "own"), 2, 16), "do not score by sparsemixer"),
    ],
)
def test_routers_that_mosaic_refuses_leave_auto_its_experts(on, router, why):
    on(H200)
    advice = "--backend auto routes in plain JAX and takes mosaic's experts"
    with pytest.raises(InputError, match=f"expert backend mosaic: .*{why}; {advice}") as raised:
        get_backend("mosaic", [GOOD], [GOOD_ROUTER, router])
    assert "\n" not in str(raised.value)
    assert get_backend("auto", [GOOD], [GOOD_ROUTER, router]).name == "mosaic"


def test_a_checkpoints_router_is_looked_at_before_it_is_loaded(on, monkeypatch, tmp_path):
    on(H200)
    monkeypatch.setattr(backends, "layer_refusal", lambda *sizes: None)  # D and F are small
    tokenizer_only = shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(GOLDEN / "qwen3_moe", tmp_path, ignore=tokenizer_only, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "phimoe", tmp_path, dirs_exist_ok=True)
    with pytest.raises(InputError, match="do not score by sparsemixer"):
        load(tmp_path, backend="mosaic")
    assert load(tmp_path, backend="auto").backend_name == "mosaic"
    assert load(GOLDEN / "qwen3_moe", backend="mosaic").backend_name == "mosaic"


def test_a_checkpoint_is_looked_at_before_it_is_loaded(on):
    on(H200)
    with pytest.raises(InputError, match="multiples of 64, got 36, 14"):
        load(GOLDEN / "qwen3_moe", backend="mosaic", dtype="bfloat16")
    with pytest.raises(InputError, match="in bfloat16, got float32"):
        load("demo", backend="mosaic", dtype="float32")

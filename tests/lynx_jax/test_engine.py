import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.backends import get_backend
from lynx_jax.engine import Engine
from lynx_jax.errors import InputError
from lynx_jax.models import MixtralConfig, MixtralForCausalLM
from lynx_jax.models.rope import Rope
from lynx_jax.policies import OEA, Lynx, Policy, TopK, XShare
from lynx_jax.requests import Request, SamplingParams, TokenEvent
from lynx_jax.sampling import SamplingFlags
from tests.lynx_jax.fake_model import EXPERTS_PER_ROW, VOCAB, FakeModel, expected_text

_PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3], list(range(1, 20)), [8, 9], [7] * 17, [2, 7]]


def _engine(*, slots: int = 3, policy: Policy | None = None, **options: object) -> Engine:
    return Engine(
        FakeModel(),
        slots=slots,
        max_len=48,
        vocab_size=VOCAB,
        policy=TopK() if policy is None else policy,
        **options,
    )


def _run(engine: Engine, requests: list[Request]) -> list[list[int]]:
    ids = [engine.submit(request) for request in requests]
    texts: dict[int, list[int]] = {id_: [] for id_ in ids}
    while engine.busy:
        for event in engine.step():
            texts[event.request_id].append(event.token_id)
    return [texts[id_] for id_ in ids]


def _requests(new: int = 9, **options: object) -> list[Request]:
    return [Request(tuple(prompt), new + i, **options) for i, prompt in enumerate(_PROMPTS)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return _engine(eos_token_ids=(11, 30))


@pytest.fixture(scope="module")
def tiny_mixtral() -> MixtralForCausalLM:
    config = MixtralConfig(
        model_type="mixtral",
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope=Rope(1e4),
        sliding_window=None,
        tie_word_embeddings=False,
        num_experts=8,
        num_experts_per_tok=2,
        intermediate_size=12,
    )
    return MixtralForCausalLM(
        config, backend=get_backend("reference"), dtype=jnp.float32, rngs=nnx.Rngs(0)
    )


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_more_requests_than_slots_give_the_texts_they_should(slots: int) -> None:
    engine = _engine(slots=slots, eos_token_ids=(11, 30))
    expected = [
        expected_text(list(r.prompt_ids), r.max_new_tokens, frozenset({11, 30}))
        for r in _requests()
    ]
    assert any(len(text) < r.max_new_tokens for text, r in zip(expected, _requests(), strict=True))
    for engine.lookahead in (True, False):
        assert _run(engine, _requests()) == expected


def test_ignored_eos_goes_on_to_the_length(engine: Engine) -> None:
    texts = _run(engine, _requests(ignore_eos=True))
    assert texts == [expected_text(list(r.prompt_ids), r.max_new_tokens) for r in _requests()]


def test_finish_reasons(engine: Engine) -> None:
    ids = {}
    for prompt in _PROMPTS:
        for new in (1, 2, 9):
            text = expected_text(prompt, new, frozenset({11, 30}))
            ended = text[-1] in (11, 30)
            ids[engine.submit(Request(tuple(prompt), new))] = "eos" if ended else "length"
    events: list[TokenEvent] = []
    while engine.busy:
        events += engine.step()
    assert {e.request_id: e.finish_reason for e in events if e.finish_reason} == ids
    assert set(ids.values()) == {"eos", "length"}


def test_rows_of_a_real_model_do_not_depend_on_their_mates(
    tiny_mixtral: MixtralForCausalLM,
) -> None:
    engine = Engine(tiny_mixtral, slots=3, max_len=48, vocab_size=VOCAB, policy=TopK())
    together = _run(engine, _requests())
    assert together == [_run(engine, [request])[0] for request in _requests()]
    assert len({tuple(text[:5]) for text in together}) > 3


def test_greedy_equals_repeated_full_passes(tiny_mixtral: MixtralForCausalLM) -> None:
    engine = Engine(tiny_mixtral, slots=2, max_len=48, vocab_size=VOCAB, policy=TopK())
    prompt = [5, 9, 2, 6]
    tokens = list(prompt)
    full_pass = nnx.jit(lambda model, ids, live: model(ids, live=live))
    for _ in range(8):
        padded = jnp.array([tokens + [0] * (16 - len(tokens))])
        logits = full_pass(tiny_mixtral, padded, jnp.arange(16)[None] < len(tokens))
        tokens.append(int(jnp.argmax(logits[0, len(tokens) - 1])))
    assert _run(engine, [Request(tuple(prompt), 8)])[0] == tokens[4:]


def test_finished_rows_are_not_live() -> None:
    """A text of n tokens takes part in n - 1 decode steps: the experts of its rows add up to it."""
    engine = _engine(slots=4)
    requests = [Request((i,), new) for i, new in enumerate([1, 2, 5, 9])]
    for engine.lookahead in (True, False):
        _run(engine, requests)
        stats = engine.take_stats()
        assert stats.decode_tokens == sum(r.max_new_tokens - 1 for r in requests)
        assert stats.decode_steps == 8
        assert stats.mean_rows == pytest.approx(13 / 8)
        assert stats.experts_per_layer == pytest.approx(EXPERTS_PER_ROW * 13 / 8)


def test_policy_acts_in_decode_only_and_is_measured_against_topk() -> None:
    engine = _engine(policy=Lynx(3.0, 4))
    _run(engine, _requests())
    stats = engine.take_stats()
    assert stats.topk_experts_per_layer == pytest.approx(2 * stats.experts_per_layer)
    assert stats.prefill_tokens == sum(len(prompt) for prompt in _PROMPTS)


@pytest.mark.parametrize("lookahead", [True, False])
def test_cancelled_request_ends_and_frees_its_slot(lookahead: bool) -> None:
    engine = _engine(slots=2, lookahead=lookahead)
    first, second, third = (engine.submit(Request(tuple(p), 12)) for p in _PROMPTS[:3])
    texts: dict[int, list[int]] = {first: [], second: [], third: []}
    while engine.busy:
        for event in engine.step():
            texts[event.request_id].append(event.token_id)
            if event.request_id == first and len(texts[first]) == 4:
                engine.cancel(first)
    assert texts[first] == expected_text(_PROMPTS[0], 4)
    assert texts[second] == expected_text(_PROMPTS[1], 12)
    assert texts[third] == expected_text(_PROMPTS[2], 12)
    wasted = 1 if lookahead else 0
    assert engine.take_stats().decode_tokens == 3 + 11 + 11 + wasted


def test_waiting_request_can_be_cancelled() -> None:
    engine = _engine(slots=1)
    first, second = (engine.submit(Request((1, 2), 3)) for _ in range(2))
    engine.cancel(second)
    events: list[TokenEvent] = []
    while engine.busy:
        events += engine.step()
    assert {event.request_id for event in events} == {first}


def test_nothing_compiles_after_warm_up() -> None:
    engine = _engine(flags=SamplingFlags(draw=True, top_k=True, penalty=True))
    params = [SamplingParams(), SamplingParams(temperature=1, top_k=3, repetition_penalty=1.2)]
    engine.warm_up(len(prompt) for prompt in _PROMPTS)
    compiled: list[str] = []

    def listener(event: str, _seconds: float, **_: object) -> None:
        if "compile" in event or "trace" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for new in (2, 7):
            _run(engine, [Request(tuple(p), new, params[i % 2]) for i, p in enumerate(_PROMPTS)])
        engine.submit(Request((1, 2), 9))
        engine.step()
        engine.cancel(engine.submit(Request((1, 2), 9)) - 1)
        while engine.busy:
            engine.step()
        assert compiled == []
        jax.jit(lambda x: x + 1.5)(np.float32(1))
        assert compiled
    finally:
        jax.monitoring.clear_event_listeners()


def test_warm_up_leaves_no_trace_in_the_texts() -> None:
    engine = _engine()
    engine.warm_up([3, 30])
    assert _run(engine, [Request((3, 1, 4), 9)]) == [expected_text([3, 1, 4], 9)]
    assert engine.take_stats().decode_steps == 8


def test_compile_time_is_kept_apart() -> None:
    engine = _engine()
    engine.warm_up([3])
    assert engine.take_stats().compile_seconds > 0
    _run(engine, [Request((3, 1, 4), 9)])
    assert engine.take_stats().compile_seconds == 0


def test_cache_is_donated() -> None:
    engine = _engine()
    before = engine._state
    engine.warm_up([3])
    assert before.cache.is_deleted()
    cache = engine._state.cache
    _run(engine, [Request((3, 1, 4), 3)])
    assert cache.is_deleted()


def test_prefill_program_holds_no_trace_of_the_policy(tiny_mixtral: MixtralForCausalLM) -> None:
    prefill, decode = set(), set()
    for policy in (TopK(), Lynx(3.0, 4), Lynx(0.7, 1), OEA(1), XShare(4)):
        engine = Engine(tiny_mixtral, slots=3, max_len=48, vocab_size=VOCAB, policy=policy)
        prefill.add(engine.lower_prefill(9).as_text())
        decode.add(engine.lower_decode().as_text())
    assert len(prefill) == 1
    assert len(decode) == 5


def test_prompts_share_programs_by_power_of_two() -> None:
    engine = _engine()
    engine.warm_up([1, 15, 16, 17, 32, 33, 48])
    assert sorted(engine._prefill) == [16, 32, 48]


def test_seed_fixes_a_sampled_text_whatever_runs_beside_it() -> None:
    params = [SamplingParams(temperature=9.0, seed=seed) for seed in (1, 2, 1)]
    engine = _engine(flags=SamplingFlags.covering(params))
    first, second, third = _run(engine, [Request((3, 1), 9, p) for p in params])
    assert first == third != second
    assert _run(engine, [Request((3, 1), 9, params[1])])[0] == second


def test_repetition_penalty_sees_prompt_and_text() -> None:
    params = SamplingParams(repetition_penalty=1000.0)
    engine = _engine(flags=SamplingFlags.covering([params]))
    text = _run(engine, [Request((3, 1, 4), 12, params)])[0]
    assert len({3, 1, 4, *text}) == 15


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((1,) * 40, 9), "at most 48 tokens"),
        (Request((1, VOCAB), 9), "token ids from 0 to 60, got 61"),
        (Request((-1,), 9), "token ids from 0 to 60, got -1"),
    ],
)
def test_requests_that_do_not_fit_are_refused(
    engine: Engine, request_: Request, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        engine.submit(request_)
    assert not engine.busy

import inspect
import logging

import pytest

import lynx_jax
from lynx_jax.comparison import agreement, compare
from lynx_jax.errors import InputError
from lynx_jax.generation import GenerationResult, Generator, generate
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import OEA, Demand, Lynx, TopK
from lynx_jax.policy_forms import DEFAULT_POLICY
from lynx_jax.requests import SamplingParams
from lynx_jax.tokenizer import Tokenizer
from tests.lynx_jax.conftest import byte_fallback_backend
from tests.lynx_jax.fake_model import fake_checkpoint

_PROMPTS = ["the fox", "stop.", "a quick fox the"]


@pytest.fixture(scope="module")
def loaded(letters: Tokenizer) -> LoadedModel:
    return fake_checkpoint(letters)


@pytest.fixture(scope="module")
def generator(loaded: LoadedModel) -> Generator:
    return Generator(loaded, policy="off", max_batch=2)


def test_results_come_in_the_order_of_the_prompts(
    generator: Generator, loaded: LoadedModel
) -> None:
    batch = generator.generate(_PROMPTS, max_new_tokens=6)
    for prompt, result in zip(_PROMPTS, batch.results, strict=True):
        ids = loaded.tokenizer.encode(prompt)
        assert result.prompt_tokens == len(ids)
        assert len(result.token_ids) <= 6
        whole = loaded.tokenizer.decode([*ids, *result.token_ids])
        assert whole == loaded.tokenizer.decode(ids) + result.text
        assert generator.generate(prompt, max_new_tokens=6).results == (result,)
    assert batch.stats.prefill_tokens == sum(r.prompt_tokens for r in batch.results)


def test_pieces_join_to_the_texts_and_results_come_once(generator: Generator) -> None:
    pieces: dict[int, list[str]] = {0: [], 1: [], 2: []}
    results: dict[int, GenerationResult] = {}
    batch = generator.generate(
        _PROMPTS,
        max_new_tokens=9,
        on_text=lambda index, piece: pieces[index].append(piece),
        on_result=lambda index, result: results.setdefault(index, result),
    )
    assert ["".join(pieces[i]) for i in range(3)] == [r.text for r in batch.results]
    assert all(piece for index in pieces for piece in pieces[index])
    assert tuple(results[i] for i in range(3)) == batch.results


def test_stop_string_cuts_the_text_and_ends_the_row(generator: Generator) -> None:
    full = generator.generate(_PROMPTS, max_new_tokens=12, ignore_eos=True)
    stop = full.results[0].text[3:5]
    cut, same = (
        generator.generate(_PROMPTS, max_new_tokens=12, ignore_eos=True, stop=given)
        for given in ([stop], stop)
    )
    assert same.results == cut.results
    first = cut.results[0]
    assert first.finish_reason == "stop"
    assert first.text == full.results[0].text[: full.results[0].text.index(stop)]
    assert len(first.token_ids) < 12
    assert cut.stats.decode_tokens == sum(len(r.token_ids) - 1 for r in cut.results)


def test_end_of_text_token_is_kept_in_the_ids_only(loaded: LoadedModel) -> None:
    """An ordinary token can end a text too; its own text must not show."""
    result = generate(loaded, "the fox", policy="off", max_new_tokens=8).results[0]
    ends = LoadedModel(**{**vars(loaded), "eos_token_ids": frozenset({result.token_ids[4]})})
    cut = generate(ends, "the fox", policy="off", max_new_tokens=8).results[0]
    assert cut.finish_reason == "eos"
    assert cut.token_ids == result.token_ids[:5]
    assert len(cut.text) < len(result.text)
    assert result.text.startswith(cut.text)


def test_token_ids_and_messages_are_prompts(loaded: LoadedModel) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}"
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    chat = fake_checkpoint(Tokenizer(byte_fallback_backend(with_bytes=False), config, template))
    ids = loaded.tokenizer.encode("the fox")
    messages = [{"role": "user", "content": "the fox"}]
    batch = generate(chat, ["the fox", ids, messages], policy="off", max_new_tokens=5)
    tokens = [result.token_ids for result in batch.results]
    assert tokens[0] == tokens[1] == tokens[2]
    with pytest.raises(InputError, match="no chat template"):
        generate(loaded, [messages])


def test_answers_to_messages_drop_the_leading_space() -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    template = "{{ bos_token }}{{ messages[0].content }}"
    chat = fake_checkpoint(Tokenizer(byte_fallback_backend(with_bytes=False), config, template))
    prompts = [[{"role": "user", "content": text}] for text in ("the", "fox", "a", "s", "to", "p")]
    batch = generate(chat, prompts, policy="off", max_new_tokens=4, ignore_eos=True)
    texts = [chat.tokenizer.decode(result.token_ids) for result in batch.results]
    assert [result.text for result in batch.results] == texts


def test_empty_text_starts_from_the_opening_token(loaded: LoadedModel) -> None:
    assert generate(loaded, "", max_new_tokens=2).results[0].prompt_tokens >= 1


def test_text_is_clamped_to_the_context(
    letters: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = fake_checkpoint(letters, context=20)
    with caplog.at_level(logging.WARNING):
        result = generate(loaded, "the fox", max_new_tokens=50, ignore_eos=True).results[0]
    assert result.prompt_tokens + len(result.token_ids) == 20
    assert result.finish_reason == "length"
    assert "leaves less than 50 for the texts of 1 of 1 prompts" in caplog.text


def test_later_calls_compile_nothing_new(generator: Generator) -> None:
    generator.generate(_PROMPTS, max_new_tokens=12)
    engine = generator._engine
    batch = generator.generate(_PROMPTS, max_new_tokens=5)
    assert generator._engine is engine
    assert batch.stats.compile_seconds < 0.05


def test_prompts_take_their_own_seeds(loaded: LoadedModel) -> None:
    params = SamplingParams(temperature=50.0, seed=2**32 - 2)
    generator = Generator(loaded, policy="off")
    batch = generator.generate(["the"] * 3, max_new_tokens=8, sampling=params)
    again = generator.generate(["the"] * 3, max_new_tokens=8, sampling=params)
    assert batch.results == again.results
    assert len({result.token_ids for result in batch.results}) == 3


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "at least one prompt"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens of at least 1"),
        (["a"], {"max_batch": 0}, "max_batch of at least 1"),
        (["a"], {"policy": "nonsense"}, "not known"),
        (["a"], {"policy": OEA(k0=40)}, "oea: expected k0 of at most"),
        (["a"], {"policy": "xshare:budget=2"}, "expected a budget"),
        (["a", "the fox" * 20], {}, "prompt 2 has .* tokens, expected at most 63"),
        (["a", []], {}, "prompt 2 is empty"),
        ([[5, "x"]], {}, "prompt 1: expected text, token ids or messages"),
        ([3.5], {}, "prompt 1: expected text, token ids or messages"),
        ([[5, 100_000]], {}, "expected token ids from 0 to"),
        (["a"], {"stop": [""]}, "empty"),
    ],
)
def test_bad_input_is_refused(
    loaded: LoadedModel, prompts: list[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generate(loaded, prompts, **options)


def test_empty_prompt_without_an_opening_token_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InputError, match="prompt 1 is empty"):
        generate(fake_checkpoint(byte_level), "")


def test_compare_runs_both_and_sets_them_side_by_side(loaded: LoadedModel) -> None:
    result = compare(loaded, _PROMPTS, policy=Lynx(3.0, 4), max_new_tokens=6)
    # The fake model's text does not depend on the policy; its experts do.
    assert result.off.results == result.on.results
    assert all(row.identical and row.equal_share == 1 for row in result.agreements)
    assert result.experts_ratio == pytest.approx(2)
    assert result.tpot_ratio > 0
    assert "3 of 3 identical" in str(result)


@pytest.mark.parametrize(
    ("a", "b", "before", "share"),
    [((1, 2, 3), (1, 2, 3), 3, 1.0), ((1, 2, 3, 4), (1, 9, 3), 1, 0.5), ((1, 2), (1,), 1, 0.5)],
)
def test_agreement(a: tuple[int, ...], b: tuple[int, ...], before: int, share: float) -> None:
    first, second = (GenerationResult("", ids, 1, "length") for ids in (a, b))
    row = agreement(first, second)
    assert (row.equal_before_difference, row.equal_share) == (before, share)
    assert row.identical == (a == b)


def test_policies_are_given_as_values_or_text(loaded: LoadedModel) -> None:
    assert Generator(loaded).policy == Demand.for_model(4, 64)
    assert Generator(loaded, policy="off").policy == TopK()
    assert Generator(loaded, policy="lynx").policy == Lynx.for_model(4, 64)
    assert Generator(loaded, policy=OEA(2)).policy == OEA(2)


def test_every_way_in_has_the_same_default() -> None:
    for function in (lynx_jax.generate, lynx_jax.compare, Generator):
        assert inspect.signature(function).parameters["policy"].default == DEFAULT_POLICY


def test_generate_is_a_function_of_the_package(loaded: LoadedModel) -> None:
    assert lynx_jax.generate(loaded, "the", max_new_tokens=2).results

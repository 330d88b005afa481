import json
from pathlib import Path

import pytest

from lynx_jax.chat import ChatTemplate
from lynx_jax.errors import InputError
from lynx_jax.tokenizer import Tokenizer

_CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_HI = [{"role": "user", "content": "Hi"}]


def _configure(folder: Path, **values: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_special_tokens_may_be_text_or_objects(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}


def test_special_tokens_map_counts_where_the_config_is_silent(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer.from_folder(folder).eos_token_ids == {2}


def test_no_eos_token_is_no_error(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.from_folder(folder).eos_token_ids == frozenset()


def test_encode_adds_bos_once_and_only_when_asked(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    plain = tokenizer.encode("the fox", add_special_tokens=False)
    assert tokenizer.encode("the fox") == [1, *plain]
    assert 1 not in plain
    assert tokenizer.decode([1, *plain, 2]) == "the fox"


@pytest.mark.parametrize(
    ("config", "opening", "closing"),
    [
        ({}, [1], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_eos_token": False}, [1], []),
    ],
)
def test_config_decides_about_the_ends(
    folder: Path, config: dict[str, bool], opening: list[int], closing: list[int]
) -> None:
    plain = Tokenizer.from_folder(folder).encode("fox", add_special_tokens=False)
    _configure(folder, **config)
    assert Tokenizer.from_folder(folder).encode("fox") == [*opening, *plain, *closing]


def test_bos_written_by_the_user_is_kept(folder: Path) -> None:
    _configure(folder, add_bos_token=True)
    tokenizer = Tokenizer.from_folder(folder)
    plain = tokenizer.encode("<s>fox", add_special_tokens=False)
    assert plain[0] == 1
    assert tokenizer.encode("<s>fox") == [1, *plain]


def test_text_that_is_no_unicode_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="surrogate"):
        Tokenizer.from_folder(folder).encode("a\udcff")


def test_token_that_only_the_config_calls_special_is_skipped(folder: Path) -> None:
    _configure(folder, pad_token="▁stop", unk_token="[beyond the vocabulary]")
    tokenizer = Tokenizer.from_folder(folder)
    stop = next(id_ for id_, text in tokenizer.special_tokens.items() if text == "▁stop")
    assert tokenizer.decode([stop]) == ""
    assert "[beyond the vocabulary]" not in tokenizer.special_tokens.values()


@pytest.mark.parametrize(
    "config",
    [
        {"additional_special_tokens": ["▁stop"]},
        {"extra_special_tokens": ["▁stop"]},
        {"extra_special_tokens": {"stop_token": "▁stop"}},
    ],
)
def test_further_special_tokens(folder: Path, config: dict[str, object]) -> None:
    _configure(folder, **config)
    assert "▁stop" in Tokenizer.from_folder(folder).special_tokens.values()


def test_truncation_and_padding_of_the_file_are_off(folder: Path) -> None:
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(raw))
    assert len(Tokenizer.from_folder(folder).encode("the quick fox stop")) > 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", _CHAT),
        ("chat_template.json", json.dumps({"chat_template": _CHAT})),
        ("tokenizer_config.json", json.dumps({"bos_token": "<s>", "chat_template": _CHAT})),
        (
            "tokenizer_config.json",
            json.dumps(
                {
                    "bos_token": "<s>",
                    "chat_template": [
                        {"name": "tool_use", "template": "no"},
                        {"name": "default", "template": _CHAT},
                    ],
                }
            ),
        ),
    ],
)
def test_chat_template_is_found_in_each_place(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    tokenizer = Tokenizer.from_folder(folder)
    prompt = tokenizer.apply_chat_template(_HI)
    assert prompt == "<s>[user] Hi\n[assistant]"
    assert tokenizer.encode(prompt, add_special_tokens=False).count(1) == 1


def test_template_file_outranks_the_config(folder: Path) -> None:
    _configure(folder, chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_folder(folder).apply_chat_template(_HI) == "file"


def test_generation_prompt_can_be_left_out(folder: Path) -> None:
    _configure(folder, chat_template=_CHAT)
    prompt = Tokenizer.from_folder(folder).apply_chat_template(_HI, add_generation_prompt=False)
    assert prompt == "<s>[user] Hi\n"


def test_no_chat_template_is_an_error(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(InputError, match="no chat template"):
        tokenizer.apply_chat_template(_HI)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "expected tokenizer.json"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("tokenizer_config.json", "{", "expected JSON"),
        ("tokenizer_config.json", "[]", "expected a JSON object"),
        ("tokenizer_config.json", '{"eos_token": 3}', "expected 'eos_token' as text"),
        ("tokenizer_config.json", '{"chat_template": 3}', "expected 'chat_template'"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "rag"}]}', "named 'default'"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "not valid Jinja"),
        ("chat_template.json", "{}", "expected 'chat_template'"),
    ],
)
def test_malformed_files_are_one_line_errors(
    folder: Path, name: str, content: str | None, message: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(caught.value)


def test_file_that_is_not_utf8_is_an_error(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        Tokenizer.from_folder(folder)


class TestChatTemplate:
    def test_tojson_leaves_text_as_it_is(self) -> None:
        template = ChatTemplate("{{ messages[0] | tojson }}", {})
        message = {"role": "user", "content": "<é> & 'q'"}
        assert json.loads(template.render([message])) == message
        assert "<é>" in template.render([message])

    def test_tojson_takes_an_indent(self) -> None:
        template = ChatTemplate("{{ messages | tojson(indent=2) }}", {})
        assert template.render(_HI) == json.dumps(_HI, indent=2)

    def test_blocks_are_trimmed(self) -> None:
        template = ChatTemplate("  {% if true %}\na\n  {% endif %}\n", {})
        assert template.render(_HI) == "a\n"

    def test_generation_block_is_its_content(self) -> None:
        template = ChatTemplate(
            "a{% generation %}{{ messages[0].content }}{% endgeneration %}b", {}
        )
        assert template.render(_HI) == "aHib"

    def test_loop_controls(self) -> None:
        template = ChatTemplate(
            "{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", {}
        )
        assert template.render(_HI) == "01"

    def test_strftime_now(self) -> None:
        assert ChatTemplate("{{ strftime_now('%%') }}", {}).render(_HI) == "%"

    def test_variables_reach_the_template(self) -> None:
        template = ChatTemplate("{{ enable_thinking }}{{ tools is none }}", {})
        assert template.render(_HI, enable_thinking=False) == "FalseTrue"

    def test_refusal_is_an_input_error(self) -> None:
        template = ChatTemplate("{{ raise_exception('roles must\nalternate') }}", {})
        with pytest.raises(InputError, match="roles must alternate"):
            template.render(_HI)

    @pytest.mark.parametrize(
        "source", ["{{ 1 // 0 }}", "{{ '%d' % 'a' }}", "{{ range(10 ** 9) | list }}"]
    )
    def test_failing_template_is_an_input_error(self, source: str) -> None:
        with pytest.raises(InputError, match="refuses these messages"):
            ChatTemplate(source, {}).render(_HI)

    @pytest.mark.parametrize(
        "source",
        ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].x.y }}"],
    )
    def test_sandbox_holds(self, source: str) -> None:
        with pytest.raises(InputError):
            ChatTemplate(source, {}).render(_HI)

    @pytest.mark.parametrize(
        "messages",
        [[], "Hi", [{"content": "x"}], [{"role": 1, "content": "x"}], [{"role": "a"}], 5],
    )
    def test_malformed_messages_are_refused(self, messages: object) -> None:
        with pytest.raises(InputError, match="expected"):
            ChatTemplate("x", {}).render(messages)

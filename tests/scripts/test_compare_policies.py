"""The paired comparison of policies."""

import json

import compare_policies
import numpy as np
import pytest
import tokenizers

from lynx_jax.tokenizer import Tokenizer


@pytest.fixture
def text(tmp_path):
    """A file of two domains, 1,900 and 600 words: 9 and 3 windows."""
    file = tmp_path / "text.jsonl"
    texts = {"a": range(1000), "b": range(3000, 3600), "a ": range(1000, 1900)}
    lines = [
        json.dumps({"domain": domain.strip(), "text": " ".join(f"w{i}" for i in words)})
        for domain, words in texts.items()
    ]
    file.write_text("\n".join(lines))
    return file


def test_windows_do_not_overlap_and_domains_take_turns(text):
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(4000)}, unk_token="w0")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    windows = compare_policies.windows_of(text, Tokenizer(backend, {}), 8)
    assert len(np.unique(windows)) == windows.size
    assert (np.diff(windows, axis=1) == 1).all()
    assert sum(window[0] >= 3000 for window in windows) == 3
    with pytest.raises(SystemExit, match="at most 12 windows"):
        compare_policies.windows_of(text, Tokenizer(backend, {}), 13)


def test_the_error_over_batches_sees_what_rows_of_a_batch_share():
    values = np.repeat([1.0, 3.0], 4)
    got = compare_policies.paired(values, 4)
    assert got["mean"] == 2
    np.testing.assert_allclose(got["batches"], 1.0)
    np.testing.assert_allclose(got["windows"], np.sqrt(8 / 7 / 8))

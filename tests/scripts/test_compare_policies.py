"""The paired comparison of policies."""

import compare_policies
import numpy as np
import pytest
import tokenizers

from lynx_jax.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path):
    """Two domains of numbered words, of which the last two fifths are tested."""
    words = {f"w{i}": i for i in range(4000)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    np.save(tmp_path / "held_out_a_tokens.npy", np.arange(3000))
    np.save(tmp_path / "held_out_b_tokens.npy", np.arange(3000, 4000))
    return tmp_path


def test_windows_do_not_overlap_and_leave_out_the_text_settings_were_chosen_on(folder):
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    windows = compare_policies.held_out_windows(folder, Tokenizer(backend, {}), 8)
    assert len(np.unique(windows)) == windows.size
    assert (np.diff(windows, axis=1) == 1).all()
    assert ((windows >= 3600) | ((windows >= 1800) & (windows < 3000))).all()
    with pytest.raises(SystemExit, match="at most 8 windows"):
        compare_policies.held_out_windows(folder, Tokenizer(backend, {}), 9)


def test_the_error_over_batches_sees_what_rows_of_a_batch_share():
    values = np.repeat([1.0, 3.0], 4)
    got = compare_policies.paired(values, 4)
    assert got["mean"] == 2
    np.testing.assert_allclose(got["batches"], 1.0)
    np.testing.assert_allclose(got["windows"], np.sqrt(8 / 7 / 8))

"""Every family decodes in bfloat16, near to the reference in float32."""

import numpy as np
import pytest

from tests.models.golden import decode, expected, load

FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "llama4_text",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
)
STEPS = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_decodes_in_bfloat16(family):
    ids, logits = (expected(family)[name][:, :STEPS] for name in ("input_ids", "logits"))
    model = load(family, "loop", "bfloat16").model
    found = np.asarray(decode(model, ids, np.ones(len(ids), bool)))
    assert found.dtype == np.float32
    assert np.median(np.abs(found - logits)) < 0.05 * logits.std()

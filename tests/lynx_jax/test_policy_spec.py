"""Policies written as text."""

import dataclasses

import pytest

from lynx_jax.errors import InputError
from lynx_jax.policies import OEA, Demand, Lynx, TopK, XShare
from lynx_jax.policy_spec import parse_policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("off", TopK()),
        ("lynx", Lynx.for_model(8, 64)),
        ("lynx:floor=1", Lynx(4.0, 4, floor=1)),
        ("lynx:alpha=0.7,beta=1", Lynx(0.7, 1)),
        (" lynx: alpha=3, beta=4 ,floor=1,min_rows=3", Lynx(3.0, 4, floor=1, min_rows=3)),
        ("lynx:preset=authors", Lynx(3.0, 4)),
        ("lynx:floor=2, preset=authors", Lynx(3.0, 4, floor=2)),
        ("demand", Demand(0.045, power=3.0, row_power=0.5, damping=0.5)),
        ("demand:power=2", dataclasses.replace(Demand.for_model(8, 64), power=2.0)),
        ("demand:threshold=0.125,min_rows=4", Demand(0.125, min_rows=4)),
        ("oea:k0=4", OEA(4)),
        ("xshare:budget=32", XShare(32)),
        ("xshare:budget=32,k0=2", XShare(32, k0=2)),
        ("oea:k0=4,damping=0.5", OEA(4, damping=0.5)),
        ("lynx:damping=0.25", dataclasses.replace(Lynx.for_model(8, 64), damping=0.25)),
    ],
)
def test_forms(text, policy):
    assert parse_policy(text, k=8, num_experts=64) == policy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected one of: off, demand"),
        ("fast", "'fast' is not known"),
        ("off:k0=1", "takes no settings"),
        ("lynx:alpha=3", "expected a value for beta"),
        ("lynx:gamma=3", "got 'gamma=3'"),
        ("lynx:alpha", "got 'alpha'"),
        ("lynx:alpha=x,beta=1", "alpha as a number, got 'x'"),
        ("lynx:alpha=nan,beta=1", "alpha above 0"),
        ("lynx:alpha=1,beta=1.5", "beta as a whole number"),
        ("oea:k0=" + "9" * 5000, "k0 as a whole number"),
        ("lynx:damping=" + "9" * 5000, "damping from 0 to 1, got inf"),
        ("lynx:alpha=1,alpha=2,beta=1", "given twice"),
        ("lynx:alpha=1e39,beta=1", "alpha above 0 and up to 1e\\+06"),
        ("lynx:alpha=3,beta=2000000", "beta from 1 to 1000"),
        ("lynx:min_rows=99999999999", "min_rows from 1"),
        ("lynx:preset=theirs", "expected preset=authors, got 'theirs'"),
        ("lynx:preset=authors,beta=2", "expected a preset or constants, got beta too"),
        ("oea:preset=authors", "expected settings out of k0, min_rows, damping"),
        ("oea", "expected a value for k0"),
        ("demand:threshold=-1", "threshold from"),
        ("oea:k0=9", "at most k=8"),
        ("xshare:budget=4", "budget from k=8"),
        ("xshare:budget=100", "to the layer's 64"),
    ],
)
def test_nonsense_is_refused_in_one_line(text, says):
    with pytest.raises(InputError, match=says) as caught:
        parse_policy(text, k=8, num_experts=64)
    assert "\n" not in str(caught.value)

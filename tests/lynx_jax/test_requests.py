import subprocess
import sys

import pytest

from lynx_jax.errors import InputError
from lynx_jax.requests import Request, SamplingParams, Scheduler


def _request(new: int = 3) -> Request:
    return Request(prompt_ids=(1, 2), max_new_tokens=new)


def test_requests_take_free_slots_in_the_order_they_came() -> None:
    scheduler = Scheduler(2)
    ids = [scheduler.submit(_request()) for _ in range(4)]
    first, second = scheduler.admit(), scheduler.admit()
    assert [(slot, run.request_id) for slot, run in (first, second)] == [(0, ids[0]), (1, ids[1])]
    assert not scheduler.can_admit()
    scheduler.release(1)
    slot, running = scheduler.admit()
    assert (slot, running.request_id) == (1, ids[2])
    assert scheduler.busy


def test_no_step_is_wanted_once_all_tokens_are_dispatched() -> None:
    scheduler = Scheduler(2)
    scheduler.submit(_request(new=1))
    scheduler.submit(_request(new=2))
    assert not scheduler.wants_step()
    scheduler.admit(), scheduler.admit()
    scheduler.count_dispatch()
    assert scheduler.wants_step()
    scheduler.count_dispatch()
    assert not scheduler.wants_step()
    assert scheduler.busy


def test_cancel_forgets_running_and_waiting_requests() -> None:
    scheduler = Scheduler(1)
    running, waiting, last = (scheduler.submit(_request()) for _ in range(3))
    scheduler.admit()
    assert scheduler.cancel(waiting) is None
    assert scheduler.cancel(running) == 0
    assert scheduler.cancel(99) is None
    assert scheduler.admit()[1].request_id == last


def test_request_length_is_prompt_and_text() -> None:
    assert _request(new=5).length == 7


@pytest.mark.parametrize(
    ("prompt", "new", "message"), [((), 3, "at least one token"), ((1,), 0, "max_new_tokens")]
)
def test_impossible_requests_are_refused(prompt: tuple[int, ...], new: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Request(prompt_ids=prompt, max_new_tokens=new)


def test_top_k_beyond_int32_is_refused() -> None:
    with pytest.raises(InputError, match="top_k of 0"):
        SamplingParams(temperature=1.0, top_k=2**31)


def test_scheduler_needs_no_jax() -> None:
    code = "import sys, lynx_jax.requests; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

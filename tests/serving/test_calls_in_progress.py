"""CallsInProgress: what calls use is freed after the last of them."""

import threading

import pytest

from group_embedding.serving.session.calls_in_progress import CallsInProgress


@pytest.mark.parametrize("num_calls", [1, 3])
def test_a_call_that_begins_before_the_end_is_waited_for(num_calls):
    # Given calls that begin when the end was asked for, and has not begun
    calls, in_progress_at_end = CallsInProgress(), []
    running = []
    ended = calls.ended()

    def end():
        with ended:
            in_progress_at_end.extend(running)

    for number in range(num_calls):
        calls.__enter__()
        running.append(number)
    thread = threading.Thread(target=end)
    # When the end begins while they run
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    for _ in range(num_calls):
        running.pop()
        calls.__exit__(None, None, None)
    thread.join(10)
    # Then it comes after all of them
    assert not thread.is_alive() and not in_progress_at_end

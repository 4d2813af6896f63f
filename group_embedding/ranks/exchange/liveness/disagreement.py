"""Finds ranks that wait for each other in different calls, from the list of calls of each rank."""

from typing import NamedTuple

_MOST = 8  # calls that one rank tells of


class ToldCall(NamedTuple):
    """A call in which a rank waits, as it tells the others: the fields of a PendingCall."""

    key: str  # the same on all ranks that make it
    description: str
    seconds: float  # since it began
    ranks: tuple = ()  # that make it; empty: all


def to_tell(calls):
    """Returns the oldest of a rank's pending calls, a list of PendingCall."""
    return sorted(calls, key=lambda call: -call[2])[:_MOST]


def told_calls(words):
    """The calls in a rank's words, a list of ToldCall; what has another form is none."""
    calls = words.get("waits")
    return [ToldCall(*c) for c in calls if _is_call(c)] if isinstance(calls, list) else []


def _is_call(call):
    return (
        isinstance(call, list)
        and len(call) in (3, 4)
        and isinstance(call[0], str)
        and isinstance(call[1], str)
        and type(call[2]) in (int, float)
        and (len(call) == 3 or isinstance(call[3], list))
    )


def find_disagreement(calls_of_rank, left, seconds):
    """A sentence that names two ranks which wait for each other, or for one that has left; None:
    there are none.

    A rank that waits in a call for one that is in no call at all waits for its computing: such
    ranks do not disagree.

    Args:
        calls_of_rank: {rank: what `told_calls` returned}.
        left: {rank: who it was} of ranks whose program has ended.
        seconds: for how long both must have waited.
    """
    for rank, calls in sorted(calls_of_rank.items()):
        for other, others in sorted(calls_of_rank.items()):
            mine = _alone_in(calls, others, seconds, other)
            if rank == other or not mine:
                continue
            if other in left:
                return describe_left(left[other], rank, mine.description)
            theirs = _alone_in(others, calls, seconds, rank)
            if theirs:
                return _describe_both(rank, mine, other, theirs)
    return None


def _describe_both(rank, mine, other, theirs):
    # The keys say what differs where the same call stands in other functions, or in none.
    texts = [
        f"{call.description} ('{call.key}')"
        if mine.description == theirs.description
        else call.description
        for call in (mine, theirs)
    ]
    return (
        f"the ranks disagree: rank {rank} waits in {texts[0]}, and rank {other} waits in "
        f"{texts[1]}, each for the other; make the same tables, lookups and steps, in the same "
        "order, and in the same functions, on all ranks"
    )


def describe_left(who, rank, call):
    """The sentence where a rank waits for one whose program has ended."""
    return (
        f"{who} has left: its program has ended, and rank {rank} waits for it in {call}; all ranks "
        "must take as many steps"
    )


def call_without_rank_0(calls, seconds):
    """The description of the call in which a rank waits for so long, where rank 0 has left; None:
    there is none."""
    calls = [ToldCall(*call) for call in calls]
    longest = max(calls, key=lambda call: call.seconds, default=None)
    return longest.description if longest and longest.seconds >= seconds else None


def _alone_in(calls, others, seconds, other):
    """The call that has waited longest of those that the other rank is to make, and in which it is
    not; None: there is none."""
    keys = {call.key for call in others}
    alone = [
        call
        for call in calls
        if call.key not in keys
        and call.seconds >= seconds
        and (not call.ranks or other in call.ranks)
    ]
    return max(alone, key=lambda call: call.seconds, default=None)

"""Finds ranks that wait for each other in different calls, from the list of calls of each rank."""

_MOST = 8  # calls that one rank tells of


def to_tell(calls):
    """Returns the oldest of a rank's pending calls, [(key, description, seconds)]."""
    return sorted(calls, key=lambda call: -call[2])[:_MOST]


def told_calls(words):
    """The calls in a rank's words, [(key, description, seconds)]; what has another form is none."""
    calls = words.get("waits")
    return [tuple(c) for c in calls if _is_call(c)] if isinstance(calls, list) else []


def _is_call(call):
    return (
        isinstance(call, list)
        and len(call) == 3
        and isinstance(call[0], str)
        and isinstance(call[1], str)
        and type(call[2]) in (int, float)
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
            mine = _alone_in(calls, others, seconds)
            if rank == other or not mine:
                continue
            if other in left:
                return describe_left(left[other], rank, mine[1])
            theirs = _alone_in(others, calls, seconds)
            if theirs:
                return _describe_both(rank, mine, other, theirs)
    return None


def _describe_both(rank, mine, other, theirs):
    # The keys say what differs where the same call stands in other functions, or in none.
    texts = [
        f"{what} ('{key}')" if mine[1] == theirs[1] else what for key, what, _ in (mine, theirs)
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
    call = _alone_in(calls, [], seconds)
    return call and call[1]


def _alone_in(calls, others, seconds):
    """The call that has waited longest of those in which the other rank is not; None: there is
    none."""
    keys = {key for key, *_ in others}
    alone = [call for call in calls if call[0] not in keys and call[2] >= seconds]
    return max(alone, key=lambda call: call[2], default=None)

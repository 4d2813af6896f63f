"""Which keys get a row, and which lose it: options -> what the ops take that make a table, save it
and evict."""

import math

from group_embedding.checkpoint.snapshots import Eviction
from group_embedding.ops import embedding_table


def admission_of(options):
    """The argument of `embedding_table.initialize` that KeyedOptions mean."""
    admit_after = options.admit_after
    if options.admit_probability < 1:  # then keys are counted
        admit_after = max(admit_after, 1)
    if options.expected_keys is None:
        admission = embedding_table.admission_by_counter(admit_after)
    else:
        admission = embedding_table.admission_by_bloom_filter(
            admit_after,
            options.expected_keys,
            options.early_share,
            options.counter_bits // 8,
        )
    return {**admission, "probability": options.admit_probability}


def eviction_of(options):
    """The Eviction that KeyedOptions mean."""
    kinds = {
        "global_step": options.evict_after_steps,
        "time": options.evict_after_minutes,
        "l2_weight": options.evict_below_norm,
    }
    return Eviction(
        "+".join(kind for kind, limit in kinds.items() if limit is not None) or "none",
        steps_to_live=options.evict_after_steps or 0,
        # The ops compare sum(row**2) / 2.
        l2_weight=(options.evict_below_norm or 0.0) ** 2 / 2,
        minutes_to_live=options.evict_after_minutes or 0,
    )


# Divided by so many, shares of all keys are the same on 1, 2, 3, 4, 6, 8, 12 and 24 ranks.
_SHARES = 24


def budget_of(options, rank, num_ranks):
    """The arguments of `embedding_table.initialize` for the budget of a table on one of the ranks
    that have its keys."""
    kept = {"keeps_time": options.keeps_time}
    if not options.has_budget:
        return kept
    of_all = options.budget_of == "all"
    max_bytes = options.max_bytes or 0
    return {
        **kept,
        "budget_keys": options.max_keys or 0,
        "budget_bytes": max_bytes // num_ranks if of_all else max_bytes,
        "budget_keep": options.keep_share,
        "evict_first": options.evict,
        "decay_steps": options.decay_steps or 0,
        "safe_steps": options.safe_steps,
        "hands_out": options.hand_out,
        "budget_shares": math.lcm(_SHARES, num_ranks) if of_all else 0,
        "budget_rank": rank,
        "budget_ranks": num_ranks,
    }

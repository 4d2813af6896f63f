"""How many ids find their row in a tier that holds the most used keys."""

from __future__ import annotations

import numpy as np


def hit_rate(ids: np.ndarray, num_held: float, num_keys: float) -> float:
    """The expected share of ids whose row is among `num_held` of a table's `num_keys` keys.

    The first half of the sample says which keys are used most; the second half, which knows nothing
    of the choice, says how many ids these have. A tier that has counted for longer chooses better.
    Ids that are not in the first half may have any of the other keys.

    Args:
        ids: a sample in the order of time, [ids].
        num_held: the number of keys whose rows the tier holds.
        num_keys: the number of keys of the table.
    """
    if num_held >= num_keys:
        return 1.0
    first, second = np.array_split(ids, 2)
    keys, counts = np.unique(first, return_counts=True)
    held = keys[np.argsort(-counts, kind="stable")[: int(num_held)]]
    among_known = float(np.isin(second, held).mean())
    more = max(0.0, num_held - len(keys))
    if more == 0:
        return among_known
    return among_known + (1 - among_known) * more / max(more, num_keys - len(keys))

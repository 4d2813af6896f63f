"""Batches, filters and probes for the forms of saving_forms.py and saving_keras_forms.py."""

import numpy as np

import group_embedding as ge
from group_embedding import exchange

DIMS = [3, 5, 4]
FILTERS = [
    ge.CounterFilter(filter_freq=2),
    None,
    ge.CBFFilter(filter_freq=2, max_element_size=1000, false_positive_probability=0.001),
]
# Keys that training meets, some of them once, and one that it never does.
KNOWN = np.random.default_rng(7).integers(0, 2**62, 30, dtype=np.int64)
PROBE = np.append(KNOWN, 5).reshape(-1, 1)


def batch(step):
    """int64 [12, 2]: this rank's samples of a step, some keys of which come in no other step."""
    rng = np.random.default_rng([step, 11])
    keys = rng.choice(KNOWN[:20], (12, 2))
    keys[step % 12, 0] = KNOWN[20 + step]
    return keys[exchange.current().rank :: exchange.current().num_ranks]


def option(i):
    return ge.EmbeddingVariableOption(filter_option=FILTERS[i])

"""DeepRec's options of the keys that have rows: filters admit keys, and others evict them.

`keyed_fields` of each is what it stands for, as fields of KeyedOptions.
"""

import dataclasses
import math
from typing import Any, Optional

import tensorflow as tf

from group_embedding.compat.deeprec.option_checks import check_int, check_number


@dataclasses.dataclass(frozen=True)
class CounterFilter:
    """A key gets a row when it has been trained `filter_freq` times; every key has a counter.

    The step that gives a key its row still reads `default_value_no_permission`, and trains the row
    with the gradient of that; the next step reads the row. So with `filter_freq=3` a key that comes
    once a step reads the default in steps 1 to 3, and in step 4 the row as step 3 has trained it.

    Attributes:
      filter_freq: How often; 0: every key gets a row, and reads it, in its first step.
    """

    filter_freq: int = 0

    def __post_init__(self):
        check_int(self, "filter_freq", at_least=0)

    def keyed_fields(self):
        return {"admit_after": self.filter_freq}


_UNSIGNED = {
    tf.int8: tf.uint8,
    tf.int16: tf.uint16,
    tf.int32: tf.uint32,
    tf.int64: tf.uint64,
}


@dataclasses.dataclass(frozen=True)
class CBFFilter:
    """A CounterFilter that counts by a counting Bloom filter: it needs less memory, and admits some
    keys early.

    Attributes:
      filter_freq: As in CounterFilter.
      max_element_size: How many keys are expected.
      false_positive_probability: The share of keys that may be admitted early once so many were
        seen.
      counter_type: uint8, uint16, uint32 or uint64, or its name, or a signed type, which means the
        unsigned one of its width; must hold `filter_freq`.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = tf.uint64

    def __post_init__(self):
        check_int(self, "filter_freq", at_least=0)
        check_int(self, "max_element_size", at_least=1)
        check_number(self, "false_positive_probability", above=0, below=1)
        object.__setattr__(self, "counter_type", _counter_type(self.counter_type))
        if self.filter_freq > self.counter_type.max:
            raise ValueError(
                f"CBFFilter: expected a counter_type that holds filter_freq={self.filter_freq}, "
                f"got {self.counter_type.name}"
            )

    def keyed_fields(self):
        if self.filter_freq == 0:  # then no filter has anything to count
            return {}
        return {
            "admit_after": self.filter_freq,
            "expected_keys": self.max_element_size,
            "early_share": self.false_positive_probability,
            "counter_bits": 8 * self.counter_type.size,
        }


def _counter_type(given):
    """The unsigned type that a CBFFilter's `counter_type` means."""
    try:
        found = tf.as_dtype(given)
    except TypeError:
        found = None
    found = _UNSIGNED.get(found, found)
    types = _UNSIGNED.values()
    if found not in types:
        raise ValueError(
            f"CBFFilter: expected counter_type to be one of {', '.join(t.name for t in types)}, "
            f"got {given!r}"
        )
    return found


@dataclasses.dataclass(frozen=True)
class ProbabilityFilter:
    """A key is admitted by chance, each time that it is trained. DeepRec has no such filter; this
    one stands for `KeyedOptions.admit_probability`. The key and its count decide, so a run repeats.

    Attributes:
      probability: From 1e-6 to 1, at which every key gets a row in its first step.
    """

    probability: float = 1.0

    def __post_init__(self):
        check_number(self, "probability", above=0)
        if not 1e-6 <= self.probability <= 1:
            raise ValueError(
                f"ProbabilityFilter: expected probability from 1e-6 to 1, got {self.probability!r}"
            )

    def keyed_fields(self):
        return {"admit_probability": self.probability}


@dataclasses.dataclass(frozen=True)
class GlobalStepEvict:
    """Evicts keys that were not trained in the last `steps_to_live` steps. None: none.

    Steps are those of the global step in graphs of TensorFlow 1, else those of the wrapped
    optimizer that trains the table; an EmbeddingVariable's attribute `step` may say otherwise.
    """

    steps_to_live: Optional[int] = None

    def __post_init__(self):
        if self.steps_to_live is not None:
            check_int(self, "steps_to_live", at_least=1)

    def keyed_fields(self):
        return {"evict_after_steps": self.steps_to_live}


@dataclasses.dataclass(frozen=True)
class TimeEvict:
    """Evicts keys that were not trained for more than `minutes_to_live` minutes. None: none.
    DeepRec has no such eviction; this one stands for `KeyedOptions.evict_after_minutes`.

    The time is the clock's, or that of `EmbeddingVariable.set_time`.
    """

    minutes_to_live: Optional[int] = None

    def __post_init__(self):
        if self.minutes_to_live is not None:
            check_int(self, "minutes_to_live", at_least=1)

    def keyed_fields(self):
        return {"evict_after_minutes": self.minutes_to_live}


@dataclasses.dataclass(frozen=True)
class L2WeightEvict:
    """Evicts keys whose row has `sum(row**2) / 2 < l2_weight_threshold`. -1: none."""

    l2_weight_threshold: float = -1.0

    def __post_init__(self):
        if self.l2_weight_threshold != -1.0:
            check_number(self, "l2_weight_threshold", above=0)

    def keyed_fields(self):
        if self.l2_weight_threshold < 0:
            return {}
        return {"evict_below_norm": math.sqrt(2 * self.l2_weight_threshold)}


FILTERS = (CounterFilter, CBFFilter, ProbabilityFilter)
EVICTIONS = (GlobalStepEvict, TimeEvict, L2WeightEvict)

"""The options of a table of keys, stated once: the arguments of `keyed_table`, and the `ev_option`
of layers and columns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from group_embedding.annotations import Initializer
from group_embedding.config import check_choice, check_int, check_number, check_slot_dtype

# {tiers, the fastest first: the word by which the ops know this storage}
STORAGES = {
    ("dram",): "dram",
    ("hbm",): "hbm",
    ("hbm", "dram"): "hbm_dram",
    ("dram", "disk"): "dram_ssdhash",
    ("hbm", "dram", "disk"): "hbm_dram_ssdhash",
}
# {what stays in the first tier: the word of the ops}
CACHE_STRATEGIES = {"most_used": "lfu", "last_used": "lru"}
# What goes first from a table that is full; also the words of the ops.
EVICT_FIRST = (
    "least_recent",
    "least_frequent",
    "decayed_frequency",
    "smallest_norm",
    "score",
    "earliest",
)


@dataclasses.dataclass(frozen=True)
class KeyedOptions:
    """The options of a table of keys: arguments of `keyed_table`, or the `ev_option` of a
    `TableConfig(num_rows=None)`, of a column of keys, or of `get_embedding_variable`.

    Attributes:
        initializer: of rows, an initializer of TensorFlow or Keras, or a matrix; None: a truncated
            normal distribution, or the initializer of the layer, column or variable scope.
        num_initial_rows: how many rows the initializer draws once. Key k starts as row
            `k % num_initial_rows`. None: each key has values of its own, which depend on the key
            and the seed only; for initializers of a constant, of a uniform, normal or truncated
            normal distribution.
        admit_after: a key gets a row when it has been trained so often; 0: in its first step.
        admit_probability: less than 1: besides, each time that a key is trained it is admitted with
            this probability, from 1e-6 on. The key and its count decide, so a run repeats. With
            `admit_after` the chances of all trainings count: with 3 a key that was trained 3 times
            has had 3 chances. A key whose counter in a Bloom filter is full is admitted.
        value_before_admission: the constant that a key reads until then, a finite number of the
            rows' type.
        expected_keys: of a table with `admit_after` or `admit_probability`: None: each key has a
            counter. Else a counting Bloom filter for so many keys counts: less memory, and some
            keys are admitted early.
        early_share: of that filter, the share of keys that may be admitted early once so many were
            seen, between 0 and 1.
        counter_bits: of one counter of that filter: 8, 16, 32 or 64; must hold `admit_after`. It
            is full after `2**counter_bits - 2` times, and the next one admits the key, also where
            `admit_probability` would not.
        evict_after_steps: a save removes keys that were not trained in so many last steps; None:
            none. The steps are those in which the table was trained, or `EmbeddingVariable.step`.
        evict_after_minutes: a save removes keys that were not trained for more minutes than that;
            None: none. The time is the clock's, or that of `EmbeddingVariable.set_time`.
        evict_below_norm: a save removes keys whose row has a smaller L2 norm, 2e-19 to 1e19; None:
            none.
        max_keys: the table never has more keys than that. Before new keys would exceed it, others
            are evicted. A new key that finds no place reads what it would start as, trains nothing,
            and is counted. None: no limit.
        max_bytes: instead of `max_keys`: the table never takes more memory than so many bytes, with
            slots, index and metadata. With a disk it counts the records there, and a quarter of it,
            at most 128 MiB, is for RocksDB's memory; what RocksDB's files take beyond records is
            not counted. None: no limit.
        budget_of: "rank": `max_keys` or `max_bytes` are of each rank; "all": of all ranks together.
            Given with one of them.
        keep_share: of the budget, the share down to which keys are evicted, from 1e-6 to 1.
        evict: which keys go first: "least_recent", trained in the earliest step; "least_frequent",
            trained least often; "decayed_frequency", the same of counts that are halved every
            `decay_steps`; "smallest_norm", of the row; "score", as `EmbeddingVariable.set_scores`
            says; "earliest", by the minute as of `evict_after_minutes`. Among equals the one that
            was trained in the earlier step goes first, then a hash of the key decides.
        decay_steps: of "decayed_frequency".
        safe_steps: n: a key that got its row in the current step, or in one of the n - 1 before,
            does not go. So 1 protects no key from the next step, and 2 protects it from that step.
        hand_out: "keys" or "rows": what `EmbeddingVariable.take_evicted` returns of evicted keys of
            a table with a budget; "nothing": they are not kept.
        tiers: the memories of the rows, the fastest first: "hbm", GPU memory; "dram", host memory;
            "disk". One of `["dram"]`, `["hbm"]`, `["hbm", "dram"]`, `["dram", "disk"]` and
            `["hbm", "dram", "disk"]`.
        tier_bytes: bytes of each tier, for rows, slots and metadata; None, or a tier that is not in
            the list: no limit, or 1 GiB for a tier above another.
        disk_folder: the folder of the disk tier; None: the system's for temporary files.
        keep: the rows that stay in the first tier when it is full: "most_used" or "last_used".
        start_from: the prefix of a checkpoint, or a folder with checkpoints, whose rows the table
            starts with; None: it starts empty.
        start_from_name: the name that the table had in `start_from`; None: the name of this table.
        start_again: whether the table starts from there again wherever another checkpoint is
            restored, as when an Estimator resumes.
        slot_dtype: of the optimizer's slots, "float32" or "bfloat16"; None: that of the rows.
            "bfloat16" halves the memory of slots beside rows in float32: Adam's, Adagrad's and
            those of `RowwiseAdam` and `RowwiseAdagrad`, without `amsgrad`; other optimizers are
            refused. Such slots are rounded up or down at random, the nearer the likelier, by the
            optimizer's `stochastic_rounding_seed`, or 0. A checkpoint with slots of another type
            is restored, its slots rounded to nearest.

    Raises:
        TypeError, ValueError: an attribute is not as above.

    Example:

    >>> options = ge.KeyedOptions(admit_after=3, evict_after_steps=100_000)
    >>> config = ge.TableConfig("users", num_rows=None, dim=16, ev_option=options)
    """

    initializer: Initializer = None
    num_initial_rows: int | None = 4096
    admit_after: int = 0
    value_before_admission: float = 0.0
    expected_keys: int | None = None
    early_share: float = 0.01
    counter_bits: int = 64
    admit_probability: float = 1.0
    evict_after_steps: int | None = None
    evict_after_minutes: int | None = None
    evict_below_norm: float | None = None
    max_keys: int | None = None
    max_bytes: int | None = None
    budget_of: str | None = None
    keep_share: float = 0.9
    evict: str = "least_recent"
    decay_steps: int | None = None
    safe_steps: int = 0
    hand_out: str = "nothing"
    tiers: Sequence[str] = ("dram",)
    tier_bytes: Sequence[int] | None = None
    disk_folder: str | os.PathLike | None = None
    keep: str = "most_used"
    start_from: str | os.PathLike | None = None
    start_from_name: str | None = None
    start_again: bool = False
    slot_dtype: str | None = None

    def __post_init__(self) -> None:
        self._check_rows()
        self._check_admission()
        self._check_eviction()
        self._check_budget()
        self._check_tiers()
        self._check_start()

    def to_keyed_options(self) -> KeyedOptions:
        """Returns the options themselves."""
        return self

    def with_steps_to_live(self, steps: int | None) -> KeyedOptions:
        """Returns the options with `evict_after_steps=steps`, unless they evict keys already, or
        `steps` is None."""
        limits = (self.evict_after_steps, self.evict_after_minutes, self.evict_below_norm)
        keeps = steps is None or any(limit is not None for limit in limits)
        return self if keeps else dataclasses.replace(self, evict_after_steps=steps)

    @property
    def has_budget(self) -> bool:
        """True if the number of keys, or of bytes, is limited."""
        return self.max_keys is not None or self.max_bytes is not None

    @property
    def keeps_time(self) -> bool:
        """True if the table keeps the minute in which each key was trained last."""
        return self.evict_after_minutes is not None or (
            self.has_budget and self.evict == "earliest"
        )

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_rows(self):
        if self.num_initial_rows is not None:
            self._set_int("num_initial_rows", at_least=1)
        value = self.value_before_admission
        check_number(_OWNER, "value_before_admission", value, -_ABOVE_FLOAT32, _ABOVE_FLOAT32)
        if self.slot_dtype is not None:
            self._set(slot_dtype=check_slot_dtype(_OWNER, self.slot_dtype))

    def _check_admission(self):
        self._set_int("admit_after", at_least=0, at_most=_MAX_COUNT)
        if self.expected_keys is not None:
            self._set_int("expected_keys", at_least=1, at_most=_MAX_EXPECTED)
        check_number(_OWNER, "early_share", self.early_share, above=0, below=1)
        check_number(_OWNER, "admit_probability", self.admit_probability, above=0)
        if not 1e-6 <= self.admit_probability <= 1:
            raise ValueError(
                f"{_OWNER}: expected admit_probability from 1e-6 to 1, got "
                f"{self.admit_probability!r}"
            )
        if self.counter_bits not in (8, 16, 32, 64) or self.admit_after >= 2**self.counter_bits:
            raise ValueError(
                f"{_OWNER}: expected counter_bits to be 8, 16, 32 or 64, and a counter to hold "
                f"admit_after={self.admit_after}, got {self.counter_bits!r}"
            )
        if self.expected_keys is None:
            self._refuse_given(("early_share", "counter_bits"), "expected_keys")
        elif self.admit_after == 0 and self.admit_probability == 1:
            self._refuse_given(("expected_keys",), "admit_after or admit_probability")

    def _check_eviction(self):
        for name in ("evict_after_steps", "evict_after_minutes"):
            if getattr(self, name) is not None:
                self._set_int(name, at_least=1)
        if self.evict_below_norm is not None:
            check_number(_OWNER, "evict_below_norm", self.evict_below_norm, above=0)
            least, most = _NORMS
            if not least <= self.evict_below_norm <= most:
                raise ValueError(
                    f"{_OWNER}: expected evict_below_norm from {least} to {most}, as rows are "
                    f"compared by squares in float32, got {self.evict_below_norm!r}"
                )

    def _check_budget(self):
        for name, most in (("max_keys", _MAX_COUNT), ("max_bytes", _MAX_BYTES)):
            if getattr(self, name) is not None:
                self._set_int(name, at_least=1, at_most=most)
        if self.max_keys is not None and self.max_bytes is not None:
            raise ValueError(
                f"{_OWNER}: expected max_keys or max_bytes, got both: {self.max_keys!r} and "
                f"{self.max_bytes!r}"
            )
        self._check_policy()
        if not self.has_budget:
            self._refuse_given(_OF_A_BUDGET, "max_keys or max_bytes")
            return
        check_choice(_OWNER, "budget_of", self.budget_of, ("rank", "all"))
        if self.evict == "decayed_frequency":
            self._set_int("decay_steps", at_least=1, at_most=_MAX_COUNT)
        elif self.decay_steps is not None:
            raise ValueError(
                f"{_OWNER}: expected evict='decayed_frequency', as decay_steps is given, got "
                f"{self.evict!r}"
            )

    def _check_policy(self):
        check_choice(_OWNER, "evict", self.evict, EVICT_FIRST)
        check_choice(_OWNER, "hand_out", self.hand_out, ("nothing", "keys", "rows"))
        check_number(_OWNER, "keep_share", self.keep_share, above=0)
        if not 1e-6 <= self.keep_share <= 1:
            raise ValueError(
                f"{_OWNER}: expected keep_share from 1e-6 to 1, got {self.keep_share!r}"
            )
        self._set_int("safe_steps", at_least=0, at_most=_MAX_COUNT)

    def _check_tiers(self):
        tiers = _as_tuple(self.tiers)
        if tiers not in list(STORAGES):
            choices = " or ".join(str(list(choice)) for choice in STORAGES)
            raise ValueError(f"{_OWNER}: expected tiers to be {choices}, got {self.tiers!r}")
        check_choice(_OWNER, "keep", self.keep, CACHE_STRATEGIES)
        if self.keep != "most_used" and len(tiers) == 1:
            raise ValueError(
                f"{_OWNER}: expected several tiers, as keep is given, got {list(tiers)}"
            )
        if self.disk_folder is not None and "disk" not in tiers:
            raise ValueError(
                f"{_OWNER}: expected disk among tiers, as disk_folder is given, got {list(tiers)}"
            )
        sizes = _as_tuple(self.tier_bytes)
        if sizes is None and self.tier_bytes is not None:
            raise ValueError(
                f"{_OWNER}: expected tier_bytes to be a list, with the bytes of each tier, got "
                f"{self.tier_bytes!r}"
            )
        if sizes is not None and len(sizes) > len(tiers):
            raise ValueError(
                f"{_OWNER}: expected tier_bytes of {len(tiers)} tiers, got {list(sizes)}"
            )
        for size in sizes or ():
            check_int(_OWNER, "tier_bytes", size, at_least=1, at_most=_MAX_BYTES)
        self._set(tiers=tiers, tier_bytes=sizes, disk_folder=_as_path(self.disk_folder))

    def _check_start(self):
        is_named = self.start_from_name is not None or self.start_again
        if self.start_from is None and is_named:
            raise ValueError(
                f"{_OWNER}: expected start_from, as start_from_name or start_again is given, got "
                f"{self.start_from_name!r}"
            )
        self._set(start_from=_as_path(self.start_from))

    def _refuse_given(self, names, expected):
        """Refuses options with another value than their default, as they would have no effect."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ValueError(
                    f"{_OWNER}: expected {expected}, as {field.name} is given, got {value!r}"
                )

    def _set_int(self, name, **limits):
        self._set(**{name: check_int(_OWNER, name, getattr(self, name), **limits)})


_OWNER = "options of a keyed table"
_MAX_COUNT = 2**62  # of keys, times and steps, as of kMaxCount in cc/table/keyed_rows.h
_MAX_BYTES = 2**60  # as of kMaxTierBytes in cc/table/check_table.h
_MAX_EXPECTED = 2**52  # keys, of whose Bloom filter an int64 counts the counters
_ABOVE_FLOAT32 = 2.0**128
_NORMS = (2e-19, 1e19)  # whose squares, and half of them, float32 has to all of its digits
_OF_A_BUDGET = ("budget_of", "keep_share", "evict", "decay_steps", "safe_steps", "hand_out")


@runtime_checkable
class TableOptions(Protocol):
    """The type of `ev_option`: KeyedOptions, or options that stand for some, such as DeepRec's
    `EmbeddingVariableOption`."""

    def to_keyed_options(self) -> KeyedOptions: ...

    def with_steps_to_live(self, steps: int | None) -> TableOptions: ...


def to_keyed_options(name: str, option: TableOptions | None) -> KeyedOptions:
    """The KeyedOptions of table `name`; None: the default ones.

    Raises:
        TypeError, ValueError: no such options; the message names the table.
    """
    if option is None:
        return KeyedOptions()
    if not isinstance(option, TableOptions):
        raise TypeError(
            f"table '{name}': expected ev_option to be an EmbeddingVariableOption or KeyedOptions, "
            f"got {option!r}"
        )
    try:
        return option.to_keyed_options()
    except (TypeError, ValueError) as error:
        raise type(error)(f"table '{name}': {error}") from None


def _as_tuple(values):
    """The values of a list, or of another iterable that is no string; None: it is none."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else None


def _as_path(path):
    return None if path is None else os.fspath(path)

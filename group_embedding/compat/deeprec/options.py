"""DeepRec's options of an EmbeddingVariable, and the KeyedOptions that they stand for."""

import dataclasses
import enum
import math
import warnings
from typing import Any, Optional, Union

import tensorflow as tf

from group_embedding.config import check_int, check_number
from group_embedding.variables import KeyedOptions


def _check_int(option, name, at_least):
    number = check_int(type(option).__name__, name, getattr(option, name), at_least)
    object.__setattr__(option, name, number)


def _check_number(option, name, above=-math.inf, below=math.inf):
    check_number(type(option).__name__, name, getattr(option, name), above, below)


def _check_kind(option, name, kinds, optional=False):
    value = getattr(option, name)
    if (optional and value is None) or isinstance(value, kinds):
        return
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    expected = " or ".join([*(["None"] if optional else []), *(k.__name__ for k in kinds)])
    raise TypeError(f"{type(option).__name__}: expected {name} to be {expected}, got {value!r}")


class StorageType(enum.Enum):
    """The memory of a table's rows; the names of several tiers have the fastest first.

    DRAM is host memory. HBM is the memory of the first GPU or, on several ranks, of each rank's own
    GPU. It is allocated beside TensorFlow's memory, so TensorFlow must not take all of it
    (`tf.config.experimental.set_memory_growth(gpu, True)`, or TF_FORCE_GPU_ALLOW_GROWTH=true). In
    HBM_DRAM, rows that HBM does not hold are in page-locked host memory, which the GPU reads and
    writes directly; when a batch has ended, hot rows are exchanged with cold rows of HBM, beside
    other work of the GPU. SSDHASH is RocksDB on a disk: a row moves to memory when its key is
    located, and cold rows move to disk. With HBM_DRAM_SSDHASH every lookup waits for the GPU once
    rows are on disk, since the host needs to know which keys have no row in memory.
    """

    DRAM = "DRAM"
    HBM = "HBM"
    HBM_DRAM = "HBM_DRAM"
    DRAM_SSDHASH = "DRAM_SSDHASH"
    HBM_DRAM_SSDHASH = "HBM_DRAM_SSDHASH"

    # DeepRec's others: a StorageOption takes the nearest one of the above.
    PMEM_MEMKIND = "PMEM_MEMKIND"
    PMEM_LIBPMEM = "PMEM_LIBPMEM"
    DRAM_PMEM = "DRAM_PMEM"
    SSDHASH = "SSDHASH"
    LEVELDB = "LEVELDB"
    DRAM_LEVELDB = "DRAM_LEVELDB"
    DRAM_PMEM_SSDHASH = "DRAM_PMEM_SSDHASH"


_NEAREST = {
    StorageType.PMEM_MEMKIND: StorageType.DRAM,
    StorageType.PMEM_LIBPMEM: StorageType.DRAM,
    StorageType.DRAM_PMEM: StorageType.DRAM,
    StorageType.SSDHASH: StorageType.DRAM_SSDHASH,
    StorageType.LEVELDB: StorageType.DRAM_SSDHASH,
    StorageType.DRAM_LEVELDB: StorageType.DRAM_SSDHASH,
    StorageType.DRAM_PMEM_SSDHASH: StorageType.DRAM_SSDHASH,
}


_TIERS = {
    StorageType.DRAM: ("dram",),
    StorageType.DRAM_SSDHASH: ("dram", "disk"),
    StorageType.HBM: ("hbm",),
    StorageType.HBM_DRAM: ("hbm", "dram"),
    StorageType.HBM_DRAM_SSDHASH: ("hbm", "dram", "disk"),
}


class CacheStrategy(enum.Enum):
    """The rows that stay in the faster tier: those used last, or those used most."""

    LRU = "LRU"
    LFU = "LFU"


@dataclasses.dataclass(frozen=True)
class InitializerOption:
    """The initial values of a key's row.

    Attributes:
      initializer: An initializer of TensorFlow 1, TensorFlow 2 or Keras, or a matrix; `None`: the
        initializer of `get_embedding_variable`.
      default_value_dim: The number of rows of a matrix that `initializer` draws once; key k starts
        as row `k % default_value_dim` of it (keys are taken as unsigned). `None`: each key has
        values of its own, which depend on the key and the seed only; for initializers that fill a
        constant or draw from a uniform, normal or truncated normal distribution.
      default_value_no_permission: The constant that a key reads before the filter admits it; with
        `default_value_dim=None`, the constant that every key without a row reads.

    Raises:
      TypeError, ValueError: An attribute has another type or value.
    """

    initializer: Any = None
    default_value_dim: Optional[int] = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self):
        if self.default_value_dim is not None:
            _check_int(self, "default_value_dim", at_least=1)
        _check_number(self, "default_value_no_permission")


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
        _check_int(self, "filter_freq", at_least=0)


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
      counter_type: uint8, uint16, uint32 or uint64, or a signed type, which means the unsigned one
        of its width; must hold `filter_freq`.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = tf.uint64

    def __post_init__(self):
        _check_int(self, "filter_freq", at_least=0)
        _check_int(self, "max_element_size", at_least=1)
        _check_number(self, "false_positive_probability", above=0, below=1)
        types = (tf.uint8, tf.uint16, tf.uint32, tf.uint64)
        if self.counter_type in _UNSIGNED:
            object.__setattr__(self, "counter_type", _UNSIGNED[self.counter_type])
        if self.counter_type not in types:
            raise ValueError(
                f"CBFFilter: expected counter_type to be one of {', '.join(t.name for t in types)},"
                f" got {self.counter_type!r}"
            )
        if self.filter_freq > tf.as_dtype(self.counter_type).max:
            raise ValueError(
                f"CBFFilter: expected a counter_type that holds filter_freq={self.filter_freq}, "
                f"got {tf.as_dtype(self.counter_type).name}"
            )


@dataclasses.dataclass(frozen=True)
class ProbabilityFilter:
    """A key is admitted by chance, each time that it is trained. DeepRec has no such filter; this
    one stands for `KeyedOptions.admit_probability`. The key and its count decide, so a run repeats.

    Attributes:
      probability: From 1e-6 to 1, at which every key gets a row in its first step.
    """

    probability: float = 1.0

    def __post_init__(self):
        _check_number(self, "probability", above=0)
        if not 1e-6 <= self.probability <= 1:
            raise ValueError(
                f"ProbabilityFilter: expected probability from 1e-6 to 1, got {self.probability!r}"
            )


@dataclasses.dataclass(frozen=True)
class GlobalStepEvict:
    """Evicts keys that were not trained for more than `steps_to_live` steps. None: none.

    Steps are those of the global step in graphs of TensorFlow 1, else those of the wrapped
    optimizer that trains the table; an EmbeddingVariable's attribute `step` may say otherwise.
    """

    steps_to_live: Optional[int] = None

    def __post_init__(self):
        if self.steps_to_live is not None:
            _check_int(self, "steps_to_live", at_least=1)


@dataclasses.dataclass(frozen=True)
class TimeEvict:
    """Evicts keys that were not trained for more than `minutes_to_live` minutes. None: none.
    DeepRec has no such eviction; this one stands for `KeyedOptions.evict_after_minutes`.

    The time is the clock's, or that of `EmbeddingVariable.set_time`.
    """

    minutes_to_live: Optional[int] = None

    def __post_init__(self):
        if self.minutes_to_live is not None:
            _check_int(self, "minutes_to_live", at_least=1)


@dataclasses.dataclass(frozen=True)
class L2WeightEvict:
    """Evicts keys whose row has `sum(row**2) / 2 < l2_weight_threshold`. -1: none."""

    l2_weight_threshold: float = -1.0

    def __post_init__(self):
        if self.l2_weight_threshold != -1.0:
            _check_number(self, "l2_weight_threshold", above=0)


@dataclasses.dataclass(frozen=True)
class StorageOption:
    """The memory of a table's rows, and the size of each tier.

    Attributes:
      storage_type: A StorageType; None: DRAM. A type of DeepRec's that does not exist here is
        replaced by the nearest one, with a warning: DRAM for persistent memory (PMEM), DRAM_SSDHASH
        for LevelDB and for a disk alone. DRAM then has no folder and no sizes, which were those of
        persistent memory.
      storage_path: The folder of the disk tier, if there is one; None: the system's for temporary
        files. Each table makes a folder of its own in it, which is removed with the table; folders
        of killed processes are removed when the next table is made.
      storage_size: Bytes of each tier, the fastest first, for rows, slots and metadata; None, or a
        tier that is not in the list: no limit, or 1 GiB for a tier above another. In addition to
        its size, HBM holds 40 bytes for each row in host memory, and the index, 14 to 20 bytes per
        key. A slot that is made after the first rows, as that of a table's first optimizer is,
        takes memory of HBM from later rows.
      cache_strategy: A CacheStrategy: which rows stay in the first tier when it is full.
    """

    storage_type: Optional[StorageType] = None
    storage_path: Optional[str] = None
    storage_size: Any = None
    cache_strategy: CacheStrategy = CacheStrategy.LFU

    def __post_init__(self):
        _check_kind(self, "storage_type", StorageType, optional=True)
        _check_kind(self, "storage_path", str, optional=True)
        _check_kind(self, "cache_strategy", CacheStrategy)
        if self.storage_type in _NEAREST:
            self._take_nearest(_NEAREST[self.storage_type])
        if self.storage_size is None:
            return
        sizes = self.storage_size if isinstance(self.storage_size, (list, tuple)) else None
        if not sizes or any(not isinstance(s, int) or s < 1 for s in sizes):
            raise ValueError(
                "StorageOption: expected storage_size to be a list of positive numbers of bytes, "
                f"got {self.storage_size!r}"
            )
        object.__setattr__(self, "storage_size", tuple(sizes))

    def _take_nearest(self, nearest):
        warnings.warn(
            f"StorageOption: storage_type {self.storage_type.name} is not here; {nearest.name} is "
            "taken in its place",
            stacklevel=4,
        )
        object.__setattr__(self, "storage_type", nearest)
        if nearest == StorageType.DRAM:
            object.__setattr__(self, "storage_path", None)
            object.__setattr__(self, "storage_size", None)
            object.__setattr__(self, "cache_strategy", CacheStrategy.LFU)


@dataclasses.dataclass(frozen=True)
class CheckpointOption:
    """From which checkpoint the table starts, instead of empty.

    It takes values, counts and versions of a keyed table that this package saved, and what its
    filter counted if the filter is the same; or the rows of a stock variable of shape [rows, dim],
    whose numbers become keys. Slots start anew, and keys that are not there as in any table. The
    checkpoint is needed whenever the table is made or initialized.

    Attributes:
      ckpt_to_load_from: The prefix of a checkpoint, or a folder: the newest one in it. None: none.
      tensor_name_in_ckpt: The name that the table, or variable, had; in object-based checkpoints
        the path of the object, such as "model/user". None: the name of this table.
      always_load_from_specific_ckpt: Whether the table starts from there again wherever another
        checkpoint is restored, as when an Estimator resumes.
      init_data_source: Must be None. In DeepRec it names a table of a feature store that exists on
        one platform alone (Alibaba's PAI).

    Raises:
      TypeError, ValueError: An attribute is not of that form.
    """

    ckpt_to_load_from: Optional[str] = None
    tensor_name_in_ckpt: Optional[str] = None
    always_load_from_specific_ckpt: bool = False
    init_data_source: Any = None

    def __post_init__(self):
        if self.init_data_source is not None:
            raise ValueError(
                "CheckpointOption: expected init_data_source to be None, as it names a table of a "
                "feature store of Alibaba's PAI, which can not be read here, got "
                f"{self.init_data_source!r}; save its rows as a checkpoint (ckpt_to_load_from)"
            )
        _check_kind(self, "ckpt_to_load_from", str, optional=True)
        _check_kind(self, "tensor_name_in_ckpt", str, optional=True)
        _check_kind(self, "always_load_from_specific_ckpt", bool)
        named = self.tensor_name_in_ckpt is not None or self.always_load_from_specific_ckpt
        if self.ckpt_to_load_from is None and named:
            raise ValueError(
                "CheckpointOption: expected ckpt_to_load_from, as the rest says what to load from "
                f"it, got {self}"
            )


@dataclasses.dataclass(frozen=True)
class EmbeddingVariableOption:
    """All options of an EmbeddingVariable.

    Attributes:
      ht_type: DeepRec's kind of hash table; here there is one kind: only the default is accepted.
      ht_partition_num: How many parts DeepRec's hash table has. Any number is right: a table here
        adds parts as it grows.
      evict_option: None, GlobalStepEvict, TimeEvict or L2WeightEvict.
      ckpt: None or CheckpointOption.
      filter_option: None, CounterFilter, CBFFilter or ProbabilityFilter.
      storage_option: StorageOption.
      init_option: InitializerOption.
    """

    ht_type: str = ""
    ht_partition_num: int = 1000
    evict_option: Union[None, GlobalStepEvict, TimeEvict, L2WeightEvict] = None
    ckpt: Optional[CheckpointOption] = None
    filter_option: Union[None, CounterFilter, CBFFilter, ProbabilityFilter] = None
    storage_option: StorageOption = StorageOption()
    init_option: InitializerOption = InitializerOption()

    def __post_init__(self):
        if self.ht_type != "":
            raise ValueError(
                "EmbeddingVariableOption: ht_type has no meaning here, where there is one kind of "
                f"hash table; leave it out, got {self.ht_type!r}"
            )
        _check_int(self, "ht_partition_num", at_least=1)
        _check_kind(self, "evict_option", _EVICTIONS, optional=True)
        _check_kind(self, "ckpt", CheckpointOption, optional=True)
        _check_kind(self, "filter_option", _FILTERS, optional=True)
        _check_kind(self, "storage_option", StorageOption)
        _check_kind(self, "init_option", InitializerOption)

    def with_steps_to_live(self, steps_to_live: Optional[int]) -> "EmbeddingVariableOption":
        """Returns the option with GlobalStepEvict(steps_to_live), unless it has an `evict_option`
        or `steps_to_live` is None."""
        if steps_to_live is None or self.evict_option is not None:
            return self
        return dataclasses.replace(self, evict_option=GlobalStepEvict(steps_to_live))

    def to_keyed_options(self) -> KeyedOptions:
        """Returns the KeyedOptions that the option stands for."""
        initial, start = self.init_option, self.ckpt or CheckpointOption()
        return KeyedOptions(
            initializer=initial.initializer,
            num_initial_rows=initial.default_value_dim,
            value_before_admission=initial.default_value_no_permission,
            start_from=start.ckpt_to_load_from,
            start_from_name=start.tensor_name_in_ckpt,
            start_again=start.always_load_from_specific_ckpt,
            **_admission(self.filter_option),
            **_eviction(self.evict_option),
            **_tiers(self.storage_option),
        )


_EVICTIONS = (GlobalStepEvict, TimeEvict, L2WeightEvict)
_FILTERS = (CounterFilter, CBFFilter, ProbabilityFilter)


def _admission(option):
    if option is None:
        return {}
    if isinstance(option, ProbabilityFilter):
        return {"admit_probability": option.probability}
    if isinstance(option, CounterFilter):
        return {"admit_after": option.filter_freq}
    return {
        "admit_after": option.filter_freq,
        "expected_keys": option.max_element_size,
        "early_share": option.false_positive_probability,
        "counter_bits": 8 * option.counter_type.size,
    }


def _eviction(option):
    if isinstance(option, GlobalStepEvict):
        return {"evict_after_steps": option.steps_to_live}
    if isinstance(option, TimeEvict):
        return {"evict_after_minutes": option.minutes_to_live}
    if option is None or option.l2_weight_threshold < 0:
        return {}
    return {"evict_below_norm": math.sqrt(2 * option.l2_weight_threshold)}


def _tiers(option):
    kind = option.storage_type or StorageType.DRAM
    tiers = _TIERS[kind]
    sizes = option.storage_size
    if sizes is not None and len(sizes) > len(tiers):
        count = "one tier" if len(tiers) == 1 else f"at most {len(tiers)} tiers"
        raise ValueError(
            f"expected storage_size of {count}, as storage_type {kind.name} has, got {list(sizes)}"
        )
    if option.storage_path and "disk" not in tiers:
        raise ValueError(
            f"expected no storage_path, as storage_type {kind.name} has no disk tier, got "
            f"{option.storage_path!r}"
        )
    if option.cache_strategy != CacheStrategy.LFU and len(tiers) == 1:
        raise ValueError(
            f"expected no cache_strategy, as storage_type {kind.name} has one tier that rows stay "
            f"in, got {option.cache_strategy.name}"
        )
    return {
        "tiers": tiers,
        "tier_bytes": sizes,
        "disk_folder": option.storage_path or None,
        "keep": "last_used" if option.cache_strategy == CacheStrategy.LRU else "most_used",
    }

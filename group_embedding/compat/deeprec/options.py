"""DeepRec's options of an EmbeddingVariable, and the KeyedOptions that they stand for."""

import dataclasses
from typing import Any, Optional, Union

from group_embedding.compat.deeprec.key_options import (
    EVICTIONS,
    FILTERS,
    CBFFilter,
    CounterFilter,
    GlobalStepEvict,
    L2WeightEvict,
    ProbabilityFilter,
    TimeEvict,
)
from group_embedding.compat.deeprec.option_checks import check_int, check_kind, check_number
from group_embedding.compat.deeprec.storage_options import (
    CacheStrategy,
    StorageOption,
    StorageType,
)
from group_embedding.variables import KeyedOptions

__all__ = [
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "ProbabilityFilter",
    "StorageOption",
    "StorageType",
    "TimeEvict",
]


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
            check_int(self, "default_value_dim", at_least=1)
        check_number(self, "default_value_no_permission")

    def keyed_fields(self):
        return {
            "initializer": self.initializer,
            "num_initial_rows": self.default_value_dim,
            "value_before_admission": self.default_value_no_permission,
        }


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
        check_kind(self, "ckpt_to_load_from", str, optional=True)
        check_kind(self, "tensor_name_in_ckpt", str, optional=True)
        check_kind(self, "always_load_from_specific_ckpt", bool)
        named = self.tensor_name_in_ckpt is not None or self.always_load_from_specific_ckpt
        if self.ckpt_to_load_from is None and named:
            raise ValueError(
                "CheckpointOption: expected ckpt_to_load_from, as the rest says what to load from "
                f"it, got {self}"
            )

    def keyed_fields(self):
        return {
            "start_from": self.ckpt_to_load_from,
            "start_from_name": self.tensor_name_in_ckpt,
            "start_again": self.always_load_from_specific_ckpt,
        }


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
        check_int(self, "ht_partition_num", at_least=1)
        check_kind(self, "evict_option", EVICTIONS, optional=True)
        check_kind(self, "ckpt", CheckpointOption, optional=True)
        check_kind(self, "filter_option", FILTERS, optional=True)
        check_kind(self, "storage_option", StorageOption)
        check_kind(self, "init_option", InitializerOption)

    def with_steps_to_live(self, steps_to_live: Optional[int]) -> "EmbeddingVariableOption":
        """Returns the option with GlobalStepEvict(steps_to_live), unless it has an `evict_option`
        or `steps_to_live` is None."""
        if steps_to_live is None or self.evict_option is not None:
            return self
        return dataclasses.replace(self, evict_option=GlobalStepEvict(steps_to_live))

    def to_keyed_options(self) -> KeyedOptions:
        """Returns the KeyedOptions that the option stands for."""
        parts = (
            *(self.init_option, self.storage_option),
            *(self.filter_option, self.evict_option, self.ckpt),
        )
        fields = [part.keyed_fields() for part in parts if part is not None]
        return KeyedOptions(**{name: value for of in fields for name, value in of.items()})

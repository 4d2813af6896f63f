"""Tables and features as plain values.

It imports no TensorFlow and no native library, so that a model can be described,
checked and compared without either.
"""

import ctypes
import dataclasses
import difflib
import itertools
import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any, Literal, Optional, get_args

from group_embedding.placement import check_placement

# How the rows of a sample become one vector.
Combiner = Literal["mean", "sum", "sqrtn"]
COMBINERS = get_args(Combiner)
# What an id at or past the end of its table does: an error, or a row of zeros.
InvalidIds = Literal["raise", "ignore"]
INVALID_IDS = get_args(InvalidIds)
# Which ids of a sample that has more than `max_length` a sequence has.
Keep = Literal["first", "last"]
KEEPS = get_args(Keep)
TABLE_DTYPES = ("float32", "float16", "bfloat16")
KEY_DTYPES = ("int64", "int32", "uint32", "uint64")
SLOT_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """One embedding table: `num_rows` vectors of `dim` numbers, or one for every key.

    Features that are given the same `TableConfig` share the table, and so do layers: two towers
    that look up one table of items are given one object. The object counts, not its values:
    `dataclasses.replace(config)` is another table. The table lives as long as the config.

    Example:

    >>> genres = TableConfig("genres", num_rows=20, dim=8, combiner="sum")

    Attributes:
      name: The table's name, which its variable gets too.
      num_rows: The number of rows; ids are 0 to `num_rows - 1`. `None`: the table is an
        `EmbeddingVariable`, and any integer is a key.
      dim: The length of a row.
      initializer: The initial values of rows: the name of a Keras initializer, an initializer, or
        any function of a shape and a dtype. `None` draws from a truncated normal distribution of
        standard deviation `1 / sqrt(dim)`.
      combiner: The reduction of a sample's rows to one vector: "mean", "sum" or "sqrtn".
      max_norm: If given, a row whose L2 norm is larger is scaled down to this norm before it is
        combined; the table itself is not changed. Infinity is no limit: it becomes `None`.
      dtype: "float32", "float16" or "bfloat16"; `None` leaves it to the layer that makes the table.
      trainable: Whether training changes the table.
      ev_option: With `num_rows=None`, `ge.KeyedOptions`, or DeepRec's
        `EmbeddingVariableOption`; `None`: the defaults.
      key_dtype: With `num_rows=None`, the type of the keys: "int64", "int32", "uint32" or "uint64";
        `None`: "int64". Ids may be of any type whose values all are keys, as int32 ids of a table
        of int64 keys.
      placement: Over several ranks, where the rows are: "distributed", `"localized:<rank>"`,
        "columns", "replicated" or "auto", which is planned. With ":sums" behind one of the first
        three, owners send one sum of a sample's rows; with ":two_levels" behind one of the first
        two, a row crosses once to each host. `None`: as `enable_distributed_strategy` says.
      expected_ids: The approximate number of the table's ids in a rank's batch, for a plan. `None`:
        1,024.
      slot_dtype: With `num_rows`, the type of the optimizer's slots: "float32", or "bfloat16",
        which halves their memory beside rows in float32; see `ge.optimizers.set_slot_dtype`.
        `None`: that of the rows. A table by key has it in `ev_option`.

    Raises:
      TypeError, ValueError: An attribute is not of the form above; the message names the table.
    """

    name: str
    num_rows: Optional[int]
    dim: int
    initializer: Any = None
    combiner: Combiner = "mean"
    max_norm: Optional[float] = None
    dtype: Optional[str] = None
    trainable: bool = True
    ev_option: Any = None
    key_dtype: Optional[str] = None
    placement: Optional[str] = None
    expected_ids: Optional[float] = None
    slot_dtype: Optional[str] = None

    def __post_init__(self):
        _check_name("table", self.name)
        owner = f"table '{self.name}'"
        if self.num_rows is not None:
            _freeze(self, "num_rows", _positive_int(owner, "num_rows", self.num_rows))
            if self.ev_option is not None:
                raise ValueError(
                    f"{owner}: expected ev_option=None, as it has num_rows={self.num_rows}, got "
                    f"{self.ev_option!r}; with num_rows=None it is an EmbeddingVariable"
                )
            if self.key_dtype is not None:
                raise ValueError(
                    f"{owner}: expected key_dtype=None, as it has num_rows={self.num_rows}, got "
                    f"{self.key_dtype!r}; with num_rows=None it is an EmbeddingVariable"
                )
        _freeze(self, "dim", _positive_int(owner, "dim", self.dim))
        if self.initializer is not None and not (
            isinstance(self.initializer, str) or callable(self.initializer)
        ):
            raise TypeError(
                f"{owner}: expected an initializer, the name of one, or None, "
                f"got {self.initializer!r}"
            )
        check_choice(owner, "combiner", self.combiner, COMBINERS)
        _freeze(self, "max_norm", check_max_norm(owner, self.max_norm))
        if self.dtype is not None:
            # A tf.DType and a np.dtype are taken by their names.
            dtype = getattr(self.dtype, "name", self.dtype)
            _freeze(self, "dtype", check_choice(owner, "dtype", dtype, TABLE_DTYPES))
        if self.key_dtype is not None:
            key_dtype = getattr(self.key_dtype, "name", self.key_dtype)
            _freeze(self, "key_dtype", check_choice(owner, "key_dtype", key_dtype, KEY_DTYPES))
        if self.slot_dtype is not None:
            self._check_slot_dtype(owner)
        if self.placement is not None:
            check_placement(owner, self.placement)
        if self.expected_ids is not None:
            expected_ids = _positive_float(owner, "expected_ids", self.expected_ids)
            _freeze(self, "expected_ids", expected_ids)
        if not isinstance(self.trainable, bool):
            raise TypeError(f"{owner}: expected trainable to be a bool, got {self.trainable!r}")

    def _check_slot_dtype(self, owner):
        slot_dtype = check_slot_dtype(owner, self.slot_dtype)
        _freeze(self, "slot_dtype", slot_dtype)
        if self.num_rows is None:
            raise ValueError(
                f"{owner}: expected slot_dtype=None, as num_rows=None, got {slot_dtype!r}; a table "
                f"by key has it in ev_option=ge.KeyedOptions(slot_dtype={slot_dtype!r})"
            )


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """One input that looks up one table.

    The rows of a sample are combined into one vector, or, with `max_length` or `ragged`, are a
    sequence of vectors.

    Example:

    >>> words = TableConfig("words", num_rows=10_000, dim=16)
    >>> title = FeatureConfig("title", words, combiner="sqrtn", weights_feature="title_tfidf")
    >>> text = FeatureConfig("text", words, max_length=100)

    Attributes:
      name: The feature's name: the key of its ids among the inputs and of its vectors among the
        outputs.
      table: The table it looks up.
      combiner: How the rows of one sample become one vector; `None` takes the table's combiner. A
        sequence has none.
      weights_feature: The key, among the inputs, of the weights of this feature's ids. Several
        features may name one input. The vectors of a sequence are multiplied by them.
      max_length: If given, the feature is a sequence: its vectors are `[batch, max_length, dim]`,
        zeros after a sample's last id, with Keras's mask.
      ragged: Whether the feature is a sequence whose vectors are a RaggedTensor
        `[batch, None, dim]`.
      keep: Which ids of a sample with more than `max_length` the sequence has: the "first" or the
        "last" ones, in their order.

    Raises:
      TypeError, ValueError: An attribute is not of the form above; the message names the feature.
    """

    name: str
    table: TableConfig
    combiner: Optional[Combiner] = None
    weights_feature: Optional[str] = None
    max_length: Optional[int] = None
    ragged: bool = False
    keep: Keep = "first"

    def __post_init__(self):
        _check_name("feature", self.name)
        owner = f"feature '{self.name}'"
        if not isinstance(self.table, TableConfig):
            raise TypeError(f"{owner}: expected table to be a TableConfig, got {self.table!r}")
        if self.combiner is not None:
            check_choice(owner, "combiner", self.combiner, COMBINERS)
        if self.weights_feature is not None:
            _check_name(f"{owner}: weights_feature", self.weights_feature)
            if self.weights_feature == self.name:
                raise ValueError(
                    f"{owner}: expected weights_feature to name another input, got its own name"
                )
        self._check_sequence(owner)

    def _check_sequence(self, owner):
        if self.max_length is not None:
            _freeze(self, "max_length", _positive_int(owner, "max_length", self.max_length))
        if not isinstance(self.ragged, bool):
            raise TypeError(f"{owner}: expected ragged to be a bool, got {self.ragged!r}")
        check_choice(owner, "keep", self.keep, KEEPS)
        if self.keep != "first" and self.max_length is None:
            raise ValueError(f"{owner}: expected max_length with keep='{self.keep}', got None")
        if self.is_sequence and self.combiner is not None:
            raise ValueError(
                f"{owner}: expected combiner=None of a sequence (max_length={self.max_length}, "
                f"ragged={self.ragged}), got {self.combiner!r}; leave out one of them"
            )

    @property
    def is_sequence(self) -> bool:
        """True for a sequence: the rows of a sample are not combined."""
        return self.max_length is not None or self.ragged


def check_choice(owner, attribute, value, choices):
    """Returns `value` if it is one of the strings `choices`; raises ValueError otherwise."""
    if not (isinstance(value, str) and value in choices):
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{owner}: expected {attribute} to be one of {expected}, got {value!r}")
    return value


def check_slot_dtype(owner, slot_dtype):
    """Returns the name of a type that slots can have; raises ValueError of any other."""
    return check_choice(owner, "slot_dtype", getattr(slot_dtype, "name", slot_dtype), SLOT_DTYPES)


def check_int(owner, attribute, value, at_least, at_most=2**63 - 1):
    """Returns `value` as an int; raises ValueError if it is none, or out of its range. Ops take no
    int above the default of `at_most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not at_least <= number <= at_most:
        most = f" and at most {at_most}" if number is not None and number > at_most else ""
        raise ValueError(
            f"{owner}: expected {attribute} to be an int of at least {at_least}{most}, got "
            f"{value!r}"
        )
    return number


def check_number(owner, attribute, value, above=-math.inf, below=math.inf):
    """Raises ValueError unless `value` is a number between `above` and `below`, not one of them."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not above < value < below:
        bounds = "a finite number" if above == -math.inf else f"a number above {above}"
        bounds += "" if below == math.inf else f" and below {below}"
        raise ValueError(f"{owner}: expected {attribute} to be {bounds}, got {value!r}")


def check_not_negative(owner, attribute, value):
    """Raises ValueError unless `value` is a finite number of 0 or more."""
    check_number(owner, attribute, value)
    if value < 0:
        raise ValueError(f"{owner}: expected {attribute} to be 0 or more, got {value!r}")


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names, of which each but the first of its kind has a number behind it that no other name
    has: of two "items" the second is "items#2"."""
    given = list(names)
    found: list[str] = []
    for name in given:
        numbered = (f"{name}#{number}" for number in itertools.count(2))
        taken = {*given, *found}
        found.append(next(n for n in numbered if n not in taken) if name in found else name)
    return found


def nearest(word: Any, choices: Any) -> str:
    """A hint for an error: the choice that a word is nearest to; "" where none is near."""
    words = [choice for choice in choices if isinstance(choice, str)]
    found = difflib.get_close_matches(str(word), words, 1, 0.5)
    return f"; did you mean '{found[0]}'?" if found else ""


def check_max_norm(owner, value):
    """The `max_norm` of a lookup as a float, or None: there is no limit. Infinity is none.

    Args:
        owner: what it is given for, for the message.
        value: None, or a positive number that is not 0 in float32, the type of norms.

    Raises:
        TypeError: `value` is not a number.
        ValueError: it is not positive.
    """
    if value is None:
        return None
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        number = float(value)
    except TypeError:
        raise TypeError(
            f"{owner}: expected max_norm to be a number or None, got {value!r}"
        ) from None
    if not ctypes.c_float(number).value > 0:
        raise ValueError(
            f"{owner}: expected max_norm to be positive in float32, or None for no limit, got "
            f"{number}"
        )
    return None if math.isinf(number) else number


def _freeze(config, attribute, value):
    """Sets an attribute of a frozen dataclass while it is being constructed."""
    object.__setattr__(config, attribute, value)


def _check_name(what, name):
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what}: expected a name that is a string and not empty, got {name!r}")


def _positive_int(owner, attribute, value):
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{owner}: expected {attribute} to be an int, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{owner}: expected {attribute} to be at least 1, got {number}")
    return number


def _positive_float(owner, attribute, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: expected {attribute} to be a number or None, got {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{owner}: expected {attribute} to be positive and finite, got {value!r}")
    return float(value)

"""Placements of tables over ranks, as plain values. `cc/core/owner.h` computes the owner of a
row."""

import dataclasses
import re

DISTRIBUTED, REPLICATED, AUTO = "distributed", "replicated", "auto"
DISTRIBUTED_SUMS = "distributed:sums"
COLUMNS, COLUMNS_SUMS = "columns", "columns:sums"
TWO_LEVELS = "distributed:two_levels"
_LOCALIZED = re.compile(r"localized:(\d+)(:sums|:two_levels)?$")
_WORDS = DISTRIBUTED, DISTRIBUTED_SUMS, COLUMNS, COLUMNS_SUMS, TWO_LEVELS, REPLICATED, AUTO
_KINDS = "mod", "hash", "one_rank", "columns"
_CHOICES = (
    "'distributed', 'localized:<rank>' or 'columns', each with ':sums' behind it or without, the "
    "first two with ':two_levels', 'replicated' or 'auto'"
)


@dataclasses.dataclass(frozen=True)
class Placement:
    """How the rows of one table are spread over the ranks: 'mod', by their number; 'hash', by their
    key; 'one_rank': all are on `rank`; 'columns': each rank has as many columns of all rows.

    With `sums` an owner combines the rows of a sample and sends their sum; else it sends the rows.
    With `two_levels` it sends a row once to each host, whose ranks share it; else to each rank.

    The methods are about tables by row. A key has the same number on its owner as elsewhere, and
    `ge.owner_of` names the owner.
    """

    kind: str
    rank: int = 0
    sums: bool = False
    two_levels: bool = False

    def __post_init__(self):
        if self.kind not in _KINDS:
            choices = ", ".join(map(repr, _KINDS))
            raise ValueError(f"Placement: expected kind to be one of {choices}, got {self.kind!r}")

    @property
    def is_by_columns(self):
        """True if each rank has some columns of all rows."""
        return self.kind == "columns"

    def num_local_columns(self, dim, num_ranks):
        """How many of a table's columns each rank stores."""
        return dim // num_ranks if self.is_by_columns else dim

    def columns_of(self, dim, rank, num_ranks):
        """The columns of a whole table that `rank` stores: a slice."""
        size = self.num_local_columns(dim, num_ranks)
        first = rank * size if self.is_by_columns else 0
        return slice(first, first + size)

    def num_local_rows(self, num_rows, rank, num_ranks):
        """How many of a table's rows `rank` stores."""
        self._check_by_row("num_local_rows")
        if self.is_by_columns:
            return num_rows
        if self.kind == "one_rank":
            return num_rows if rank == self.rank else 0
        return (num_rows - rank + num_ranks - 1) // num_ranks

    def rows_of(self, rank, num_ranks):
        """The rows of a whole table that `rank` stores, in the order of its local rows: a slice."""
        self._check_by_row("rows_of")
        if self.is_by_columns:
            return slice(0, None, 1)
        if self.kind == "one_rank":
            return slice(0, None, 1) if rank == self.rank else slice(0, 0, 1)
        return slice(rank, None, num_ranks)

    def owner_of(self, rows, num_ranks):
        """The rank that stores each row of a table by row number.

        Args:
            rows: numbers of rows: an int, an array or a tensor of integers.
            num_ranks: of the job.
        """
        self._check_by_row("owner_of")
        if self.is_by_columns:
            raise ValueError(
                "Placement('columns').owner_of: expected a table whose rows have one owner each, "
                "got one of which each rank stores some columns of all rows"
            )
        return rows * 0 + self.rank if self.kind == "one_rank" else rows % num_ranks

    def local_row(self, rows, num_ranks):
        """The number that each row has on its owner; arguments as of `owner_of`."""
        self._check_by_row("local_row")
        return rows // num_ranks if self.kind == "mod" else rows

    def _check_by_row(self, method):
        if self.kind == "hash":
            raise ValueError(
                f"Placement('hash').{method}: expected a table whose rows have numbers, got one "
                "whose rows are found by key; ge.owner_of(table, keys) says which ranks store keys"
            )

    def __str__(self):
        words = {"one_rank": f"localized:{self.rank}", "columns": COLUMNS}
        where = words.get(self.kind, DISTRIBUTED)
        return where + ":sums" * self.sums + ":two_levels" * self.two_levels


def check_placement(owner, word):
    """Returns `word` if it names a placement.

    Args:
        owner: what asks for it, for the message.
        word: 'distributed', 'localized:<rank>' or 'columns', each with ':sums' behind it or
            without, the first two with ':two_levels', 'replicated' or 'auto'.

    Raises:
        ValueError: it is none of them.
    """
    if word in _WORDS or localized_rank(word) is not None:
        return word
    raise ValueError(f"{owner}: expected placement to be {_CHOICES}, got {word!r}")


def localized_rank(word):
    """The rank of 'localized:<rank>', whatever stands behind it; else None."""
    match = _LOCALIZED.match(word) if isinstance(word, str) else None
    return int(match.group(1)) if match else None


def sends_sums(word):
    """Returns whether a placement has owners send sums of rows: one of its words ends so."""
    return word.endswith(":sums")


def crosses_once(word):
    """Returns whether a placement has rows cross once to each host: one of its words says so."""
    return word.endswith(":two_levels")


def is_by_columns(word):
    """Returns whether a placement spreads columns over the ranks."""
    return word in (COLUMNS, COLUMNS_SUMS)


def check_columns(owner, dim, num_ranks):
    """Refuses to spread columns over ranks that do not divide their number.

    Raises:
        ValueError: they do not.
    """
    if dim % num_ranks:
        raise ValueError(
            f"{owner}: expected a dim that {num_ranks} ranks divide, as placement 'columns' gives "
            f"each rank as many columns, got {dim}; make it a multiple, or place the table by rows "
            "('distributed')"
        )


def no_saved_model(name, num_ranks):
    """The error of a SavedModel of a table that is spread over ranks."""
    return ValueError(
        f"table '{name}': expected no SavedModel of a table that is spread over {num_ranks} ranks, "
        "as lookups would ask the other ranks; save a checkpoint or a .keras file on all ranks, "
        "and on one, inside of ge.exchange.unsharded(), make the model anew, restore and export it"
    )


def to_placement(owner, word, num_ranks, keyed):
    """The Placement that a word stands for; None: each rank has the whole table. One process by
    itself has all tables, whatever the words say.

    Args:
        owner: see `check_placement`.
        word: see `check_placement`; 'auto' of a table alone is 'distributed'.
        num_ranks: of the job.
        keyed: whether the table's rows are found by key.

    Raises:
        ValueError: there is no such rank, or each rank would have keys of its own, or some columns
            of keys.
    """
    check_placement(owner, word)
    if num_ranks == 1:
        return None
    rank = localized_rank(word)
    if rank is not None:
        if rank >= num_ranks:
            raise ValueError(
                f"{owner}: expected placement to name a rank below {num_ranks}, got {word!r}"
            )
        return Placement("one_rank", rank, sends_sums(word), crosses_once(word))
    if word == REPLICATED:
        if keyed:
            raise ValueError(
                f"{owner}: expected another placement than 'replicated', as its rows are found by "
                "key, and ranks would have different ones"
            )
        return None
    if is_by_columns(word):
        if keyed:
            raise ValueError(
                f"{owner}: expected another placement than {word!r}, as its rows are found by key, "
                "and columns are spread of tables whose rows have numbers; use 'distributed:sums'"
            )
        return Placement("columns", sums=sends_sums(word))
    kind = "hash" if keyed else "mod"
    return Placement(kind, sums=sends_sums(word), two_levels=crosses_once(word))

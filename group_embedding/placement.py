"""Placements of tables over ranks, as plain values. `cc/core/owner.h` computes the owner of a
row."""

import dataclasses
import re

DISTRIBUTED, REPLICATED, AUTO = "distributed", "replicated", "auto"
DISTRIBUTED_SUMS = "distributed:sums"
_LOCALIZED = re.compile(r"localized:(\d+)(:sums)?$")
_KINDS = "mod", "hash", "one_rank"
_CHOICES = (
    "'distributed', 'localized:<rank>', either with ':sums' behind it, 'replicated' or 'auto'"
)


@dataclasses.dataclass(frozen=True)
class Placement:
    """How the rows of one table are spread over the ranks: 'mod', by their number; 'hash', by their
    key; 'one_rank': all are on `rank`.

    With `sums` an owner combines the rows of a sample and sends their sum; else it sends the rows.

    The methods are about tables by row. A key has the same number on its owner as elsewhere, and
    `ge.owner_of` names the owner.
    """

    kind: str
    rank: int = 0
    sums: bool = False

    def __post_init__(self):
        if self.kind not in _KINDS:
            choices = ", ".join(map(repr, _KINDS))
            raise ValueError(f"Placement: expected kind to be one of {choices}, got {self.kind!r}")

    def num_local_rows(self, num_rows, rank, num_ranks):
        """How many of a table's rows `rank` stores."""
        self._check_by_row("num_local_rows")
        if self.kind == "one_rank":
            return num_rows if rank == self.rank else 0
        return (num_rows - rank + num_ranks - 1) // num_ranks

    def rows_of(self, rank, num_ranks):
        """The rows of a whole table that `rank` stores, in the order of its local rows: a slice."""
        self._check_by_row("rows_of")
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
        return rows * 0 + self.rank if self.kind == "one_rank" else rows % num_ranks

    def local_row(self, rows, num_ranks):
        """The number that each row has on its owner; arguments as of `owner_of`."""
        self._check_by_row("local_row")
        return rows if self.kind == "one_rank" else rows // num_ranks

    def _check_by_row(self, method):
        if self.kind == "hash":
            raise ValueError(
                f"Placement('hash').{method}: expected a table whose rows have numbers, got one "
                "whose rows are found by key; ge.owner_of(table, keys) says which ranks store keys"
            )

    def __str__(self):
        where = f"localized:{self.rank}" if self.kind == "one_rank" else DISTRIBUTED
        return f"{where}:sums" if self.sums else where


def check_placement(owner, word):
    """Returns `word` if it names a placement.

    Args:
        owner: what asks for it, for the message.
        word: 'distributed', 'distributed:sums', 'localized:<rank>', 'localized:<rank>:sums',
            'replicated' or 'auto'.

    Raises:
        ValueError: it is none of them.
    """
    if (
        word in (DISTRIBUTED, DISTRIBUTED_SUMS, REPLICATED, AUTO)
        or localized_rank(word) is not None
    ):
        return word
    raise ValueError(f"{owner}: expected placement to be {_CHOICES}, got {word!r}")


def localized_rank(word):
    """The rank of 'localized:<rank>', with ':sums' or without; else None."""
    match = _LOCALIZED.match(word) if isinstance(word, str) else None
    return int(match.group(1)) if match else None


def sends_sums(word):
    """Returns whether a placement has owners send sums of rows: one of its words ends so."""
    return word.endswith(":sums")


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
        ValueError: there is no such rank, or each rank would have keys of its own.
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
        return Placement("one_rank", rank, sends_sums(word))
    if word == REPLICATED:
        if keyed:
            raise ValueError(
                f"{owner}: expected another placement than 'replicated', as its rows are found by "
                "key, and ranks would have different ones"
            )
        return None
    return Placement("hash" if keyed else "mod", sums=sends_sums(word))

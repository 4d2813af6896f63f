"""Which rows a rank has, and the sizes of its batches: the same number on every rank.

The rows of all files, in the order of an epoch, are cut into one range for each rank. Ranges differ
by one row at most, and so would the number of batches where a range ends just there: with N rows, R
ranks and batches of b rows every rank has ceil(ceil(N / R) / b) batches, or floor(floor(N / R) / b)
without remainders. A rank whose rows would not reach its last batch has b - 1 rows in the batch
before and one in the last, so that no batch is empty, no row is lost and none is read twice.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows of one rank.

    Attributes:
      begin, end: The range, of the rows in the order of an epoch.
      batch_size: Rows of a batch.
      num_batches: Batches of an epoch, the same on every rank.
      drop_remainder: Whether all batches have `batch_size` rows.
    """

    begin: int
    end: int
    batch_size: int
    num_batches: int
    drop_remainder: bool

    def size_of(self, batch):
        """Rows of the batch with this number."""
        rows, size, last = self.end - self.begin, self.batch_size, self.num_batches - 1
        if self.drop_remainder or batch < last - 1:
            return size
        if rows > last * size:
            return size if batch < last else rows - last * size
        return size - 1 if batch < last else 1


def share_of(num_rows, rank, num_ranks, batch_size, drop_remainder):
    """The `Share` of a rank.

    Raises:
        ValueError: there are too few rows for a batch on every rank.
    """
    begin, end = num_rows * rank // num_ranks, num_rows * (rank + 1) // num_ranks
    least, most = num_rows // num_ranks, -(-num_rows // num_ranks)
    num_batches = least // batch_size if drop_remainder else -(-most // batch_size)
    needed = batch_size * num_ranks if drop_remainder else num_ranks
    if num_rows < needed:
        raise ValueError(
            f"reader: expected {needed} rows or more, for a batch on each of {num_ranks} ranks, "
            f"got {num_rows}"
        )
    if not drop_remainder and batch_size == 1 and num_rows % num_ranks:
        raise ValueError(
            f"reader: expected rows that {num_ranks} ranks can share in batches of 1, got "
            f"{num_rows} rows; give a larger batch_size or drop_remainder=True"
        )
    return Share(begin, end, batch_size, num_batches, drop_remainder)

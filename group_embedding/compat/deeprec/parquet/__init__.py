"""Batches of Parquet files, as DeepRec reads them."""

from group_embedding.compat.deeprec.parquet.dataframe import (
    DataFrame,
    to_sparse,
    unbatch_and_to_sparse,
)
from group_embedding.compat.deeprec.parquet.dataset import ParquetDataset, read_parquet

__all__ = ["DataFrame", "ParquetDataset", "read_parquet", "to_sparse", "unbatch_and_to_sparse"]

"""Batches of files of samples: readers of Parquet, CSV, TFRecord and binary layouts."""

from group_embedding.data.binary_files import HugeCTRRawFormat, TorchRecFormat
from group_embedding.data.columns import Column
from group_embedding.data.csv_files import CsvFormat, criteo_tsv
from group_embedding.data.describe import ColumnDescription, Description, describe
from group_embedding.data.files import find_files
from group_embedding.data.parquet_files import ParquetFormat
from group_embedding.data.pieces import FileFormat
from group_embedding.data.reader import CountBatches, Reader
from group_embedding.data.schema import Feature, Schema
from group_embedding.data.state import ReaderState
from group_embedding.data.tfrecord_files import TFRecordFormat

__all__ = [
    "Column",
    "ColumnDescription",
    "CountBatches",
    "CsvFormat",
    "Description",
    "Feature",
    "FileFormat",
    "HugeCTRRawFormat",
    "ParquetFormat",
    "Reader",
    "ReaderState",
    "Schema",
    "TFRecordFormat",
    "TorchRecFormat",
    "criteo_tsv",
    "describe",
    "find_files",
]

"""Files of samples: readers, schemas, preprocessing."""

from group_embedding.data.binary_files import HugeCTRRawFormat, TorchRecFormat
from group_embedding.data.columns import Column
from group_embedding.data.count_batches import CountBatches
from group_embedding.data.csv_files import CsvFormat, criteo_tsv
from group_embedding.data.describe import ColumnDescription, Description, describe
from group_embedding.data.files import find_files
from group_embedding.data.fitted_steps import Categorify, Standardize
from group_embedding.data.parquet_files import ParquetFormat
from group_embedding.data.pieces import FileFormat
from group_embedding.data.pipeline import Pipeline
from group_embedding.data.reader import Reader
from group_embedding.data.schema import Feature, Schema
from group_embedding.data.state import ReaderState
from group_embedding.data.steps import Bucketize, Clip, Cross, FillMissing, Hash, Log
from group_embedding.data.tfrecord_files import TFRecordFormat
from group_embedding.data.time_split import split_by_time
from group_embedding.file_systems import DataSourceParams, FileSystemType_t

__all__ = [
    "Bucketize",
    "Categorify",
    "Clip",
    "Column",
    "ColumnDescription",
    "CountBatches",
    "Cross",
    "CsvFormat",
    "DataSourceParams",
    "Description",
    "Feature",
    "FileFormat",
    "FileSystemType_t",
    "FillMissing",
    "Hash",
    "HugeCTRRawFormat",
    "Log",
    "ParquetFormat",
    "Pipeline",
    "Reader",
    "ReaderState",
    "Schema",
    "Standardize",
    "TFRecordFormat",
    "TorchRecFormat",
    "criteo_tsv",
    "describe",
    "find_files",
    "split_by_time",
]

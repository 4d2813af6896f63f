"""Files of samples: readers, schemas, preprocessing."""

from group_embedding.files import DataSourceParams, FileSystemType_t

# For extensions: `arrow`, `to_array`, `type_of`.
from group_embedding.recommender.data.arrow_columns import to_array as to_array
from group_embedding.recommender.data.arrow_columns import type_of as type_of
from group_embedding.recommender.data.binary_files import HugeCTRRawFormat, TorchRecFormat
from group_embedding.recommender.data.columns import Column
from group_embedding.recommender.data.count_batches import CountBatches
from group_embedding.recommender.data.csv_files import CsvFormat, criteo_tsv
from group_embedding.recommender.data.describe import ColumnDescription, Description, describe
from group_embedding.recommender.data.files import arrow as arrow
from group_embedding.recommender.data.files import find_files
from group_embedding.recommender.data.fitted_steps import Categorify, Standardize
from group_embedding.recommender.data.parquet_files import ParquetFormat
from group_embedding.recommender.data.pieces import FileFormat
from group_embedding.recommender.data.pipeline import Pipeline
from group_embedding.recommender.data.reader import Reader
from group_embedding.recommender.data.schema import Feature, Schema
from group_embedding.recommender.data.state import ReaderState
from group_embedding.recommender.data.steps import Bucketize, Clip, Cross, FillMissing, Hash, Log
from group_embedding.recommender.data.tfrecord_files import TFRecordFormat
from group_embedding.recommender.data.time_split import split_by_time

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

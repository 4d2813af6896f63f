"""Formats by their names, and by the names of files."""

from group_embedding.recommender.data.binary_files import HugeCTRRawFormat, TorchRecFormat
from group_embedding.recommender.data.csv_files import CsvFormat, criteo_tsv
from group_embedding.recommender.data.parquet_files import ParquetFormat
from group_embedding.recommender.data.pieces import FileFormat
from group_embedding.recommender.data.tfrecord_files import TFRecordFormat

FORMATS = {
    "parquet": ParquetFormat,
    "csv": CsvFormat,
    "tsv": lambda: CsvFormat("\t"),
    "criteo": criteo_tsv,
    "tfrecord": TFRecordFormat,
    "hugectr": HugeCTRRawFormat,
    "torchrec": TorchRecFormat,
}
_SUFFIXES = {
    **{".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv"},
    **{".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".npy": "torchrec"},
}


def format_of(file_format, path):
    """The `FileFormat` that a reader was given, by name, or that the name of a file says."""
    if isinstance(file_format, FileFormat):
        return file_format
    choices = ", ".join(f"'{name}'" for name in FORMATS)
    if file_format is not None:
        if file_format not in FORMATS:
            raise ValueError(
                f"format: expected one of {choices}, or a FileFormat, got {file_format!r}"
            )
        return FORMATS[file_format]()
    plain = path[: -len(".gz")] if path.endswith(".gz") else path
    for suffix, name in _SUFFIXES.items():
        if plain.endswith(suffix):
            return FORMATS[name]()
    raise ValueError(
        f"format: expected a file that ends in {', '.join(_SUFFIXES)}, got '{path}'; give the "
        f"format, one of {choices}"
    )

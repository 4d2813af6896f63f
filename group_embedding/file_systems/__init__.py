"""Files by URL: object stores, HDFS, and what else fsspec reaches. README.md is the map."""

from group_embedding.file_systems.data_source import DataSourceParams, FileSystemType_t

__all__ = ["DataSourceParams", "FileSystemType_t"]

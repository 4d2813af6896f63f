"""Files by URL: object stores, HDFS, and what else fsspec reaches. README.md is the map."""

from group_embedding.files import remote_files as remote_files
from group_embedding.files.connections import FileSystemError as FileSystemError
from group_embedding.files.connections import is_remote as is_remote
from group_embedding.files.connections import join as join
from group_embedding.files.connections import local_path as local_path
from group_embedding.files.create_once import create_file as create_file
from group_embedding.files.data_source import DataSourceParams, FileSystemType_t
from group_embedding.files.data_source import url_of as url_of
from group_embedding.files.progress_line import ProgressLine as ProgressLine
from group_embedding.files.remote_files import exists as exists
from group_embedding.files.remote_files import local_copy as local_copy
from group_embedding.files.remote_files import open_file as open_file
from group_embedding.files.remote_files import size_of as size_of
from group_embedding.files.remote_files import version_of as version_of
from group_embedding.files.transfers import StoredFile as StoredFile
from group_embedding.files.transfers import receive_files as receive_files
from group_embedding.files.transfers import send_files as send_files

__all__ = ["DataSourceParams", "FileSystemType_t"]

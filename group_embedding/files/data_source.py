"""`DataSourceParams`: the file system of a whole job, in HugeCTR's words."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

from group_embedding.files.connections import is_remote, local_path, set_options


class FileSystemType_t(enum.Enum):
    """HugeCTR's names of file systems."""

    Local = "Local"
    HDFS = "HDFS"
    S3 = "S3"
    GCS = "GCS"


@dataclasses.dataclass(frozen=True)
class DataSourceParams:
    """The file system on which a job's data, checkpoints and models lie.

    Where it is given, paths need no scheme and no server: `/train` is then `hdfs://SERVER:PORT/train`
    or, in object stores, whose first folder is the bucket, `s3://train`. Whole URLs stay as they
    are. Credentials are those of the client: its environment variables and files.

    Example:

    >>> hdfs = ge.data.DataSourceParams(ge.data.FileSystemType_t.HDFS, "namenode", 9000)
    >>> hdfs.url("/shop/day_1.parquet")
    'hdfs://namenode:9000/shop/day_1.parquet'
    >>> ge.data.DataSourceParams("S3", "us-east-1").url("shop/day_1.parquet")
    's3://shop/day_1.parquet'

    Args:
        source: A `FileSystemType_t`, HugeCTR's own, or its name: "Local", "HDFS", "S3" or "GCS".
        server: HDFS: the namenode; none: localhost. S3: the region, or the endpoint as a URL
            (`http://host:8333`), or the host of a server of your own, with `port`; none: as the
            environment says. GCS: the endpoint.
        port: HDFS: the namenode's. S3: that of a host which is no region. Elsewhere unused, as in
            HugeCTR.

    Raises:
        ValueError: The source is not one of these.
    """

    source: FileSystemType_t | str = FileSystemType_t.Local
    server: str = ""
    port: int = 9000

    def __post_init__(self) -> None:
        name = str(getattr(self.source, "name", self.source))
        try:
            kind = FileSystemType_t[name]
        except KeyError:
            choices = ", ".join(f"'{kind.name}'" for kind in FileSystemType_t)
            raise ValueError(
                f"DataSourceParams: source: expected one of {choices}, got {name!r}"
            ) from None
        object.__setattr__(self, "source", kind)

    def url(self, path: str | os.PathLike) -> str:
        """The URL of a path of this file system, or a path of this machine for "Local"."""
        path = local_path(path)
        if is_remote(path) or self.source is FileSystemType_t.Local:
            return self._with_options(path)
        if self.source is FileSystemType_t.HDFS:
            return f"hdfs://{self.server or 'localhost'}:{self.port}/{path.lstrip('/')}"
        scheme = "s3" if self.source is FileSystemType_t.S3 else "gs"
        return self._with_options(f"{scheme}://{path.lstrip('/')}")

    def _with_options(self, url):
        """The URL, whose bucket is from now on reached at this server."""
        options = self._options()
        if options and url.partition("://")[0] in ("s3", "s3a", "gs", "gcs"):
            set_options(url, options)
        return url

    def _options(self) -> dict[str, Any]:
        server = self.server
        if self.source is FileSystemType_t.S3 and server:
            if "-" in server and "." not in server and "://" not in server:
                return {"client_kwargs": {"region_name": server}}
            whole = "://" in server
            return {"endpoint_url": server if whole else f"http://{server}:{self.port}"}
        if self.source is FileSystemType_t.GCS and server not in ("", _GOOGLE):
            return {"endpoint_url": server if "://" in server else f"https://{server}"}
        return {}


_GOOGLE = "storage.googleapis.com"


def url_of(path: Any, data_source: DataSourceParams | None) -> str:
    """A path, or the URL that a data source makes of it."""
    return local_path(path) if data_source is None else data_source.url(path)

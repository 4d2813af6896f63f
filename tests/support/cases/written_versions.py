"""Versions that tests write without a trainer, and compare byte by byte."""

import numpy as np

from group_embedding.serving import open_target
from group_embedding.serving.publish.version_writer import Content, VersionWriter
from group_embedding.serving.stores import records


class Writer:
    """Writes bases and deltas of random content to a target.

    Args:
        url: The target's.
        scratch: A folder for bases.
        size: The number of float32 that a delta has.
    """

    def __init__(self, url, scratch, size=1000):
        self.target = open_target(url)
        self.writer = VersionWriter(self.target, "shop")
        self._scratch, self._size = scratch, size
        self._random = np.random.default_rng(0)
        self._step = 0

    def base(self, num_files=3, size=10_000):
        """Writes a base without a parent."""
        self._step += 1
        folder = self._scratch / f"base-{self._step}"
        (folder / "variables").mkdir(parents=True)
        for number in range(num_files):
            content = self._random.bytes(size * number)  # the first is empty
            (folder / "variables" / f"{number}").write_bytes(content)
        (folder / "saved_model.pb").touch()
        return self.writer.write(Content(self._step, str(folder), None, self._variables()))

    def delta(self):
        """Writes a delta; its parent is the version before."""
        self._step += 1
        return self.writer.write(Content(self._step, None, {}, self._variables()))

    def close(self):
        self.target.close()

    def _variables(self):
        return {"weights": self._random.normal(size=self._size).astype(np.float32)}


def bytes_of(target, version):
    """{name: content} of a version in a target, its record included."""
    content = target.record(version)
    found = {"COMMIT": content}
    for file in records.decode(content, "COMMIT").files:
        path = target.path(version, file.path)
        if file.kind == records.MODEL_FILE:
            path = f"{target.base_path(version)}/{file.path}"
        with target.open(path) as opened:
            found[file.path] = opened.read()
    return found

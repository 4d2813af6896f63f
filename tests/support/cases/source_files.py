"""The source files of the project, and what tests of its structure read of them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "group_embedding"
NATIVE = ROOT / "cc"


def native_files(*folders):
    folders = [NATIVE / folder for folder in folders] or [NATIVE]
    return [
        f
        for folder in folders
        for f in folder.rglob("*")
        if f.suffix in (".h", ".cc", ".cu", ".cuh")
    ]


def includes(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def offenders(files, find):
    return {str(f.relative_to(ROOT)): find(f) for f in files if find(f)}

"""One pass over all rows of files, piece by piece."""

from __future__ import annotations

import functools

from group_embedding.recommender.data.formats import format_of
from group_embedding.recommender.data.read_ahead import ReadAhead


def scan(files, columns, file_format=None, strict=True, num_threads=2):
    """Generates (the file's path, the piece's first row in the file, the piece, the share of all
    units that were read before).

    Args:
        files: paths.
        columns: complete columns.
        file_format: as `Reader` takes it.
        strict: raise BadRow at a bad row, in place of leaving it out.
    """
    file_format = format_of(file_format, files[0])
    units = [unit for path in files for unit in file_format.units(path)]
    read = functools.partial(_read, file_format, columns, strict)
    sources = (functools.partial(read, number, unit) for number, unit in enumerate(units))
    path, row = None, 0
    for number, piece in ReadAhead(sources, num_threads):
        if units[number].path != path:
            path, row = units[number].path, 0
        yield path, row, piece, number / len(units)
        row += piece.num_rows


def _read(file_format, columns, strict, number, unit):
    for piece in file_format.read(unit, columns, strict):
        yield number, piece

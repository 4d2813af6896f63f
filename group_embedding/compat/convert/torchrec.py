"""State dicts of TorchRec.

An EmbeddingBagCollection saves the table NAME as `...embedding_bags.NAME.weight`, an
EmbeddingCollection as `...embeddings.NAME.weight`. Row numbers become keys.
"""

from __future__ import annotations

import re

from group_embedding.compat.convert.rows import Part, SavedTable, table_of_parts
from group_embedding.compat.convert.torch_files import torch_tensors

_TABLE = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.(?P<name>[^.]+)\.weight$")


def tables(path: str) -> list[SavedTable]:
    """The tables of a state dict.

    Args:
        path: of a file that `torch.save(model.state_dict(), path)` wrote.
    """
    tensors = torch_tensors(path)
    found = {}
    for name, array in tensors.items():
        match = _TABLE.match(name)
        if match is not None and array.width:
            if match["name"] in found:
                raise ValueError(f"{path}: expected one table '{match['name']}', got two")
            found[match["name"]] = table_of_parts(match["name"], [Part(None, array)])
    return list(found.values())

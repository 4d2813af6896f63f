"""`kv_variable_ops.lookup_tier`: DeepRec's function beside the method of that name."""


def lookup_tier(table, keys):
    """The tier in which the row of each key lies: see `EmbeddingVariable.lookup_tier`.

    Args:
        table: an EmbeddingVariable.
        keys: a tensor of its key_dtype.

    Returns:
        A tensor of the shape of `keys`: 0 for the fastest tier, -1 for a key without a row.
    """
    return table.lookup_tier(keys)

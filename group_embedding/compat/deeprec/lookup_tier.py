"""`kv_variable_ops.lookup_tier`: DeepRec's function beside the method of that name."""


def lookup_tier(table, keys):
    """The tier of each key's row: see `EmbeddingVariable.lookup_tier`."""
    return table.lookup_tier(keys)

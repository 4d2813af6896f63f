"""The lookups that one op serves: one object from the call of a user down to the op."""

import dataclasses

# The attributes by which lookup ops describe a group, beside the type of its rows.
GROUP_ATTRS = (
    "dims",
    "max_norms",
    "table_names",
    "table_of_feature",
    "combiners",
    "feature_names",
    "prune_negative",
    "invalid_ids",
)


@dataclasses.dataclass(frozen=True, eq=False)
class LookupGroup:
    """Features that are looked up together, their tables and their options.

    Attributes:
        tables: a list of `lookups.lookup_table.Table`, each once. For `group_lookup` they are of
            one dtype, and keyed ones of one device.
        table_of_feature: for each feature, the index into `tables`.
        combiners: 'sum', 'mean', 'sqrtn', 'signed_mean' or 'signed_sqrtn' for each feature.
        names: of the features, for messages.
        prune_negative: whether negative ids, and weights that are not positive, are left out.
        invalid_ids: 'raise' or 'ignore', for ids outside their table.
    """

    tables: list
    table_of_feature: list
    combiners: list
    names: list
    prune_negative: bool
    invalid_ids: str

    @property
    def keyed(self):
        """The indices of the tables whose rows are found by key."""
        return [t for t, table in enumerate(self.tables) if table.keyed is not None]

    def attrs(self):
        """The values of `GROUP_ATTRS`, and `dtype`."""
        return {
            "dtype": self.tables[0].dtype,
            "dims": [table.dim for table in self.tables],
            "max_norms": [table.max_norm for table in self.tables],
            "table_names": [table.name for table in self.tables],
            "table_of_feature": self.table_of_feature,
            "combiners": self.combiners,
            "feature_names": self.names,
            "prune_negative": self.prune_negative,
            "invalid_ids": self.invalid_ids,
        }


def rows_of_tables(tables, invalid_ids="raise"):
    """The group with a feature per table, whose samples are single rows."""
    return LookupGroup(
        tables,
        list(range(len(tables))),
        ["sum"] * len(tables),
        [table.name for table in tables],
        prune_negative=False,
        invalid_ids=invalid_ids,
    )

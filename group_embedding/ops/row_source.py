"""Sources of rows for a group: the interface, and tables that this process holds whole."""

from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.locate_rows import locate_rows
from group_embedding.ops.prefetch_rows import prefetch_rows


class RowSource:
    """Looks groups up. A group is an `ops.lookup_group.LookupGroup`; its batch is an
    `ops.group_ids.Batch`, or what `exchange_ids` returned of one."""

    def exchange_ids(self, group, batch):
        """Sends ids to the ranks that own their rows, if that comes before the lookup and is not
        done yet. Returns the batch to look up."""
        del group
        return batch

    def prefetch(self, group, batch):
        """Has the rows of a batch begin to move to the first tier of their tables. Returns the
        batch to look up."""
        del group
        return batch

    def fetch_ahead(self, group, batch):
        """Fetches rows of other ranks ahead of the lookup, which fetches those that have changed by
        then. Returns the batch to look up."""
        del group
        return batch

    def look_up(self, group, batch, concat):
        """Looks a batch up and combines its rows.

        Returns:
            A list with a [samples, dim] tensor per feature, or with one [samples, sum of dims].
        """
        raise NotImplementedError


class LocalRows(RowSource):
    """Tables of this process alone."""

    def prefetch(self, group, batch):
        return prefetch_rows([table.keyed for table in group.tables], batch, group.table_of_feature)

    def look_up(self, group, batch, concat, times=None):
        """See `RowSource`; `times` is that of `locate`."""
        return group_lookup(group, self.locate(group, batch, times), concat)

    @staticmethod
    def locate(group, batch, times=None):
        """Replaces keys by row numbers. Keys without a row get one in training.

        Args:
            times: None, or the occurrences of each of the batch's keys.
        """
        if not group.keyed:
            return batch
        return locate_rows(group.tables, batch, group.table_of_feature, times)


LOCAL_ROWS = LocalRows()

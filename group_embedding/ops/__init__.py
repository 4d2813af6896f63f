"""One thin module per native op, with its gradient."""

# For extensions.
from group_embedding.ops import table_changes as table_changes
from group_embedding.ops._library import core as core
from group_embedding.ops._library import library as library
from group_embedding.ops.pending_calls import waits_in as waits_in
from group_embedding.ops.read_rows import read_rows as read_rows

"""How the ranks of a job send tensors to each other.

`Exchange` is the interface; `current()` is the exchange that tables made now are spread over.
"""

from group_embedding.ops.pending_calls import waits_in as waits_in
from group_embedding.ranks.exchange.active import current, unsharded
from group_embedding.ranks.exchange.gather_strings import gather_text as gather_text
from group_embedding.ranks.exchange.interface import Exchange

__all__ = ["Exchange", "current", "unsharded"]

"""How the ranks of a job send tensors to each other.

`Exchange` is the interface; `current()` is the exchange that tables made now are spread over.
"""

from group_embedding.exchange.active import current, unsharded
from group_embedding.exchange.interface import Exchange

__all__ = ["Exchange", "current", "unsharded"]

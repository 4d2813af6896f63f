"""Every rank learns when another one dies, hangs, raises or leaves, or waits in another call, and
when two hosts do not reach each other, and ends with an error that says so.

Collectives wait for all ranks, and a rank that is stopped answers no connection's closing. So each
rank has a thread that says each second that it lives, and in which calls it waits, to a hub in rank
0, and the hub says the same to all. A rank that is silent for too long hangs; a rank whose
connection closes without a word has died; ranks that wait for each other in different calls
disagree.

    rank 1 ── alive, alive, raised: ValueError ──> hub in rank 0 ── ended: rank 1 ... ──> all others

`watch` is a rank's part and `hub` rank 0's; `lines` is what they say to each other, and how;
`disagreement` finds ranks that wait for each other, and `links` hosts that do not reach each other
though both reach rank 0. `connections` connects ranks in pairs; `own_address` is where a rank
listens, `identity` tells processes apart, and `error_line` is the line that describes an error.
Imports neither TensorFlow nor Horovod: `enable_distributed_strategy` hands it the addresses.
"""

from .watch import SIGNS_OF_A_LOSS, Watch

__all__ = ["SIGNS_OF_A_LOSS", "Watch"]

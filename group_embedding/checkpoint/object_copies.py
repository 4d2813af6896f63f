"""Copies of the objects of a `tf.train.Checkpoint`, for a thread to write in their place."""

import contextlib

from tensorflow.python.checkpoint import async_checkpoint_helper
from tensorflow.python.trackable import base
from tensorflow.python.util import object_identity

from group_embedding.checkpoint.by_object import SavedByObject, TableInBackground
from group_embedding.checkpoint.snapshots import take_snapshots


def copies_of(checkpoint, changes):
    """{object: its copy} of all that a Checkpoint saves, but for its own counter.

    Keyed tables are snapshot at one instant; dense variables are copied one after the other, while
    nobody may train.

    Raises:
        ValueError: an object can not be copied, and would be saved as it is later.
    """
    # The counter is made now: a request for it while the thread saves would make another one.
    own = object_identity.ObjectIdentitySet([checkpoint, checkpoint.save_counter])
    saved, objects = async_checkpoint_helper._get_all_trackables(checkpoint, own)
    copies = object_identity.ObjectIdentityDictionary()
    tables = [item for item in objects if isinstance(item, SavedByObject)]
    if tables:
        for table, snapshot in zip(tables, take_snapshots(tables, changes)):
            copies[table] = TableInBackground(table, snapshot)
    for item in [*saved, *_slots(objects)]:
        if item not in copies:
            _copy(item, copies)
    return copies


@contextlib.contextmanager
def saving_copies(checkpoint, copies):
    """Within it, `checkpoint` saves `copies`."""
    checkpoint._saver._object_map = copies
    try:
        yield
    finally:
        checkpoint._saver._object_map = None


def _copy(item, copies):
    try:
        item._copy_trackable_to_cpu(object_map=copies)
    except NotImplementedError:
        raise ValueError(
            f"expected objects that can be copied, to be saved in the background, got {item!r}; "
            "save it in a checkpoint of its own"
        ) from None


def _slots(objects):
    """Variables that optimizers of TensorFlow 1, and legacy ones, do not track as children."""
    optimizers = [item for item in objects if "get_slot_names" in dir(item)]
    variables = [item for item in objects if hasattr(item, "assign") and hasattr(item, "handle")]
    for optimizer in optimizers:
        for name in optimizer.get_slot_names():
            for variable in variables:
                with contextlib.suppress(AttributeError, KeyError):
                    slot = optimizer.get_slot(variable, name)
                    if isinstance(slot, base.Trackable):
                        yield slot

"""`group_embedding_column_scope`: columns constructed inside it form a group."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping

from group_embedding.feature_column import columns
from group_embedding.feature_column.group import Group
from group_embedding.placement import check_placement

_VALID_NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")  # what TensorFlow takes as a scope


class _OpenScopes(threading.local):
    """The groups of the scopes that this thread has open, the innermost last."""

    def __init__(self):
        super().__init__()
        self.groups = []


_open_scopes = _OpenScopes()


@contextlib.contextmanager
def group_embedding_column_scope(
    name: str | None = None, placement: str | Mapping[str, str] | None = None
) -> Iterator[None]:
    """Columns constructed inside this scope are looked up together, in one fused op.

    Embedding columns (`embedding_column`) and shared embedding columns (`shared_embeddings`,
    `shared_embedding_columns`) of `tf.feature_column` and `tf.compat.v1.feature_column` that are
    constructed while the scope is open form a group. Wherever stock TensorFlow later turns columns
    into one input (`tf.compat.v1.feature_column.input_layer`, `DenseFeatures`, `SequenceFeatures`,
    the canned Estimators), those of its columns that belong to one group are looked up by one op.
    Nothing else changes: values, the order of outputs, variables and their names, checkpoints,
    collections, `cols_to_vars`, the serialised form of a column.

    A column belongs to the innermost scope open in the thread that constructs it. Every `with`
    makes a group of its own, also where a name repeats. Other columns made inside (numeric,
    indicator, ...) are left as they are, and grouped and other columns may be mixed in one input.
    Copies of a grouped column (`copy`, `deepcopy`, `_replace`) stay in its group. A pickled or
    serialised one is the stock column: read it back inside a scope to group it again.

    A few columns of a group are looked up by TensorFlow's own ops, with the same values: those
    whose variable a partitioner has cut into several parts, those wider than 4096, and weighted
    ones made with `use_safe_embedding_lookup=False` (which keeps weights that the fused lookup
    would prune). For an unweighted column that option changes nothing here: the lookup is safe.

    Initial values drawn without a seed of their own differ from those without the scope, since
    TensorFlow derives such seeds from the number of ops made so far.

    Example:

    ```python
    fc = tf.feature_column
    with ge.group_embedding_column_scope():
        user = fc.embedding_column(fc.categorical_column_with_identity("user", 1000), 16)
        genres = fc.embedding_column(
            fc.categorical_column_with_hash_bucket("genres", 50), 8, combiner="sum")
    age = fc.numeric_column("age")

    features = {"user": [[3], [7]], "genres": [["drama", ""], ["war", "comedy"]],
                "age": [[31.0], [45.0]]}
    outputs = tf.keras.layers.DenseFeatures([user, genres, age])(features)  # [2, 1 + 8 + 16]
    ```

    Args:
      name: the name of the fused op in the graph; `None` for `group_embedding`.
      placement: over several ranks, where the tables are: "distributed", `"localized:<rank>"`,
        "columns", "replicated" or "auto", which plans them together; with ":sums" behind one of the
        first three, owners send one sum of a sample's rows; with ":two_levels" behind one of the
        first two, a row crosses once to each host; one for all, or a dict by the name of the table:
        of the column, or of what columns share. `None`: as `enable_distributed_strategy` says.

    Returns:
      A context manager.

    Raises:
      ValueError: `name` is not a valid TensorFlow scope name, or `placement` none of these.
    """
    if name is not None and not _VALID_NAME.match(name):
        raise ValueError(
            f"group_embedding_column_scope: expected a name that TensorFlow takes for a scope "
            f"(A-Z, a-z, 0-9, '_', '.', '-', '/'), got {name!r}"
        )
    words = placement.values() if isinstance(placement, Mapping) else [placement]
    for word in words:
        if word is not None:
            check_placement("group_embedding_column_scope", word)
    group = Group(name or "group_embedding", placement)
    _constructors.watch()
    _open_scopes.groups.append(group)
    try:
        yield
    finally:
        # By identity: scopes held open by generators may close in any order.
        _open_scopes.groups.remove(group)
        _constructors.unwatch()


def scope_is_open():
    """Returns whether this thread is inside of a `group_embedding_column_scope`."""
    return bool(_open_scopes.groups)


class _Constructors:
    """Sees columns being constructed, while any scope of any thread is open.

    The public factories are many, are imported under many names, and call the column classes by
    the name in their own module, so the one place all of them pass is the class itself. Its
    `__new__` cannot be replaced (it names its own class), but it has no `__init__`: an `__init__`
    is lent to it while scopes are open, does nothing in a thread that has none, and is taken away
    with the last scope, which leaves TensorFlow as it was. Unpickling, copying and `_replace` do
    not pass through `__init__`, so they do not count as construction.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._num_scopes = 0
        self._watches_always = False

    def watch(self):
        with self._lock:
            self._num_scopes += 1
            if self._num_scopes == 1:
                for column_class in columns.GROUPED:
                    column_class.__init__ = _join_innermost_group

    def watch_from_now_on(self):
        with self._lock:
            if self._watches_always:
                return
            self._watches_always = True
        self.watch()

    def unwatch(self):
        with self._lock:
            self._num_scopes -= 1
            if self._num_scopes == 0:
                for column_class in columns.GROUPED:
                    del column_class.__init__


_constructors = _Constructors()


def group_lone_columns(is_lone):
    """From now on a column that is constructed outside all scopes, and for which `is_lone(column)`
    holds, is a group of its own: TensorFlow's ops cannot look it up."""
    _lone.add(is_lone)
    _constructors.watch_from_now_on()


_lone = set()


def _join_innermost_group(column, *args, **kwargs):
    """`__init__` of the stock column classes while they are watched."""
    del args, kwargs  # `__new__` has stored them.
    if _open_scopes.groups:
        columns.join(column, _open_scopes.groups[-1])
    elif any(is_lone(column) for is_lone in _lone):
        columns.join(column, Group("group_embedding"))

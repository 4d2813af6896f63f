"""Valid calls of all native ops that run on a CPU, recorded from small programs: what the fuzzer
(hostile_ops.py) mutates."""

import tempfile
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from support.cases import op_calls
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import op_callbacks

import group_embedding as ge
from group_embedding.ops._library import _library_path, library
from group_embedding.ops.host_exchange import HostExchange

REFERENCES = {
    "GroupEmbedding>GroupUpdateRef": "GroupEmbedding>GroupUpdate",
    "GroupEmbedding>GroupUpdateSlicesRef": "GroupEmbedding>GroupUpdateSlices",
}
ON_GPUS = (
    "GroupEmbedding>ShardedGroupLookup",
    "GroupEmbedding>SendGroupGradients",
    "GroupEmbedding>SumsGroupLookup",
    "GroupEmbedding>SendSumsGradients",
    "GroupEmbedding>ReturnWeightGradients",
)  # only their shape functions run here


class Call(NamedTuple):
    """One call of an op: flat lists, as TensorFlow's executor has them."""

    op: str
    inputs: list  # of eager tensors
    attrs: list  # of (name, value)


def all_ops():
    """The OpDef of each op of the library and of served models, by name."""
    library = _library_path(tf.__version__)
    found = {}
    for path in (library, library.with_name(library.name.replace("_ops.", "_serving."))):
        ops = op_def_pb2.OpList()
        handle = pywrap_tf_session.TF_LoadLibrary(str(path))
        ops.ParseFromString(pywrap_tf_session.TF_GetOpList(handle))
        found.update({op.name: op for op in ops.op})
    return found


def record():
    """Returns the calls of the programs below, and of ops that need a graph or a GPU the calls that
    they were if they had run."""
    ops = all_ops()
    calls = []

    def take(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        op_type = tf.compat.as_str(op_type)
        if op_type in ops:
            attrs = attrs or ()
            pairs = list(zip(attrs[::2], attrs[1::2]))
            calls.append(Call(op_type, list(inputs), [_plain(*pair) for pair in pairs]))

    op_callbacks.add_op_callback(take)
    tf.config.run_functions_eagerly(True)
    try:
        with tf.device("/CPU:0"):
            for program in (_variables, _keyed_tables, _budgets, _saves, _publishes, _exchange):
                program()
    finally:
        op_callbacks.clear_op_callbacks()
        tf.config.run_functions_eagerly(False)
    for reference, op in REFERENCES.items():
        calls += [call._replace(op=reference) for call in calls if call.op == op]
    calls += _served(calls)
    both_ways = ("GroupEmbedding>GroupLookup", "GroupEmbedding>GroupLookupGrad")
    local = [call for call in calls if call.op in both_ways]
    calls += [call for of in local for call in (_on_gpu(of), *_summed_on_gpu(of))]
    return [_with_defaults(call, ops[call.op]) for call in calls]


def _served(calls):
    """Calls of the ops that opened SavedModels have: lookups of variables, and of the others calls
    that are refused, as no program makes their tables."""
    table = next(call.inputs[0] for call in calls if call.op == "GroupEmbedding>FindKeys")
    row = [("dtype", tf.float32.as_datatype_enum), ("dim", 4)]
    trained = ("trained_dtype", tf.float32.as_datatype_enum)
    model = [("model", 1), ("slot", 0), ("table", b"a"), ("table_name", b"a"), ("keyed", True)]
    text = tf.constant("a")
    made = {
        "ServedTable": ([], model),
        "InitializeServedTable": ([table, tf.zeros([2, 4])], row),
        "RestoreServedTable": ([table, text, text], []),
        "AssignServedTable": ([table, tf.zeros([2, 4])], [*row[:1], trained]),
        "ServedReadRows": ([table, tf.constant([1, 2], tf.int64)], row),
        "ServedBatch": ([tf.zeros([4])], []),
    }
    lookups = [call for call in calls if call.op == "GroupEmbedding>GroupLookup"]
    grouped = [call for call in calls if call.op == "GroupEmbedding>GroupIds"]
    return [
        *(_of_a_request(call) for call in grouped),
        *(Call("GroupEmbedding>ServedLookup", c.inputs, _of_others(c)) for c in lookups),
        *(Call(f"GroupEmbedding>{op}", *given) for op, given in made.items()),
    ]


def _of_a_request(call):
    """Ids as inputs of a request, of which there is none."""
    places = ("inputs", list(range(len(call.inputs))))
    attrs = [*call.attrs, places, ("signatures", [b"serving_default"])]
    return Call("GroupEmbedding>ServedIds", [], attrs)


def _plain(name, value):
    """Bytes for text, and numbers for types, as graphs have them."""
    if isinstance(value, (list, tuple)):
        return name, [_plain(name, one)[1] for one in value]
    if isinstance(value, str):
        return name, value.encode()
    return name, value.as_datatype_enum if isinstance(value, tf.DType) else value


def _with_defaults(call, op):
    given = dict(call.attrs)
    for attr in op.attr:
        if attr.name not in given and attr.HasField("default_value"):
            given[attr.name] = _value_of(attr.type, attr.default_value)
    return call._replace(attrs=list(given.items()))


def _value_of(kind, proto):
    fields = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}
    if kind.startswith("list("):
        return list(getattr(proto.list, fields[kind[5:-1]]))
    return getattr(proto, fields[kind])


def _variables():
    """Lookups with weights, several features of a table, a concatenation; optimizers."""
    tables = [tf.Variable(tf.ones([rows, dim])) for rows, dim in ((5, 3), (7, 8), (4, 8))]
    ids = [
        tf.ragged.constant([[1, 2], [], [4]], dtype=tf.int64),
        tf.sparse.from_dense(np.array([[3, 0], [1, 2], [0, 6]])),
        tf.ragged.constant([[0], [1, 3], [2]], dtype=tf.int32),
    ]
    weights = [None, tf.sparse.map_values(lambda v: tf.ones(tf.shape(v)), ids[1]), None]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    for concat, sp_weights in ((False, weights), (True, None)):
        with tf.GradientTape() as tape:
            out = ge.group_embedding_lookup_sparse(
                tables[1:] if concat else tables,
                ids[1:] if concat else ids,
                "mean",
                sp_weights=sp_weights,
                concat=concat,
                max_norm=None if concat else 1.5,
            )
            loss = tf.reduce_sum(out if concat else tf.gather(out[0], [0, 2]))
            loss += 0.0 if concat else tf.reduce_sum(out[1]) + tf.reduce_sum(out[2])
        trained = tables[1:] if concat else tables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
    half = tf.Variable(tf.ones([6, 4], tf.float16))
    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([half], [[[0, 5], [1, 1]]])
        loss = tf.reduce_sum(rows)
    (gradient,) = tape.gradient(loss, [half])
    library().overflow(tensors=[gradient.values, tf.ones([2])])
    _dense_updates()
    op_calls.update()
    op_calls.select()


def _dense_updates():
    """Variables that one op updates, with slots and without."""
    variables = [tf.Variable(tf.ones(shape)) for shape in ([3, 4], [], [0, 2], [300])]
    for stock in (tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.Adam(0.1, amsgrad=True)):
        optimizer = ge.optimizers.wrap(stock)
        optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables])


def _keyed_tables():
    """Tables behind each kind of filter: trained, asked, changed."""
    filters = [None, ge.CounterFilter(2), ge.CBFFilter(2, 64, 0.1)]
    tables = []
    for i, filter_option in enumerate(filters):
        option = ge.EmbeddingVariableOption(filter_option=filter_option)
        tables.append(ge.get_embedding_variable(f"hostile_{i}", 4, ev_option=option))
    ids = [tf.ragged.constant([[i, 7], [9]], dtype=tf.int64) for i in range(3)]
    by_row = [tf.Variable(tf.ones([9, 4], dtype)) for dtype in (tf.float32, tf.bfloat16)]
    rows = [tf.ragged.constant([[0, 8], [3]]), tf.ragged.constant([[], [3]], dtype=tf.int64)]
    ge.group_embedding_lookup_sparse([*tables, *by_row], [*ids, *rows], "mean")
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1, use_ema=True))
    for _ in range(2):
        with tf.GradientTape() as tape:
            out = ge.group_embedding_lookup_sparse(tables, ids, "sum")
            loss = tf.add_n([tf.reduce_sum(o) for o in out])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    optimizer.finalize_variable_values(tables)
    buffer, text = ge.route_ids(tables, ids, "sum").batches[0]
    sizes = library().batch_sizes_from_string(text=text)
    for name in ("prefetch", "bring"):  # the op's older name
        getattr(library(), f"{name}_rows")(
            tables=[table.table_handle for table in tables],
            batch=buffer,
            sizes=sizes,
            table_of_feature=[0, 1, 2],
        )
    table = tables[0]
    table.is_initialized()
    table.export()
    table.insert([3, 4], tf.ones([2, 4]), versions=[1, 2], freqs=[3, 4])
    table.get_frequency([3, 5])
    table.erase([3])
    table.memory_bytes()
    table.sparse_read(tf.constant([7, 8], tf.int64))
    library().evict_keys(
        table=table.table_handle, step=tf.constant(5, tf.int64), kind="global_step", steps_to_live=3
    )


def _budgets():
    """A table that is full evicts by score, and by the minute."""
    table = ge.keyed_table(
        "hostile_full", 2, max_keys=3, budget_of="rank", evict="score", evict_after_minutes=5,
        hand_out="rows",
    )  # fmt: skip
    handle, lib = table.table_handle, library()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    for first in (0, 2):
        lib.set_time(table=handle, minute=tf.constant(1000 + first, tf.int64))
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup([table], [tf.range(first, first + 3, dtype=tf.int64)])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        lib.set_scores(table=handle, keys=tf.range(3, dtype=tf.int64), scores=[3.0, 1.0, 2.0])
    lib.budget_counts(table=handle)
    lib.table_use(table=handle)
    lib.take_evicted(table=handle, dtype=tf.float32, dim=2)


def _saves():
    """A table is saved, also in changes, and restored."""
    table = ge.get_embedding_variable("hostile_saved", 2)
    table.insert([1, 2], tf.ones([2, 2]))
    handle, lib = table.table_handle, library()
    prefix = f"{tempfile.mkdtemp(prefix='hostile_')}/model"
    for changes_only in (False, True):
        snapshot = lib.snapshot_tables(
            tables=[handle],
            steps=tf.constant([3], tf.int64),
            changes_only=[changes_only],
            evictions=["none"],
            steps_to_live=[0],
            l2_weights=[0.0],
        )
        manifest = lib.save_table(table=handle, prefix=prefix, snapshot=snapshot)
        lib.full_save_id(table=handle)
    manifest = lib.merge_manifests(manifests=[manifest])
    lib.sees_files(prefixes=[prefix], manifests=[manifest])
    lib.verify_table(table=handle, prefix=prefix, manifest=manifest)
    lib.restore_table(table=handle, prefix=prefix, manifest=manifest)


def _publishes():
    """A publisher follows a table, reads its changes, and goes."""
    table = ge.get_embedding_variable("hostile_published", 2)
    handle, lib = table.table_handle, library()
    follower = tf.constant(1, tf.int64)
    lib.follow_changes(table=handle, follower=follower, mark=tf.zeros([0], tf.int64))
    for _ in range(2):
        table.insert([1, 2], tf.ones([2, 2]))
        table.erase([2])
        lib.snapshot_changes(
            tables=[handle],
            follower=follower,
            step=tf.constant(3, tf.int64),
            parts=[0],
            num_parts=[1],
        )
        _, _, mark = lib.read_changes(table=handle, follower=follower)
        lib.follow_changes(table=handle, follower=follower, mark=mark)
    lib.drop_changes(table=handle, follower=follower, unfollow=False)
    lib.pack_handles(handles=[handle, handle])
    lib.batch_sizes_from_string(text=lib.batch_sizes_to_string(sizes=[[2, 3], [2, 2]]))


def _exchange():
    """An exchange of one rank with itself."""
    lib = library()
    of_tables = {"num_rows": [5, -1], "description": "two tables"}
    for with_sums in ([1], []):
        of_tables["tables_with_sums"] = with_sums
        messages, splits, counts, _, _ = op_calls.route(
            num_ranks=1, placements=["mod", "hash"], **of_tables
        )
        op_calls.read_requests(messages, splits, num_groups=2, group_of_table=[0, 1], **of_tables)
    _proxies(of_tables)
    lib.mark_call(tensor=tf.ones([2]), begins=True, key="gradients", description="of item")
    lib.mark_call(tensor=tf.ones([2]), begins=False, key="gradients", description="of item")
    lib.key_owners(keys=tf.constant([7, 8], tf.int64), num_ranks=2)
    joined = lib.join_columns(parts=[tf.ones([4, 3]), tf.ones([2, 1])], num_ranks=2)
    ascending = [tf.constant([0, 1], tf.int64), tf.constant([0], tf.int64)]
    lib.split_columns(joined.rows, ascending, joined.num_rows, num_ranks=2)
    wire = [tf.float32, tf.float16]
    rows = [tf.ones([count, dim]) for count, dim in zip(counts.numpy().ravel().tolist(), (3, 4))]
    for indices in ([], [[0], [0]]):
        shapes = [[1, 3], [1, 4]] if indices else [row.shape for row in rows]
        packed, _ = op_calls.pack(counts, shapes, indices, wire=wire)
        op_calls.unpack(counts, [3, 4], packed=packed, num_indices=len(indices), wire=wire)
    _host_exchange(rows, counts, wire)


def _proxies(of_tables):
    """A host of one rank, which asks itself, and then the owners for what it was asked."""
    of_tables = {"placements": ["mod", "hash"], **of_tables}
    messages, splits, *_ = op_calls.route(proxies=[0, 0], ranks_of_host=1, **of_tables)
    del of_tables["placements"]
    batches, sizes, times, _, fault = op_calls.read_requests(
        messages, splits, ranks_of_host=[1], **of_tables
    )
    op_calls.route(
        batches[0], sizes[0], of_host=[times[0], fault], placements=["mod", "hash"], **of_tables
    )


def _host_exchange(rows, counts, wire):
    exchange = HostExchange(0, 1)
    exchange.join({})
    exchange.alltoall(tf.ones([3, 2]), [3], name="hostile", what="rows")
    exchange.allgather(tf.ones([3, 2]), name="hostile", what="rows")
    exchange.exchange_rows(rows, counts, counts, wire, 1.0, name="hostile", what="rows")
    table = tf.Variable(tf.ones([6, 3]))
    of_table = {
        "tables": [table.handle],
        "batch": op_calls.batch_of((0, 1, 2), (5, 1)),
        "sizes": [[2, 2]],
        "keyed_tables": [],
        "sent": [[2]],
        "received": [[2]],
        "dtype": tf.float32,
        "dims": [3],
        "max_norms": [0.0],
        "table_names": ["item"],
        "table_of_feature": [0],
        "combiners": ["sum"],
        "feature_names": ["item"],
        "wire": [tf.float32],
        "exchange": exchange._number,
    }
    ahead = library().host_rows_ahead(**of_table)
    for given in ([], ahead):
        library().host_look_up_rows(**of_table, ahead=given, out_dtypes=[tf.float32])


def _of_others(lookup):
    """The attributes that other lookups have, too."""
    return [(name, value) for name, value in lookup.attrs if name != "constant_weights"]


def _summed_on_gpu(call):
    """The calls of ranks with a GPU each whose owners would send sums, in its place."""
    attrs = {name: value for name, value in _of_others(call) if name != "num_tables"}
    if attrs.get("keyed_types"):
        return []  # these ops have no tables of keys
    num_tables, order = len(attrs["dims"]), tf.Variable(0.0).handle
    state = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=1, element_dtype=1)
    if call.op == "GroupEmbedding>GroupLookup":
        attrs.update(num_rows=[5] * num_tables, owners=[-2] * num_tables, gradient_scale=1.0)
        attrs.update(description=b"", nccl_id=b"", comm_dtype=attrs["dtype"], rank=0, num_ranks=1)
        attrs.update(timeout_seconds=1.0, use_peer_memory=False)
        inputs = [*call.inputs, order]
        return [Call("GroupEmbedding>SumsGroupLookup", inputs, list(attrs.items()))]
    buffer, sizes, *grads = call.inputs[len(attrs["table_types"]) :]
    attrs = {name: value for name, value in attrs.items() if name not in _OF_TABLES}
    returned = {name: value for name, value in attrs.items() if name not in _OF_GRADIENTS}
    attrs.update(num_parts=len(attrs["table_of_feature"]))
    return [
        Call("GroupEmbedding>SendSumsGradients", [buffer, sizes, *grads, state, order],
             list(attrs.items())),
        Call("GroupEmbedding>ReturnWeightGradients", [buffer, sizes, tf.zeros([3]), state, order],
             list(returned.items())),
    ]  # fmt: skip


_OF_TABLES = ("table_types", "keyed_types", "keyed")
_OF_GRADIENTS = ("num_grads", "grad_features")


def _on_gpu(call):
    """The call that several ranks with a GPU each would make in the place of this one."""
    attrs = {name: value for name, value in _of_others(call) if name != "num_tables"}
    keyed_at = len(call.inputs) - len(attrs.get("keyed_types", []))
    keyed = call.inputs[keyed_at:]
    order = tf.Variable(0.0).handle
    if call.op == "GroupEmbedding>GroupLookup":
        attrs.update(num_rows=[5] * len(attrs["dims"]), learning=[False] * len(keyed))
        attrs.update(description=b"", nccl_id=b"", gradient_scale=1.0, comm_dtype=attrs["dtype"])
        attrs.update(rank=0, num_ranks=1, timeout_seconds=1.0, use_peer_memory=False)
        inputs = [*call.inputs, tf.zeros([len(keyed)], tf.int64), order]
        return Call("GroupEmbedding>ShardedGroupLookup", inputs, list(attrs.items()))
    attrs.update(num_parts=len(attrs["dims"]), is_other_batch=False)
    state = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=1, element_dtype=1)
    inputs = [*call.inputs[:keyed_at], state, *keyed, order]
    return Call("GroupEmbedding>SendGroupGradients", inputs, list(attrs.items()))

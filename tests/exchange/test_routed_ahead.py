"""Ids that are routed a step ahead, against ids that are not: on several ranks, in one process."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.data_flow_ops import StagingArea

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
NUM_STEPS, DIM = 6, 3
ROWS = {"user": 23, "item": 5, "local": 7}  # the last one's table is on each rank
COMBINERS = {"user": "mean", "item": "sum", "local": "sum", "keyed": "sqrtn"}
MAX_NORMS = [0.5, None, None, None]
APIS = ["eager", "function", "session"]


def arrays_of(step):
    """This rank's ids and how many each sample has, by feature: uneven, and every third step none
    but on one rank."""
    rank = exchange.current().rank
    rng = np.random.default_rng([step, rank])
    num_samples = rng.integers(1, 6) if step % 3 else 2 * (rank == 0)
    arrays = {}
    for name in COMBINERS:
        lengths = rng.integers(0, 3, num_samples)
        arrays[f"{name}_lengths"] = lengths.astype(np.int64)
        arrays[f"{name}_ids"] = rng.integers(0, 5, lengths.sum()).astype(np.int64)
    return arrays


def to_ids(arrays):
    """Ragged and sparse ids."""
    rows = [
        tf.RaggedTensor.from_row_lengths(arrays[f"{name}_ids"], arrays[f"{name}_lengths"])
        for name in COMBINERS
    ]
    return [rows[0], rows[1].to_sparse(), *rows[2:]]


def weights_of(ids, weighted):
    """Some of them 0; of the first feature alone, or of none."""
    if not weighted:
        return None
    return [ids[0].with_values(tf.cast(ids[0].values % 3, tf.float32)), None, None, None]


class Model:
    """Tables over the ranks by row and by key and one on each, and a dense variable.

    storage: of the keys, a StorageOption; None: host memory. weighted: whether ids have weights.
    """

    def __init__(self, create, storage=None, weighted=True):
        self.tables, self.weighted = [], weighted
        for name, num_rows in ROWS.items():
            value = np.random.default_rng(num_rows).normal(size=(num_rows, DIM))
            self.tables.append(
                make_table(
                    (num_rows, DIM),
                    lambda shape, dtype=None, value=value: tf.constant(value, tf.float32),
                    lambda shape, initializer, name=name: create(name, initializer(shape)),
                    "replicated" if name == "local" else None,
                )
            )
        initializer = tf.keras.initializers.RandomUniform(seed=3)
        option = ge.EmbeddingVariableOption(storage_option=storage or ge.StorageOption())
        self.keyed = ge.get_embedding_variable(
            "keyed", DIM, initializer=initializer, ev_option=option
        )
        self.tables.append(self.keyed)
        self.kernel = create("kernel", tf.ones([len(COMBINERS) * DIM, 1]))
        self.variables = [*self.tables, self.kernel]
        self._options = {
            "combiners": list(COMBINERS.values()),
            "max_norm": MAX_NORMS,
            "feature_names": list(COMBINERS),
        }

    def route(self, arrays):
        ids = to_ids(arrays)
        weights = weights_of(ids, self.weighted)
        return ge.route_ids(self.tables, ids, sp_weights=weights, **self._options)

    def route_packed(self, packed):
        return ge.route_ids(self.tables, packed, **self._options)

    def loss(self, batch):
        """The loss of a batch of arrays, or of the batch routed ahead."""
        weights = None
        if not isinstance(batch, ge.RoutedIds):
            batch = to_ids(batch)
            weights = weights_of(batch, self.weighted)
        vectors = ge.group_embedding_lookup_sparse(
            self.tables, batch, sp_weights=weights, concat=True, **self._options
        )
        return tf.reduce_sum(tf.tanh(vectors @ self.kernel) ** 2)


def eager_model(*of_model):
    return Model(lambda name, value: tf.Variable(value, name=name), *of_model)


def train_keras(ahead, in_function, *of_model):
    model = eager_model(*of_model)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3)))

    def step(batch, next_arrays):
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        routed_next = model.route(next_arrays) if ahead else None
        gradients = tape.gradient(loss, model.variables)
        optimizer.apply_gradients(zip(gradients, model.variables))
        return loss, routed_next

    if in_function:
        step = tf.function(step, reduce_retracing=True)
    of_steps = [to_tensors(arrays_of(i)) for i in range(NUM_STEPS + 1)]
    batch = model.route(of_steps[0]) if ahead else of_steps[0]
    losses = []
    for next_arrays in of_steps[1:]:
        loss, routed_next = step(batch, next_arrays)
        batch = routed_next if ahead else next_arrays
        losses.append(loss.numpy())
    return {
        "losses": losses,
        "values": [np.asarray(v) for v in model.variables if v is not model.keyed],
        "keyed": [part.numpy() for part in model.keyed.export()],
    }


def packed_by_a_dataset(model):
    """The batches of all steps as a dataset has them, whose threads pack several at once."""
    steps = tf.data.Dataset.range(NUM_STEPS + 1)
    names = sorted(arrays_of(0))

    def read(step):
        columns = tf.numpy_function(
            lambda step: [arrays_of(int(step))[name] for name in names],
            [step],
            [tf.int64] * len(names),
        )
        return {n: tf.ensure_shape(column, [None]) for n, column in zip(names, columns)}

    return steps.map(read).map(model.route, num_parallel_calls=3).prefetch(3)


def train_on_a_dataset(ahead, *of_model):
    """Trains as `train_keras` does in a function. The dataset packs ids; the step exchanges
    them, or with `ahead` those of the next batch, by `route_ids` of packed ids."""
    model = eager_model(*of_model)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3)))

    @tf.function
    def step(batch, next_batch):
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        routed_next = model.route_packed(next_batch) if ahead else next_batch
        gradients = tape.gradient(loss, model.variables)
        optimizer.apply_gradients(zip(gradients, model.variables))
        return loss, routed_next

    batches = iter(packed_by_a_dataset(model))
    batch, losses = next(batches), []
    if ahead:
        batch = model.route_packed(batch)
    for next_batch in batches:
        loss, batch = step(batch, next_batch)
        losses.append(loss.numpy())
    return {
        "losses": losses,
        "values": [np.asarray(v) for v in model.variables if v is not model.keyed],
        "keyed": [part.numpy() for part in model.keyed.export()],
        "traces": step.experimental_get_tracing_count(),
    }


def train_on_datasets(*of_model):
    """Beside the same training without packed ids, under False."""
    plain = train_keras(False, True, *of_model)
    return plain, [train_on_a_dataset(ahead, *of_model) for ahead in (False, True)]


def train_on_datasets_on_rank(weighted):
    enable_distributed_strategy()
    return train_on_datasets(None, weighted)


def assert_packed_ids_train_alike(plain, packed):
    for results in packed:
        assert_same({False: plain, True: results})
        assert results["traces"] <= 2  # a function whose first call makes slots is traced twice


@pytest.mark.parametrize("weighted", [False, True])
def test_ids_that_a_dataset_packs_train_alike(two_ranks, weighted):
    # Given ranks whose datasets run ahead, each at its own pace

    for plain, packed in two_ranks.run(train_on_datasets_on_rank, weighted):
        # When steps look the packed ids up, or route them a step ahead, Then nothing differs
        assert_packed_ids_train_alike(plain, packed)


def test_ids_that_a_dataset_packs_train_alike_in_one_process():
    assert_packed_ids_train_alike(*train_on_datasets())


def to_tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


def train_in_session(ahead, *of_model):
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(lambda name, value: v1.get_variable(name, initializer=value), *of_model)
        arrays = {
            name: v1.placeholder(tf.int64, [None], f"in_{name}") for name in arrays_of(0)
        }  # of the next batch, when ids go ahead
        batch, routed_next = arrays, []
        if ahead:
            batch, routed_next = through_a_stage(model.route(arrays))
        loss = model.loss(batch)
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(v1.train.AdagradOptimizer(0.3)))
        train_op = optimizer.minimize(loss, var_list=model.variables)
        session.run(v1.global_variables_initializer())

        def feed(step):
            return {arrays[name]: array for name, array in arrays_of(step).items()}

        if ahead:
            session.run(routed_next, feed(0))
        losses = [
            session.run([loss, train_op, routed_next], feed(step + ahead))[0]
            for step in range(NUM_STEPS)
        ]
        values = session.run([v for v in model.variables if v is not model.keyed])
        keyed = session.run(list(model.keyed.export()))
    return {"losses": losses, "values": values, "keyed": keyed}


def through_a_stage(routed):
    """The batch that was routed in the run before, and the op that keeps this one for the next
    run."""
    tensors = tf.nest.flatten(routed, expand_composites=True)
    stage = StagingArea([tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors])
    put = stage.put(tensors)
    return tf.nest.pack_sequence_as(routed, stage.get(), expand_composites=True), put


def train(api, *of_model):
    """{whether ids go ahead: what was trained}."""
    if api == "session":
        return {ahead: train_in_session(ahead, *of_model) for ahead in (False, True)}
    return {ahead: train_keras(ahead, api == "function", *of_model) for ahead in (False, True)}


def train_on_rank(api, *of_model):
    enable_distributed_strategy()
    return train(api, *of_model)


def assert_same(results):
    for name in ("losses", "values", "keyed"):
        for off, on in zip(results[False][name], results[True][name], strict=True):
            np.testing.assert_array_equal(on, off)


def assert_trained(results):
    assert np.any(results[True]["values"][-1] != 1)


@pytest.mark.parametrize("api", APIS)
def test_training_is_the_same_to_the_bit(several_ranks, api):
    # Given ranks that train twice, once with ids that go ahead

    for results in several_ranks.run(train_on_rank, api):
        # Then it made no difference, and they did train
        assert_same(results)
        assert_trained(results)


def test_rows_on_disk_that_ranks_request_are_brought_ahead(two_ranks):
    # Given a table by key over two ranks, with a disk below the memory of each
    storage = ge.StorageOption(ge.StorageType.DRAM_SSDHASH, storage_size=[1 << 14])

    for results in two_ranks.run(train_on_rank, "session", storage):
        # When the rows of the next batch are brought, Then nothing differs
        assert_same(results)
        assert_trained(results)


@pytest.mark.parametrize("api", APIS)
def test_one_process_runs_the_same_script(api):
    assert_same(train(api))


def count_traces_on_rank():
    enable_distributed_strategy()
    model = eager_model()
    function = tf.function(model.loss)
    for step in range(4):
        function(model.route(to_tensors(arrays_of(step))))
    return function.experimental_get_tracing_count()


def test_a_batch_of_another_size_is_not_traced_anew(two_ranks):
    assert two_ranks.run(count_traces_on_rank) == [1, 1]


def graph_of_a_step(model):
    """The graph of a step that uses routed ids, and routes the next batch."""

    @tf.function
    def step(routed, next_arrays):
        with tf.GradientTape() as tape:
            loss = model.loss(routed)
        routed_next = model.route(next_arrays)
        gradients = tape.gradient(loss, model.variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], routed_next

    arrays = to_tensors(arrays_of(1))
    return step.get_concrete_function(model.route(arrays), arrays).graph


def types_of_ops_before_on_rank():
    """{type of an op: the types of all that such ops of a step wait for}."""
    enable_distributed_strategy()
    graph = graph_of_a_step(eager_model())
    return {of: types_of_ops_before(graph, of) for of in ("GroupEmbedding>ReadRequests", "MatMul")}


def types_of_ops_on_rank(*of_model):
    """The types of the ops of a step."""
    enable_distributed_strategy()
    operations = graph_of_a_step(eager_model(*of_model)).get_operations()
    return {operation.type for operation in operations}


def types_of_ops_before(graph, op_type):
    waiting, found = [op for op in graph.get_operations() if op.type == op_type], set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return {op.type for op in found}


def test_the_ids_of_the_next_batch_and_the_dense_part_do_not_wait_for_each_other(two_ranks):
    # Given a step that routes after its forward pass, in a function, which keeps effects in order
    for before in two_ranks.run(types_of_ops_before_on_rank):
        assert "GroupEmbedding>RouteIds" in before["GroupEmbedding>ReadRequests"]
        assert "MatMul" not in before["GroupEmbedding>ReadRequests"]
        assert "GroupEmbedding>GroupLookup" in before["MatMul"]
        assert "GroupEmbedding>RouteIds" not in before["MatMul"]


def to_rank_3(ids):
    """The samples of sparse ids [n, k] as [n, 1, k]."""
    return tf.sparse.expand_dims(ids, 1)


def look_up_both_ways():
    """Results and gradients {whether ids were routed ahead: arrays}, of ids of all kinds."""
    wide = make_table(
        (5, 2), tf.keras.initializers.RandomUniform(seed=1), lambda s, i: tf.Variable(i(s))
    )
    narrow = make_table(
        (5, 4),
        tf.keras.initializers.RandomUniform(seed=2),
        lambda s, i: tf.Variable(tf.cast(i(s), tf.float16)),
    )
    rank = exchange.current().rank
    ragged = tf.ragged.constant([[0, rank + 1], [], [4, 4, 2]], dtype=tf.int64)
    cube = to_rank_3(ragged.to_sparse())
    given = ([wide, narrow, narrow], [ragged, cube, ragged], ["mean", "sum", "sqrtn"])
    dense = ([wide, narrow], [tf.constant([[3, rank], [0, 0]]), tf.constant([rank])])
    weights = tf.Variable([1.0, 0.5, 2.0, 1.0, 3.0])
    results = {}
    for ahead in (False, True):
        with tf.GradientTape() as tape:
            of_ids = [None, None, ragged.with_values(tf.identity(weights))]
            if ahead:
                routed = ge.route_ids(*given, sp_weights=of_ids)
                look_up = tf.function(lambda r: look_up_sparse(given[0], r, given[2]))
                outputs = look_up(routed)
                routed = ge.route_ids(*dense)
                outputs += tf.function(lambda r: ge.group_embedding_lookup(dense[0], r))(routed)
            else:
                outputs = look_up_sparse(*given, sp_weights=of_ids)
                outputs += ge.group_embedding_lookup(*dense)
            loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32) ** 2) for output in outputs])
        gradients = tape.gradient(loss, [wide, narrow, weights])
        results[ahead] = [np.asarray(tf.convert_to_tensor(t)) for t in [*outputs, *gradients]]
    return results


def look_up_sparse(*args, **options):
    return ge.group_embedding_lookup_sparse(*args, **options)


def look_up_both_ways_on_rank():
    enable_distributed_strategy()
    return look_up_both_ways()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ids_of_all_kinds_and_gradients_of_weights(request, num_ranks):
    # Given two tables of two dtypes; ragged ids, ids of rank 3, weighted ones, and dense ones
    ranks = [look_up_both_ways()]
    if num_ranks > 1:
        ranks = request.getfixturevalue("two_ranks").run(look_up_both_ways_on_rank)

    for results in ranks:
        # Then, through the border of a function, all is as without
        shapes = [array.shape for array in results[True][:5]]
        assert shapes == [(3, 2), (3, 1, 4), (3, 4), (2, 2, 2), (1, 4)]
        assert np.any(results[True][-1] != 0)
        for on, off in zip(results[True], results[False], strict=True):
            np.testing.assert_array_equal(on, off)


def route_bad_ids_on_rank():
    """Only rank 1 has a bad id; all ranks go on afterwards."""
    enable_distributed_strategy()
    rank = exchange.current().rank
    table = make_table((7, 2), tf.ones_initializer(), lambda s, i: tf.Variable(i(s)))
    bad, good = (tf.ragged.constant([[0, 9 if rank == 1 else i]]) for i in (1, 2))
    names = {"feature_names": ["clicks"]}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        routed = ge.route_ids([table], [bad if rank == 1 else good], "sum", **names)
        ge.group_embedding_lookup_sparse([table], routed, "sum", **names)  # where GPUs find it
    good = tf.ragged.constant([[0, 1]])
    routed = ge.route_ids([table], [good], "sum")
    return error.value.message, ge.group_embedding_lookup_sparse([table], routed, "sum")[0].numpy()


def test_a_bad_id_raises_on_every_rank(two_ranks):
    for message, output in two_ranks.run(route_bad_ids_on_rank):
        assert "rank 1: table" in message
        assert "feature 'clicks': id 9 of sample 0 is outside" in message
        np.testing.assert_array_equal(output, [[2, 2]])


def look_up_in_a_table_of_other_rows_on_rank():
    enable_distributed_strategy()
    tables = [
        make_table(
            (num_rows, 2), tf.ones_initializer(), lambda s, i: tf.Variable(i(s), name="user")
        )
        for num_rows in (7, 8)
    ]
    routed = ge.route_ids(tables[:1], [tf.ragged.constant([[0, 1]])], "sum")
    with pytest.raises(ValueError) as error:
        ge.group_embedding_lookup_sparse(tables[1:], routed, "sum")
    return str(error.value)


def test_ids_routed_for_a_table_of_other_rows_are_refused(two_ranks):
    for message in two_ranks.run(look_up_in_a_table_of_other_rows_on_rank):
        assert "expected what they were routed for, 'sp_ids[0]': sum of table 0, 'user'" in message
        assert "7 rows of 2 float32" in message
        assert "8 rows of 2 float32" in message

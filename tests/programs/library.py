"""A program with group_embedding, in the way that it says."""

import tempfile

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files

from .oracle import Result, clipped
from .stock_rules import make_slots, make_stock, slots_of
from .values import default_of, initial_dense, initial_values, targets


class Library:
    def __init__(self, program):
        self.program = program
        self.model = (_Layer if program.is_layer else _Lookups)(program)
        self.dense = self.model.dense
        self.optimizer = _make_optimizer(program.optimizer)
        self.variables = [*self.model.tables.values(), self.dense]
        if program.optimizer.family in ("keras", "own"):
            make_slots(self.optimizer, self.variables)
        self.functions = {}
        self.refusal = ""  # why the last step that was refused was

    def take(self, step):
        """Takes a step. Returns a Result, or None if the step was refused."""
        self.refusal = ""
        try:
            return self.take_step(step)
        except tf.errors.InvalidArgumentError as error:
            self.refusal = error.message
            return None

    def take_step(self, step):
        given = (
            {x.name: ids_tensor(self.program, x, step) for x in self.program.lookups},
            {x.name: weights_tensor(x, step) for x in self.program.lookups if x.weighted},
            tf.constant(targets(self.program, step)),
        )
        self.model.freeze(step)
        if self.program.way == "fit":
            return self.fit(step, *given)
        if "function" not in self.program.way:
            return Result(*self.train(step, *given))
        key = (step.frozen, step.unused)
        if key not in self.functions:
            self.functions[key] = tf.function(
                lambda *given: self.train(step, *given),
                input_signature=tf.nest.map_structure(_signature, given),
                autograph=False,
            )
        return Result(*self.functions[key](*given))

    def settle(self, oracle):
        """After a refused step in a graph: as its ops happen to run, stock Keras has counted the
        step and decayed variables that are no tables, or has not."""
        if self.program.way not in ("function", "layer function", "fit"):
            return
        self.dense.assign(oracle.dense)
        if self.program.optimizer.family in ("keras", "own"):
            self.optimizer.iterations.assign(oracle.rule.num_steps())

    def train(self, step, ids, weights, target):
        trained = [
            self.model.tables[table.name]
            for table in self.program.tables
            if table.trainable and table.name not in step.frozen
        ]
        trained.append(self.dense)
        flat_weights = {name: _flat(w) for name, w in weights.items()}
        watches_all = self.program.watches_all
        with tf.GradientTape(watch_accessed_variables=watches_all) as tape:
            tape.watch([*flat_weights.values(), *([] if watches_all else trained)])
            outputs = self.model.look_up(ids, weights)
            used = [
                tf.stop_gradient(output) if name in step.unused else output
                for name, output in outputs.items()
            ]
            error = tf.concat(used, axis=1) * self.dense - target
            loss = tf.reduce_sum(error**2) / tf.cast(tf.shape(target)[0], tf.float32)
        gradients, weight_grads = tape.gradient(loss, (trained, flat_weights))
        gradients = clipped(gradients, self.program.clip)
        pairs = [pair for pair in zip(gradients, trained) if pair[0] is not None]
        self.optimizer.apply_gradients(pairs)
        return outputs, weight_grads

    def fit(self, step, ids, weights, target):
        self.model.compile_for(step, self.optimizer)
        self.model.train_on_batch(_with_weights(ids, weights), target)
        return Result(None, None)

    def rows(self, table):
        return self.model.tables[table.name].numpy()

    def keys(self, table):
        """{place in `Table.keys`: row}, and of all keys the frequencies and versions."""
        variable = self.model.tables[table.name]
        exported = variable.export()
        place = {key: i for i, key in enumerate(table.keys)}
        rows = {
            place.get(key, key): row
            for key, row in zip(exported.keys.numpy().tolist(), exported.values.numpy())
        }
        keys = np.array(table.keys, table.key_dtype)
        frequencies = variable.get_frequency(keys).numpy()
        return rows, frequencies, variable.get_version(keys).numpy()

    def slots(self):
        """{(table or None, name of the slot): value} of variables that are no tables by key."""
        names = [*self.model.tables, None]
        keyed = {table.name for table in self.program.tables if table.is_keyed}
        return {
            (names[i], slot): value.numpy()
            for i, slot, value in slots_of(self.optimizer, self.variables)
            if names[i] not in keyed
        }

    def keyed_slots(self, table):
        """{name of the slot: {place in `Table.keys`: value}}, as a checkpoint has them."""
        variable = self.model.tables[table.name]
        as_saved = np.array(table.keys, table.key_dtype).astype(np.int64)
        place = {key: i for i, key in enumerate(as_saved.tolist())}
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            prefix = tf.train.Checkpoint(table=variable).write(f"{folder}/saved")
            (saved,) = checkpoint_files.tables(prefix)
            for file in saved["files"]:
                table_file = checkpoint_files.table_file(file["path"])
                names = [slot["name"].partition("/")[2] for slot in table_file.header["slots"]]
                for block in table_file:
                    for name, values in zip(names, block["slots"]):
                        rows = found.setdefault(name, {})
                        for key, value in zip(block["keys"].tolist(), values):
                            rows[place[key]] = np.array(value)
        return found


def _make_optimizer(optimizer):
    if optimizer.family == "own":
        return getattr(ge.optimizers, optimizer.name)(**optimizer.arguments)
    return ge.optimizers.wrap(make_stock(optimizer.family, optimizer.name, optimizer.arguments))


class _Lookups:
    """Tables that the functions look up."""

    def __init__(self, program):
        self.program = program
        self.tables = {table.name: _make_variable(table) for table in program.tables}
        self.dense = tf.Variable(initial_dense(program), name="dense")

    def freeze(self, step):
        """The step itself leaves frozen tables out."""

    def look_up(self, ids, weights):
        outputs = {}
        for call in sorted({lookup.call for lookup in self.program.lookups}):
            lookups = [lookup for lookup in self.program.lookups if lookup.call == call]
            outputs.update(self.call(lookups, ids, weights))
        return {lookup.name: outputs[lookup.name] for lookup in self.program.lookups}

    def call(self, lookups, ids, weights):
        params = [self.tables[lookup.table] for lookup in lookups]
        ids = [ids[lookup.name] for lookup in lookups]
        common = {"invalid_ids": self.program.invalid_ids}
        if lookups[0].combiner is None:
            if self.program.routed:
                ids = ge.route_ids(params, ids, **common)
            rows = ge.group_embedding_lookup(params, ids, **common)
            return {
                lookup.name: tf.reshape(of_ids, [-1, self.program.width_of(lookup)])
                for lookup, of_ids in zip(lookups, rows)
            }
        combiners = [lookup.combiner for lookup in lookups]
        common["max_norm"] = [lookup.max_norm for lookup in lookups]
        given = {"sp_weights": [weights.get(lookup.name) for lookup in lookups]}
        if self.program.routed:
            ids, given = ge.route_ids(params, ids, combiners, **common, **given), {}
        found = ge.group_embedding_lookup_sparse(
            params, ids, combiners, concat=self.program.concat, **common, **given
        )
        return _by_name(self.program, lookups, found)


class _Layer(tf.keras.Model):
    """Tables of a GroupEmbedding layer."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        configs = {table.name: _table_config(program, table) for table in program.tables}
        features = [
            ge.FeatureConfig(lookup.name, configs[lookup.table], lookup.combiner)
            for lookup in program.lookups
        ]
        self.embedding = ge.layers.GroupEmbedding(
            features, concat=program.concat, invalid_ids=program.invalid_ids
        )
        self.embedding.build(None)
        self.dense = tf.Variable(initial_dense(program), name="dense")
        self.compiled_as = None

    @property
    def tables(self):
        made = self.embedding.tables
        return {table.name: made[table.name] for table in self.program.tables}

    def freeze(self, step):
        self.embedding.trainable = not step.frozen

    def look_up(self, ids, weights):
        inputs = _with_weights(ids, weights)
        if self.program.routed:
            inputs = self.embedding.route(inputs)
        return _by_name(self.program, self.program.lookups, self.embedding(inputs))

    def call(self, inputs):
        found = _by_name(self.program, self.program.lookups, self.embedding(inputs))
        return tf.concat(list(found.values()), axis=1) * self.dense

    def compile_for(self, step, optimizer):
        """Keras asks what is trainable when a model is compiled."""
        if self.compiled_as != step.frozen:
            self.compile(optimizer, lambda target, output: tf.reduce_sum((output - target) ** 2, 1))
            self.compiled_as = step.frozen


def _by_name(program, lookups, found):
    if not isinstance(found, (dict, list)):
        found = tf.split(found, [program.width_of(lookup) for lookup in lookups], axis=1)
    if isinstance(found, dict):
        found = [found[lookup.name] for lookup in lookups]
    return {lookup.name: output for lookup, output in zip(lookups, found)}


def _with_weights(ids, weights):
    return {name: (of, weights[name]) if name in weights else of for name, of in ids.items()}


def _make_variable(table):
    if not table.is_keyed:
        return tf.Variable(initial_values(table), trainable=table.trainable, name=table.name)
    return ge.get_embedding_variable(
        table.name,
        table.dim,
        table.key_dtype,
        trainable=table.trainable,
        ev_option=_option(table),
    )


def _table_config(program, table):
    norms = {lookup.max_norm for lookup in program.lookups_of(table)}
    common = {
        "name": table.name,
        "dim": table.dim,
        "trainable": table.trainable,
        "max_norm": next(iter(norms), None),
    }
    if table.is_keyed:
        return ge.TableConfig(
            num_rows=None, key_dtype=table.key_dtype, ev_option=_option(table), **common
        )
    values = initial_values(table)
    return ge.TableConfig(
        num_rows=table.rows, initializer=lambda shape, dtype=None: tf.constant(values), **common
    )


def _option(table):
    """Keys start as the row of a matrix that is as large as keeps them apart."""
    size = len(table.keys)
    unsigned = [key % 2**64 for key in table.keys]
    while len({key % size for key in unsigned}) < len(unsigned):
        size += 1
    matrix = np.zeros([size, table.dim], np.float32)
    matrix[[key % size for key in unsigned]] = initial_values(table)
    return ge.EmbeddingVariableOption(
        init_option=ge.InitializerOption(matrix, size, default_of(table)),
        filter_option=ge.CounterFilter(table.filter_freq) if table.filter_freq else None,
        evict_option=ge.GlobalStepEvict(10**6) if table.counts_steps else None,
    )


def ids_tensor(program, lookup, step):
    table, rows = program.table(lookup.table), step.ids[lookup.name]
    if table.is_keyed:
        rows = [[table.keys[i] for i in row] for row in rows]
    return _tensor(lookup, rows, lookup.ids_dtype, lookup.splits_dtype)


def weights_tensor(lookup, step):
    rows = step.weights[lookup.name]
    return _tensor(lookup, rows, "float32", lookup.weight_splits_dtype)


def _tensor(lookup, rows, dtype, splits_dtype):
    if lookup.form == "dense":
        return tf.constant(np.array(rows, dtype))
    flat = tf.constant(np.array([i for row in rows for i in row], dtype))
    if lookup.form == "ragged":
        lengths = np.array([len(row) for row in rows], splits_dtype)
        return tf.RaggedTensor.from_row_lengths(flat, lengths)
    places = [(s, i) for s, row in enumerate(rows) for i in range(len(row))]
    shape = [len(rows), max(map(len, rows))]
    return tf.SparseTensor(np.array(places, np.int64).reshape(-1, 2), flat, shape)


def _flat(weights):
    if isinstance(weights, tf.SparseTensor):
        return weights.values
    return weights.flat_values if isinstance(weights, tf.RaggedTensor) else weights


def _signature(tensor):
    if isinstance(tensor, tf.RaggedTensor):
        splits = tensor.row_splits.dtype
        return tf.RaggedTensorSpec([None, None], tensor.dtype, 1, splits)
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec([None, None], tensor.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

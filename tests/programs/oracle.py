"""A program with stock TensorFlow: plain variables, and one dense gradient for each table.

A table by key is a variable with a row for each key that the program has.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .stock_rules import make_rule
from .values import default_of, initial_dense, initial_values, targets


class Result(NamedTuple):
    """The results of a step: None of each if the step was refused."""

    outputs: dict  # by lookup
    weight_grads: dict  # by weighted lookup, of all weights one behind the other


class Keys:
    """The state of the keys of a table, by their place in `Table.keys`."""

    def __init__(self, table):
        self.table = table
        self.counts = np.zeros(table.rows, np.int64)
        self.have_row = np.zeros(table.rows, bool)
        self.had_row = self.have_row  # before the step
        self.versions = np.full(table.rows, -1)
        self.steps = 0

    def count(self, places):
        """Counts keys that are trained. Returns which of all keys have a row now."""
        counted = np.bincount(places, minlength=self.table.rows)
        self.counts += counted
        trained = counted > 0
        admitted = trained & (self.counts >= max(1, self.table.filter_freq))
        self.have_row |= admitted
        if self.table.counts_steps:
            self.versions[trained & self.have_row] = self.steps


class Oracle:
    def __init__(self, program):
        self.program = program
        self.tables = {
            table.name: tf.Variable(_rows_of(table), trainable=table.trainable)
            for table in program.tables
        }
        self.dense = tf.Variable(initial_dense(program))
        self.keys = {table.name: Keys(table) for table in program.tables if table.is_keyed}
        self.rule = make_rule(program.optimizer, [*self.tables.values(), self.dense])

    def take(self, step):
        """Takes a step, or none if it has an id outside its table. Returns a Result."""
        if self.is_refused(step):
            return None
        trained = [
            table
            for table in self.program.tables
            if table.trainable and table.name not in step.frozen
        ]
        for table in self.program.tables:
            self.count_keys(table, step)
        with tf.GradientTape(persistent=True) as tape:
            looked_up = {lookup.name: self.look_up(lookup, step) for lookup in self.program.lookups}
            outputs = {name: output for name, (output, _) in looked_up.items()}
            loss = self.loss(step, outputs)
        weights = {name: w for name, (_, w) in looked_up.items() if w is not None}
        weight_grads = {name: _dense(tape.gradient(loss, w)) for name, w in weights.items()}
        gradients = tape.gradient(loss, [self.tables[table.name] for table in trained])
        dense_gradient = tape.gradient(loss, self.dense)
        self.apply(trained, gradients, dense_gradient)
        return Result(outputs, weight_grads)

    def is_refused(self, step):
        """True if an id that counts lies outside its table."""
        return any(
            self.is_outside(lookup, self.program.table(lookup.table), step)
            for lookup in self.program.lookups
        )

    def is_outside(self, lookup, table, step):
        if table.is_keyed or self.program.invalid_ids == "ignore":
            return False
        flat, _, weights = flat_ids(lookup, step)
        ids = flat[which_count(lookup, table, flat, weights)]
        return not table.has(ids).all()

    def loss(self, step, outputs):
        used = [
            tf.stop_gradient(output) if name in step.unused else output
            for name, output in outputs.items()
        ]
        error = tf.concat(used, axis=1) * self.dense - targets(self.program, step)
        return tf.reduce_sum(error**2) / step.samples

    def look_up(self, lookup, step):
        """[samples, width], and the weights: a tensor of all of them, or None."""
        table, samples = self.program.table(lookup.table), step.samples
        flat, sample, weights = flat_ids(lookup, step)
        counts = which_count(lookup, table, flat, weights)
        weights = tf.Variable(weights)
        vectors = self.read(table, flat[counts], lookup.max_norm)
        if lookup.combiner is None:
            return tf.reshape(vectors, [samples, -1]), None
        w = tf.gather(weights, np.flatnonzero(counts))
        inside = np.ones(counts.sum(), bool) if table.is_keyed else table.has(flat[counts])
        output = _combine(vectors, w, inside, sample[counts], samples, lookup.combiner)
        return output, weights if lookup.weighted else None

    def read(self, table, ids, max_norm):
        """The rows of ids, zeros for those outside the table."""
        variable = self.tables[table.name]
        inside = table.has(ids)
        rows = tf.gather(variable, ids[inside])
        if table.filter_freq:
            rows = self.read_admitted(table, ids)
        if max_norm is not None and np.isfinite(max_norm):
            rows = tf.clip_by_norm(rows, max_norm, axes=[1])
        if inside.all():
            return rows
        place = np.cumsum(inside) - 1
        place[~inside] = inside.sum()
        return tf.gather(tf.concat([rows, tf.zeros([1, table.dim])], axis=0), place)

    def read_admitted(self, table, ids):
        """The rows of keys of a table with a filter. A key that was admitted in this step is read
        as one without a row, and its row has the gradient."""
        variable, keys = self.tables[table.name], self.keys[table.name]
        rows = tf.gather(variable, np.where(keys.have_row, np.arange(table.rows), table.rows)[ids])
        read = tf.where(keys.had_row[ids][:, None], rows, default_of(table))
        return tf.stop_gradient(read) + (rows - tf.stop_gradient(rows))

    def is_counted(self, table, step):
        """True if a step inserts and counts keys: eagerly also those of tables that a tape watches,
        and that it is not asked about."""
        if not table.is_keyed or not table.trainable:
            return False
        is_watched = self.program.way == "eager" and self.program.watches_all
        return table.name not in step.frozen or is_watched

    def count_keys(self, table, step):
        """Every occurrence of a key counts, whatever its weight."""
        keys = self.keys.get(table.name)
        if keys is not None:
            keys.had_row = keys.have_row.copy()
        if self.is_counted(table, step):
            found = [
                flat_ids(lookup, step)[0]
                for lookup in self.program.lookups_of(table)
                if lookup.name not in step.unused
            ]
            keys.count(np.concatenate([np.zeros(0, np.int64), *found]))

    def apply(self, trained, gradients, dense_gradient):
        """Makes gradients dense, clips them, and moves the rows that were looked up."""
        given, touched = [], []
        for table, gradient in zip(trained, gradients):
            if gradient is None:
                continue
            rows = np.unique(np.asarray(gradient.indices))
            mask = np.zeros(self.tables[table.name].shape[0], bool)
            mask[rows] = True
            mask[table.rows :] = False
            given.append(_dense(gradient))
            touched.append((self.tables[table.name], mask))
        given.append(dense_gradient)
        touched.append((self.dense, None))
        given = clipped(given, self.program.clip)
        self.rule.apply(given, *zip(*touched))
        for table, gradient in zip(trained, gradients):
            if table.is_keyed and gradient is not None:
                self.keys[table.name].steps += 1  # the version of keys that the next one trains

    def slots(self):
        """{(table or None for the dense variable, name of the slot): value}"""
        names = {id(variable): name for name, variable in self.tables.items()}
        return {
            (names.get(id(variable)), slot): value for (variable, slot), value in self.rule.slots()
        }


def _rows_of(table):
    """Initial values. Behind those of a table with a filter lies the constant that all keys without
    a row read; its gradient counts in norms, and it is never moved."""
    rows = initial_values(table)
    if not table.filter_freq:
        return rows
    constant = np.full([1, table.dim], default_of(table), np.float32)
    return np.concatenate([rows, constant])


def flat_ids(lookup, step):
    """The ids of a lookup one behind the other, the sample and the weight of each."""
    rows = step.ids[lookup.name]
    flat = np.array([i for row in rows for i in row], np.int64)
    sample = np.array([s for s, row in enumerate(rows) for _ in row], np.int64)
    if not lookup.weighted:
        return flat, sample, np.ones(len(flat), np.float32)
    weights = [w for row in step.weights[lookup.name] for w in row]
    return flat, sample, np.array(weights, np.float32)


def which_count(lookup, table, flat, weights):
    """Which ids `tf.nn.safe_embedding_lookup_sparse` does not leave out."""
    counts = np.ones(len(flat), bool)
    if not table.is_keyed and lookup.combiner is not None:
        counts &= flat >= 0
    if lookup.combiner in ("mean", "sqrtn"):
        counts &= weights > 0
    return counts


def _combine(vectors, weights, inside, sample, samples, combiner):
    # Zeros that stand for ids outside the table are constants: no gradient, NaN or not, is theirs.
    products = tf.where(inside[:, None], vectors * weights[:, None], 0.0)
    total = tf.math.unsorted_segment_sum(products, sample, samples)
    if combiner == "sum":
        return total
    if combiner == "mean":
        divisor = tf.math.unsorted_segment_sum(weights, sample, samples)
    else:
        squares = tf.math.unsorted_segment_sum(weights**2, sample, samples)
        empty = np.bincount(sample, minlength=samples) == 0
        divisor = tf.sqrt(tf.where(empty, 1.0, squares))
    has_rows = np.bincount(sample[inside], minlength=samples) > 0
    return tf.where(has_rows[:, None], tf.math.divide_no_nan(total, divisor[:, None]), 0.0)


def _dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)


def clipped(gradients, clip):
    """Gradients, None among them, clipped as `Program.clip` says."""
    if clip is None:
        return gradients
    kind, limit = clip
    if kind == "global_norm":
        return tf.clip_by_global_norm(gradients, limit)[0]
    if kind == "norm":
        return [None if g is None else tf.clip_by_norm(g, limit) for g in gradients]
    return [None if g is None else tf.clip_by_value(g, -limit, limit) for g in gradients]

"""Runs a program both ways, and says where they differ first."""

import numpy as np
import tensorflow as tf

from .library import Library
from .oracle import Oracle

TOLERANCE = 2e-4


class Difference(AssertionError):
    """The differences of a program from stock TensorFlow."""


def run(program):
    """Raises a Difference, or whatever a step raises that should raise nothing."""
    library, oracle = Library(program), Oracle(program)
    for i, step in enumerate(program.steps):
        dense = oracle.dense.numpy()
        actual, expected = library.take(step), oracle.take(step)
        where = f"step {i}"
        if (actual is None) != (expected is None):
            got = f"refused: {library.refusal}" if actual is None else "taken"
            should = "refused" if expected is None else "taken"
            raise Difference(f"{where}: expected it to be {should}, got it {got}")
        if expected is not None and actual.outputs is not None:
            _compare_all(f"{where}: output of", actual.outputs, expected.outputs)
            # With an infinity the order of a sum says whether it is NaN.
            what = f"{where}: gradient of the weights of"
            noise = _noise_of_weight_gradients(expected, dense)
            _compare_all(what, _finite_or_nan(actual), _finite_or_nan(expected), noise)
        if expected is None:
            where += ", which was refused"
            library.settle(oracle)
        _compare_state(where, library, oracle)
    _compare_keyed_slots("at the end", library, oracle)


def _compare_all(what, actual, expected, noise=0.0):
    for name, value in expected.items():
        if value is not None and actual[name] is not None:
            _same(f"{what} '{name}'", actual[name], value, noise)


def _noise_of_weight_gradients(result, dense):
    """The bound of the rounding of a gradient of weights that is 0: of a mean of one row it is the
    difference of two products of rows, which are large where a program diverges."""
    row, factor = (_largest(values) for values in (list(result.outputs.values()), [dense]))
    error = row * factor + 1  # of an output beside its target
    return 1e-6 * error * factor * row


def _largest(tensors):
    arrays = [np.asarray(tf.cast(tensor, tf.float64)) for tensor in tensors]
    return max(np.abs(array[np.isfinite(array)]).max(initial=0) for array in arrays)


def _finite_or_nan(result):
    return {
        name: None if grad is None else np.where(np.isfinite(grad), grad, np.nan)
        for name, grad in result.weight_grads.items()
    }


def _compare_state(where, library, oracle):
    for table in library.program.tables:
        expected = oracle.tables[table.name].numpy()
        what = f"{where}: table '{table.name}'"
        if table.is_keyed:
            _compare_keys(what, library, oracle, table, expected)
        else:
            _same(f"{what}, rows", library.rows(table), expected)
    _same(f"{where}: dense variable", library.dense, oracle.dense)
    expected = oracle.slots()
    for name, value in library.slots().items():
        if library.program.optimizer.writes_no_slots:
            break
        _same(
            f"{where}: slot '{name[1]}' of {name[0] or 'the dense variable'}", value, expected[name]
        )


def _compare_keys(what, library, oracle, table, expected):
    rows, frequencies, versions = library.keys(table)
    keys = oracle.keys[table.name]
    have_row = np.flatnonzero(keys.have_row).tolist()
    if sorted(rows, key=str) != sorted(have_row, key=str):
        raise Difference(f"{what}: expected rows of the keys at {have_row}, got {sorted(rows)}")
    _same(f"{what}, frequencies", frequencies, keys.counts)
    _same(f"{what}, versions", versions, keys.versions)
    actual = [rows[i] for i in have_row]
    _same(f"{what}, rows", np.reshape(actual, [-1, table.dim]), expected[have_row])


def _compare_keyed_slots(where, library, oracle):
    expected = oracle.slots()
    for table in library.program.tables:
        if not table.is_keyed or not oracle.keys[table.name].have_row.any():
            continue
        for name, rows in library.keyed_slots(table).items():
            for i, value in rows.items():
                what = f"{where}: slot '{name}' of table '{table.name}', key at {i}"
                of_key = np.asarray(expected[table.name, name])[i]
                _same(what, value, np.reshape(of_key, value.shape))


def _same(what, actual, expected, noise=0.0):
    """noise: how far they may be apart in any case, beside the rounding of the largest values,
    which are far above others where a program diverges."""
    actual = np.asarray(tf.cast(actual, tf.float64))
    expected = np.asarray(tf.cast(expected, tf.float64))
    if actual.size == expected.size:
        actual = actual.reshape(expected.shape)
    if actual.shape != expected.shape:
        raise Difference(f"{what}: shape {actual.shape}, expected {expected.shape}")
    noise += 1e-6 * _largest([expected])
    with np.errstate(invalid="ignore"):
        error = (np.abs(actual - expected) - noise) / np.maximum(1.0, np.abs(expected))
    same = (error <= TOLERANCE) | (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if not same.all():
        at = tuple(np.argwhere(~same)[0].tolist())
        raise Difference(f"{what}, at {at}: expected {expected[at]}, got {actual[at]}")

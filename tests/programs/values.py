"""The numbers that a program names by a seed."""

import numpy as np


def initial_values(table):
    """[rows, dim]: of a table by key, the values of `table.keys`."""
    generator = np.random.default_rng(table.seed)
    values = generator.normal(size=(table.rows, table.dim)).astype(np.float32)
    for row, column, value in table.poison:
        values[row, column] = value
    return values


def initial_dense(program):
    return np.random.default_rng(program.seed).uniform(0.5, 1.5, program.width).astype(np.float32)


def targets(program, step):
    """[samples, width]"""
    generator = np.random.default_rng(step.seed)
    values = generator.normal(size=(step.samples, program.width)).astype(np.float32)
    for sample, column, value in step.poison:
        values[sample, column] = value
    return values


def default_of(table):
    """The values that a key of a table with a filter reads as long as it has no row."""
    return 0.25 if table.filter_freq else 0.0

"""The op that updates many whole variables and their slots by one formula, in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from group_embedding.ops._library import library
from group_embedding.ops.variable_handles import captured_as_one

# The operations of a program: `DenseOp` of cc/optimizer/dense_program.h, in its order.
OPERATIONS = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "magnitude",
    "square_root",
)


class Program(NamedTuple):
    """A formula as the op takes it: its attributes `program` and `results`."""

    steps: tuple[int, ...]
    results: tuple[int, ...]


class Register:
    """A number that a formula has of each element. Arithmetic on it adds a step to the program."""

    def __init__(self, steps: list[Any], step: Any = None) -> None:
        self._steps, self.index = steps, len(steps)
        steps.append(step)

    def _then(self, operation, other=None):
        operands = self.index, (self if other is None else other).index
        return Register(self._steps, (OPERATIONS.index(operation), *operands))

    def __add__(self, other):
        return self._then("add", other)

    def __sub__(self, other):
        return self._then("subtract", other)

    def __mul__(self, other):
        return self._then("multiply", other)

    def __truediv__(self, other):
        return self._then("divide", other)


def maximum(a, b):
    """The greater of two Registers; NaN if either is."""
    return a._then("maximum", b)


def minimum(a, b):
    """The less of two Registers; NaN if either is."""
    return a._then("minimum", b)


def magnitude(a):
    """|a|."""
    return a._then("magnitude")


def root(a):
    """The square root of a."""
    return a._then("square_root")


@functools.cache
def trace(formula: Callable, num_slots: int, names: tuple[str, ...]) -> Program:
    """The program of a formula.

    Args:
        formula: a function of a variable's element, its gradient, a list of `num_slots` slots, and
            a dict of numbers by name, all Registers. Returns the new element and the new slots in a
            list.
        num_slots: how many slots a variable has.
        names: of the numbers, in the order in which the op gets them.
    """
    steps: list = []
    x, gradient, *slots = (Register(steps) for _ in range(2 + num_slots))
    numbers = {name: Register(steps) for name in names}
    results = formula(x, gradient, slots, numbers)
    flat = [number for step in steps if step is not None for number in step]
    return Program(tuple(flat), tuple(result.index for result in results))


def dense_update(
    variables: Sequence[Any], slots: Sequence[Any], grads: Sequence[Any], program: Program, numbers
):
    """Updates variables of one dtype and device in place.

    Args:
        variables: resource variables.
        slots: of the first variable, then of the next, each of its variable's shape and dtype.
        grads: a tensor for each variable, of its shape and dtype.
        program: of `trace`.
        numbers: float32 [n], in the order of the program's names; each must be one that the
            variables' dtype holds.

    Raises:
        tf.errors.InvalidArgumentError: shapes or dtypes differ, or a variable comes twice.
        tf.errors.FailedPreconditionError: a variable is not initialized.
    """
    library().dense_update(
        variables=captured_as_one([variable.handle for variable in variables]),
        slots=captured_as_one([slot.handle for slot in slots]),
        grads=list(grads),
        numbers=numbers,
        program=program.steps,
        results=program.results,
        names=[variable.name.partition(":")[0] for variable in variables],
    )

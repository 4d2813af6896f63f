"""The ops that apply an update rule to tables and their slots, in place."""

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from group_embedding.ops._library import library
from group_embedding.ops.group_lookup import SHARED_ATTRS, batch_index
from group_embedding.ops.variable_handles import captured_as_one, take_as_one

# The numbers that steer an update: `Hyper` of cc/optimizer/hyper.h.
HYPER_NAMES = (
    "apply",
    "gradient_scale",
    "clip_value",
    "weight_decay",
    "rounding_key",
    "learning_rate",
    "momentum",
    "nesterov",
    "rho",
    "centered",
    "beta_1",
    "beta_2",
    "beta_1_power",
    "beta_2_power",
    "epsilon",
    "epsilon_in_root",
    "l1",
    "l2",
    "l2_shrinkage",
    "learning_rate_power",
    "accumulator_decay_rate",
    "accumulator_floor",
    "decays_due",
    "step",
)


class WrittenTable(NamedTuple):
    """A variable, its slot for each of the rule's (None: it does without), and whether slots in
    bfloat16 are rounded at random. An EmbeddingVariable keeps its slots itself: these stand in for
    them."""

    variable: Any
    slots: tuple
    rounds_slots: bool = False

    @property
    def is_keyed(self):
        return hasattr(self.variable, "table_handle")


class SlotKind(NamedTuple):
    """The type of a table's slots, or None, as references have it; and whether they are rounded at
    random."""

    dtype: Any
    is_stochastic: bool


class KeyedSlot(NamedTuple):
    """A slot of an EmbeddingVariable: its name and its initial value."""

    name: str
    start: float


class Rule(NamedTuple):
    """An update rule with its arguments. `hyper`: float32 [len(HYPER_NAMES)]. `keyed_slots`: a
    KeyedSlot for each of the rule's slots, or None. `slot_dtype`: of all slots; None: see
    `slot_kind`."""

    name: str
    hyper: Any
    stochastic_rounding: bool
    keyed_slots: tuple = ()
    slot_dtype: Any = None


def group_update(lookup_grad, tables, rule):
    """Computes in one op what a GroupLookupGrad op and the updates of its tables compute."""
    written = list(tables.values())
    at = batch_index(lookup_grad)
    batch, sizes = lookup_grad.inputs[at : at + 2]
    ops = library().group_update, library().group_update_ref
    after = [] if tf.executing_eagerly() else lookup_grad.control_inputs
    with tf.control_dependencies(after):
        return _pick(ops, written)(
            **_written_inputs(written, rule),
            batch=batch,
            sizes=sizes,
            grads=output_grads(lookup_grad),
            grad_features=lookup_grad.get_attr("grad_features"),
            updated_tables=[t for t, table in tables.items() if not table.is_keyed],
            updated_keyed=[t for t, table in tables.items() if table.is_keyed],
            **{name: lookup_grad.get_attr(name) for name in SHARED_ATTRS},
        )


def group_update_slices(slices, tables, rule):
    """Applies the rule to the gradients that tables got as `tf.IndexedSlices`.

    Args:
        slices: one per table; indices may repeat, and are summed in their order.
        tables: a list of WrittenTable of one dtype.
        rule: a Rule.

    Returns:
        As `group_update`.
    """
    plain_first = sorted(range(len(tables)), key=lambda i: tables[i].is_keyed)
    slices, tables = [slices[i] for i in plain_first], [tables[i] for i in plain_first]
    indices = [tf.cast(one.indices, tf.int64) for one in slices]
    ops = library().group_update_slices, library().group_update_slices_ref
    return _pick(ops, tables)(
        **_written_inputs(tables, rule),
        indices=indices[0] if len(indices) == 1 else tf.concat(indices, axis=0),
        values=[tf.cast(one.values, _dtype_of(tables[0].variable)) for one in slices],
        table_names=[table.variable.name.partition(":")[0] for table in tables],
    )


def output_grads(lookup_grad):
    """The gradients of the lookup's outputs that a GroupLookupGrad op takes."""
    first = batch_index(lookup_grad) + 2
    return lookup_grad.inputs[first : first + len(lookup_grad.get_attr("grad_features"))]


def hyper_vector(values):
    """A dict from each of HYPER_NAMES to a number or a scalar tensor -> the vector of all."""
    values = [values[name] for name in HYPER_NAMES]
    tensors = [i for i, value in enumerate(values) if tf.is_tensor(value)]
    vector = tf.constant([0.0 if i in tensors else v for i, v in enumerate(values)], tf.float32)
    if not tensors:
        return vector
    places = tf.constant([[i] for i in tensors], tf.int64)
    return tf.tensor_scatter_nd_update(
        vector, places, tf.stack([tf.cast(values[i], tf.float32) for i in tensors])
    )


def slot_kind(table, rule):
    """The SlotKind of a WrittenTable for a Rule; tables of several kinds need several ops."""
    slots = [slot for slot in table.slots if slot is not None]
    if not slots:
        return SlotKind(None, False)
    if rule.slot_dtype is not None:
        return SlotKind(rule.slot_dtype, False)
    if table.is_keyed:
        return SlotKind(table.variable.slot_dtype, table.rounds_slots)
    return SlotKind(_dtype_of(slots[0]) if is_resource(slots[0]) else None, table.rounds_slots)


def is_resource(variable):
    return resource_variable_ops.is_resource_variable(variable)


def _pick(ops, tables):
    """Returns the op for these tables: ops[0] takes resources, ops[1] references."""
    return ops[0] if is_resource(tables[0].variable) else ops[1]


def _written_inputs(tables, rule):
    dtype = _dtype_of(tables[0].variable)
    plain = [table for table in tables if not table.is_keyed]
    rule_slots = [i for i, slot in enumerate(tables[0].slots) if slot is not None]
    take_as_one(_handles_of(tables))
    inputs = {
        "tables": captured_as_one([_writable(table.variable) for table in plain]),
        "slots": captured_as_one(
            [_writable(table.slots[i]) for table in plain for i in rule_slots]
        ),
        "hyper": rule.hyper,
        "rule": rule.name,
        "rule_slots": rule_slots,
        "stochastic_rounding": rule.stochastic_rounding and dtype.size == 2,
        "keyed_tables": captured_as_one([t.variable.table_handle for t in tables if t.is_keyed]),
    }
    if len(plain) < len(tables):
        inputs["keyed_slot_names"] = [rule.keyed_slots[i].name for i in rule_slots]
        inputs["keyed_slot_starts"] = [rule.keyed_slots[i].start for i in rule_slots]
    slots = slot_kind(tables[0], rule)
    if slots.dtype is not None:
        inputs["slot_dtype"] = slots.dtype
    inputs["stochastic_slots"] = slots.is_stochastic
    return inputs


def _handles_of(tables):
    """The handles by which lookups know these tables."""
    variables = [table.variable for table in tables if is_resource(table.variable)]
    keyed = [table.variable.table_handle for table in tables if table.is_keyed]
    return [*(variable.handle for variable in variables), *keyed]


def _writable(variable):
    return variable.handle if is_resource(variable) else variable._ref()


def _dtype_of(variable):
    return tf.as_dtype(variable.dtype).base_dtype

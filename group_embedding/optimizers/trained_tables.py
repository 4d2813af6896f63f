"""The update of tables: all that were looked up in one group in one op, all others in another."""

import dataclasses
from typing import NamedTuple, Optional

import tensorflow as tf

from group_embedding.config import TABLE_DTYPES, check_int
from group_embedding.lookups.lookup_table import tf_variable, variable_of_all
from group_embedding.ops.deferred import defer_structure, is_deferring
from group_embedding.ops.group_update import (
    KeyedSlot,
    Rule,
    WrittenTable,
    group_update,
    group_update_slices,
    hyper_vector,
    is_resource,
    output_grads,
    slot_kind,
)
from group_embedding.ops.overflow import overflow
from group_embedding.optimizers import producer
from group_embedding.optimizers.rules import ROW_RULES, SMALL_SLOT_RULES
from group_embedding.optimizers.slot_types import (
    check_gradients,
    check_slots,
    described,
    let_train,
    rounds_slots,
)
from group_embedding.ranks.sharding.replica_tables import check_trained, parts_of
from group_embedding.ranks.sharding.sharded_table import exchange_of, sharded_table
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.steps import count_step


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `wrap`."""

    skip_nonfinite: bool = False
    stochastic_rounding_seed: Optional[int] = None

    def __post_init__(self) -> None:
        seed = self.stochastic_rounding_seed
        if seed is not None:
            seed = check_int("optimizer", "stochastic_rounding_seed", seed, at_least=-(2**63))
            object.__setattr__(self, "stochastic_rounding_seed", seed)


class Table(NamedTuple):
    """One table of a step: its gradient, its `tf.Variable`, its slots in the order of the rule, and
    by how much of itself, times the learning rate, each looked-up row shrinks."""

    gradient: tf.IndexedSlices
    variable: tf.Variable
    slots: tuple
    weight_decay: float = 0.0


def claim_tables(variables):
    """Tells the EmbeddingVariables among `variables`, and tables with a slot_dtype, that a wrapped
    optimizer trains them; refuses tables over replicas that it was not made for."""
    for variable in variables:
        variable = variable_of_all(variable)
        check_trained(variable)
        let_train(variable)
        for part in parts_of(variable):
            if isinstance(part, EmbeddingVariable):
                part._optimizer_is_wrapped = True


def check_keyed(grads_and_vars):
    """Refuses gradients of EmbeddingVariables, and of tables with a slot_dtype, that are not of
    rows."""
    check_gradients(grads_and_vars)
    for gradient, variable in grads_and_vars:
        variable = tf_variable(variable)
        if not isinstance(variable, EmbeddingVariable) or is_table_gradient(gradient):
            continue
        if gradient is not None:
            raise TypeError(
                f"table '{variable.name.partition(':')[0]}': expected a gradient of rows, as "
                f"IndexedSlices, got {described(gradient)}; tf.while_loop and Keras 3's "
                "gradient_accumulation_steps make gradients dense, which an EmbeddingVariable "
                "cannot have"
            )


def is_table_gradient(gradient):
    """Returns whether a gradient is that of a table: a [rows, dim] variable of which some rows have
    a gradient."""
    return (
        isinstance(gradient, tf.IndexedSlices)
        and gradient.values.shape.rank == 2
        and gradient.dtype.name in TABLE_DTYPES
    )


def sum_rows(gradient):
    """A gradient with each row once, which two lookups may have looked up."""
    rows, place = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def sum_rows_of_tables(gradients):
    """Gradients of tables with each row once, as a norm of them needs; all others as they are."""
    return [sum_rows(grad) if is_table_gradient(grad) else grad for grad in gradients]


def tensors_that_overflow(gradients):
    """Tensors of which one has an infinity or NaN if a row's gradient of a list of IndexedSlices
    has: not those gradients where `update_tables` does without."""
    return _asked(producer.plan(gradients), gradients)


def update_tables(
    name,
    tables,
    spec,
    settings,
    step=None,
    clip_value=None,
    averages=None,
    gradient_scale=1.0,
    apply=None,
    hypers=None,
):
    """Applies an optimizer's RuleSpec to a list of Table.

    Args:
        name: of the optimizer: keyed tables keep its slots under it.
        step: how many steps the optimizer has made before: random numbers are drawn from them.
            None: TensorFlow's own generator draws.
        clip_value: None, or the largest magnitude of an element of a row's gradient.
        averages: None, or the Averages that the optimizer keeps of keyed tables.
        gradient_scale: a number or a tensor that gradients are multiplied by first.
        apply: 1, or 0 where tables stay as they are, as a tensor; None: as `settings` says.
        hypers: None, or the vectors of `_hyper_vectors` for the arguments above.

    Returns:
        The ops, in a graph.

    Raises:
        ValueError: a table is spread by columns, and the rule is of whole rows; or a table rounds
            its slots, and the rule's may not be.
    """
    _check_slots(name, tables, spec)
    _refuse_parts_of_rows(name, tables, spec)
    numbers = (spec, settings, step, clip_value, gradient_scale)
    if is_deferring():
        return _defer_update(name, tables, numbers, averages, apply)
    plan = producer.plan([table.gradient for table in tables])
    if apply is None:
        apply = _all_finite(plan, tables) if settings.skip_nonfinite else 1.0
    if hypers is None:
        hypers = _hyper_vectors(tables, *numbers, apply)
    rounding = settings.stochastic_rounding_seed is not None
    keyed_slots = tuple(map(_keyed_slot(name, spec.starts), spec.slots))
    are_keyed = [isinstance(table.variable, EmbeddingVariable) for table in tables]
    ops = []
    if averages is not None:
        ops += _update(plan, _averaged(tables), averages.rule_before(apply), are_keyed)
    with tf.control_dependencies(_in_graph(ops)):
        for decay, hyper in zip(_decays(tables), hypers):
            rule = Rule(spec.rule, hyper, rounding, keyed_slots)
            ops += _update(plan, tables, rule, [table.weight_decay == decay for table in tables])
    with tf.control_dependencies(_in_graph(ops)):
        if averages is not None:
            ops += _update(plan, _averaged(tables), averages.rule_after(apply), are_keyed)
        keyed = [table.variable for table, is_keyed in zip(tables, are_keyed) if is_keyed]
        return ops + count_step(keyed)


def _check_slots(name, tables, spec):
    """Refuses tables whose slots are to be rounded, of rules whose slots may not be (a maximum of
    rounded moments, AMSGrad's, would be that of their errors); and slots of another type than was
    set."""
    for table in tables:
        check_slots(table.variable, table.slots)
    has_maximum = spec.rule == "adam" and spec.slots[2] is not None
    if not any(spec.slots) or (spec.rule in SMALL_SLOT_RULES and not has_maximum):
        return
    for table in tables:
        if not rounds_slots(table.variable):
            continue
        raise ValueError(
            f"table '{table.variable.name.partition(':')[0]}': expected Adam, LazyAdam or Keras's "
            "AdamW without amsgrad, AdamAsyncOptimizer without apply_sparse_rmsprop, Adagrad, "
            "RowwiseAdam or RowwiseAdagrad, as slot_dtype='bfloat16' is given, got optimizer "
            f"'{name}' of rule '{spec.rule}'{' with amsgrad' if has_maximum else ''}; "
            "make the table with slot_dtype='float32'"
        )


def _refuse_parts_of_rows(name, tables, spec):
    """Refuses to update columns of a row by a rule that needs the others."""
    if spec.rule not in ROW_RULES:
        return
    for table in tables:
        shard = sharded_table(table.variable)
        if shard is not None and shard.placement.is_by_columns:
            raise ValueError(
                f"table '{shard.name}': expected an optimizer that updates each number of a row by "
                f"itself, as '{shard.placement}' spreads the columns over "
                f"{shard.exchange.num_ranks} ranks, got '{name}', whose rule "
                f"'{spec.rule}' needs whole rows; place the table by rows ('distributed'), or take "
                "another optimizer, such as Adagrad"
            )


def _in_graph(ops):
    return [op for op in ops if op is not None]


def _averaged(tables):
    """The tables with the slots of rules of averages, which keyed tables keep themselves."""
    return [table._replace(slots=(table.variable, table.variable)) for table in tables]


def _update(plan, tables, rule, chosen):
    """Applies a rule to those of the planned tables that are chosen. Returns the ops."""
    ops = []
    for op, places in plan.fused:
        of_group = {t: tables[i] for t, i in places.items() if chosen[i]}
        ops += _update_group(op, of_group, rule)
    return ops + _update_slices([tables[i] for i in plan.slices if chosen[i]], rule)


def _decays(tables):
    return sorted({table.weight_decay for table in tables})


def _hyper_vectors(tables, spec, settings, step, clip_value, gradient_scale, apply):
    """The numbers that steer the update: a vector for each of `_decays(tables)`."""
    common = {
        **NEUTRAL,
        **spec.hyper,
        "clip_value": float("inf") if clip_value is None else clip_value,
        "gradient_scale": gradient_scale,
        "apply": apply,
        "rounding_key": _rounding_key(_rounding_seed(tables, settings), step),
    }
    return [hyper_vector({**common, "weight_decay": decay}) for decay in _decays(tables)]


def _defer_update(name, tables, numbers, averages, apply):
    """`update_tables` in a step that is being traced for XLA, which computes the numbers that steer
    the update: all but those that depend on the tables' gradients."""
    spec, settings, step, clip_value, gradient_scale = numbers
    depends_on_gradients = apply is None and settings.skip_nonfinite
    is_known = not depends_on_gradients
    known = _hyper_vectors(tables, *numbers, 1.0 if apply is None else apply) if is_known else None

    def update(given):
        slices, hypers, of_spec, options = given
        moved = [
            table._replace(gradient=tf.IndexedSlices(*pair, table.gradient.dense_shape))
            for table, pair in zip(tables, slices)
        ]
        stated = spec._replace(hyper=of_spec)
        update_tables(
            name, moved, stated, settings, clip_value=clip_value, hypers=hypers, **options
        )

    slices = [(table.gradient.values, table.gradient.indices) for table in tables]
    step_left = None if is_known else step  # else no host need know the number of the step
    options = {"step": step_left, "gradient_scale": gradient_scale, "apply": apply}
    options["averages"] = averages
    of_spec = {} if is_known else spec.hyper
    given = (slices, known, of_spec, options)
    return defer_structure(f"the update of tables by '{name}'", update, given)


# Values of hyper-parameters that an optimizer does not have.
NEUTRAL = {
    "learning_rate": 0.0,
    "momentum": 0.0,
    "nesterov": 0.0,
    "rho": 0.0,
    "centered": 0.0,
    "beta_1": 0.0,
    "beta_2": 0.0,
    "beta_1_power": 0.0,
    "beta_2_power": 0.0,
    "epsilon": 0.0,
    "epsilon_in_root": 0.0,
    "l1": 0.0,
    "l2": 0.0,
    "l2_shrinkage": 0.0,
    "learning_rate_power": 0.0,
    "accumulator_decay_rate": 0.0,
    "accumulator_floor": 0.0,
    "decays_due": 0.0,
    "step": 0.0,
}


def _keyed_slot(optimizer_name, starts):
    """A function of a slot's name in a rule spec; None where the rule does without."""

    def named(slot):
        if slot is None:
            return None
        return KeyedSlot(f"{optimizer_name}/{slot.lstrip('_')}", float(starts.get(slot, 0.0)))

    return named


def _update_group(lookup_grad, tables, rule):
    """The tables of one group, by their index in it; those of one kind in one op."""
    kinds = {}
    for index, table in tables.items():
        written = _written(table)
        kind = (is_resource(table.variable), slot_kind(written, rule))
        kinds.setdefault(kind, {})[index] = written
    return [group_update(lookup_grad, written, rule) for written in kinds.values()]


def _written(table):
    return WrittenTable(table.variable, table.slots, rounds_slots(table.variable))


def _update_slices(tables, rule):
    """Tables whose gradients are IndexedSlices; those of one kind in one op."""
    kinds = {}
    for table in tables:
        variable = table.variable
        written = _written(table)
        dtype = tf.as_dtype(variable.dtype).base_dtype
        kind = (dtype, is_resource(variable), variable.device, slot_kind(written, rule))
        kinds.setdefault(kind, []).append((table.gradient, written))
    return [group_update_slices(*map(list, zip(*alike)), rule) for alike in kinds.values()]


def _all_finite(plan, tables):
    """1 if every number in the gradients is finite, on all ranks that share tables, else 0."""
    found = overflow(_asked(plan, [table.gradient for table in tables]))
    exchanges = [exchange_of(table.variable) for table in tables]
    exchange = next(filter(None, exchanges), None)
    if exchange is not None:
        (found,) = exchange.average([found], "all_finite")
    return tf.cast(tf.equal(found, 0.0), tf.float32)


def _asked(plan, gradients):
    asked = [gradients[i].values for i in plan.slices]
    for op, _ in plan.fused:
        asked += output_grads(op)
    return asked


def _rounding_seed(tables, settings):
    seed = settings.stochastic_rounding_seed
    rounds = any(rounds_slots(table.variable) for table in tables)
    return 0 if seed is None and rounds else seed


def _rounding_key(seed, step):
    """A float32 whose bits are random."""
    if seed is None:
        return 0.0
    if step is None:
        bits = tf.random.uniform([], -(2**31), 2**31 - 1, tf.int32, seed=seed)
    else:
        key = tf.stack([tf.cast(seed, tf.int64), tf.cast(step, tf.int64)])
        bits = tf.random.stateless_uniform([], key, None, None, tf.int32)
    return tf.bitcast(bits, tf.float32)

"""The rules of the oracle, on variables with dense gradients: a stock optimizer, whose update of
rows that were not looked up is undone; or, without a stock twin, NumPy."""

import numpy as np
import tensorflow as tf
from support.oracles import rules as rules_oracle

STOCK_OF_OWN = {"LazyAdam": "Adam"}


def make_rule(optimizer, variables):
    name = STOCK_OF_OWN.get(optimizer.name, optimizer.name)
    if optimizer.family == "own" and name == optimizer.name:
        return NumpyRule(name, dict(optimizer.arguments), variables)
    family = "keras" if optimizer.family == "own" else optimizer.family
    return StockRule(make_stock(family, name, optimizer.arguments), variables)


def make_stock(family, name, arguments):
    modules = {
        "keras": tf.keras.optimizers,
        "legacy": getattr(tf.keras.optimizers, "legacy", None),
        "v1": tf.compat.v1.train,
    }
    return getattr(modules[family], name)(**arguments)


def make_slots(optimizer, variables):
    """Has an optimizer make all its slots now."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        with tf.init_scope():
            optimizer._create_slots(variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)
    else:
        optimizer.build(variables)


def slots_of(optimizer, variables):
    """Yields (the place of the variable, the name of the slot, the slot)."""
    if hasattr(optimizer, "get_slot_names"):
        for i, variable in enumerate(variables):
            for name in optimizer.get_slot_names():
                slot = _slot(optimizer, variable, name)
                if slot is not None:
                    yield i, name, slot
        return
    for name, made in vars(optimizer).items():
        is_list = isinstance(made, list) and len(made) == len(variables)
        if is_list and name != "_trainable_variables" and hasattr(made[0], "assign"):
            for i, slot in enumerate(made):
                yield i, name.lstrip("_"), slot


def _slot(optimizer, variable, name):
    try:
        return optimizer.get_slot(variable, name)
    except KeyError:  # of a legacy optimizer that has not trained the variable yet
        return None


class StockRule:
    def __init__(self, optimizer, variables):
        self.optimizer, self.variables = optimizer, variables
        make_slots(optimizer, variables)

    def apply(self, gradients, variables, touched):
        """Moves variables. `touched`: for each, bool [rows], which rows may move, or None: all."""
        mask_of = {id(variable): mask for variable, mask in zip(variables, touched)}
        kept = []
        for variable in variables:
            kept.append((variable, mask_of[id(variable)]))
        for i, _, slot in slots_of(self.optimizer, self.variables):
            kept.append((slot, mask_of.get(id(self.variables[i]))))
        kept = [(v, mask, v.numpy()) for v, mask in kept if mask is not None]
        self.optimizer.apply_gradients(list(zip(gradients, variables)))
        for variable, mask, before in kept:
            if not mask.all():
                mask = mask.reshape([-1] + [1] * (before.ndim - 1))
                variable.assign(np.where(mask, variable.numpy(), before))

    def num_steps(self):
        return self.optimizer.iterations

    def slots(self):
        for i, name, slot in slots_of(self.optimizer, self.variables):
            yield (self.variables[i], name), slot.numpy()


# The rule of a table, that of a whole vector, and the optimizer's names of the slots.
_OWN = {
    "RowwiseAdagrad": ("rowwise_adagrad", "adagrad", ("accumulators",)),
    "RowwiseAdam": ("rowwise_adam", "adam", ("momentums", "velocities")),
    "Lamb": ("lamb", "lamb", ("momentums", "velocities")),
}


class NumpyRule:
    def __init__(self, name, arguments, variables):
        self.variables = variables
        self.table_rule, self.vector_rule, self.slot_names = _OWN[name]
        self.clips = {
            clip: arguments.pop(clip)
            for clip in ("clipnorm", "global_clipnorm", "clipvalue")
            if clip in arguments
        }
        self.is_lamb, self.step = name == "Lamb", 0
        neutral = {"l1": 0.0, "l2": 0.0, "epsilon_in_root": 0.0, "beta_2": 0.999}
        self.hyper = {**rules_oracle.HYPER, **neutral, **arguments}
        if self.is_lamb:
            self.hyper.update(l2=arguments["weight_decay"], weight_decay=0.0)
        start = 0.1 if name == "RowwiseAdagrad" else 0.0
        row_slot = {"rowwise_adagrad": 0, "rowwise_adam": 1}.get(self.table_rule)
        self.made = {}
        for variable in variables:
            rows = variable.shape[0]
            whole = [np.full(variable.shape, start) for _ in self.slot_names]
            if row_slot is not None and len(variable.shape) == 2:
                whole[row_slot] = np.full([rows], start)
            self.made[id(variable)] = whole

    def apply(self, gradients, variables, touched):
        self.step += 1
        for name in ("beta_1", "beta_2"):
            self.hyper[f"{name}_power"] = self.hyper[name] ** self.step
        gradients = [np.asarray(g, np.float64) for g in self.clip(gradients)]
        for gradient, variable, mask in zip(gradients, variables, touched):
            x = variable.numpy().astype(np.float64)
            slots = self.made[id(variable)]
            with np.errstate(all="ignore"):
                if mask is None:
                    x = self.move_vector(gradient, x, slots)
                elif mask.any():
                    of_rows = [slot[mask] for slot in slots]
                    x[mask] = rules_oracle.apply_rule(
                        self.table_rule, self.hyper, gradient[mask], x[mask], of_rows
                    )
                    for slot, moved in zip(slots, of_rows):
                        slot[mask] = moved
                variable.assign(x.astype(np.float32))

    def move_vector(self, gradient, x, slots):
        """The whole vector is one row."""
        rows = [*(slot[None] for slot in slots), None]
        return rules_oracle.apply_rule(self.vector_rule, self.hyper, gradient[None], x[None], rows)[
            0
        ]

    def clip(self, gradients):
        for name, limit in self.clips.items():
            if name == "clipnorm":
                return [tf.clip_by_norm(g, limit) for g in gradients]
            if name == "global_clipnorm":
                return tf.clip_by_global_norm(gradients, limit)[0]
            return [tf.clip_by_value(g, -limit, limit) for g in gradients]
        return gradients

    def num_steps(self):
        return self.step

    def slots(self):
        for variable in self.variables:
            for name, slot in zip(self.slot_names, self.made[id(variable)]):
                is_per_row = len(variable.shape) == 2 and slot.ndim == 1
                yield (variable, name), slot[:, None] if is_per_row else slot

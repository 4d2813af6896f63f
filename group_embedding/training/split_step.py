"""A traced step, cut into XLA programs and what runs between them.

Every op of the trace has a level. Even levels run as they are, op by op; each odd level is one XLA
program. A level needs results of lower levels alone:

    level 0   whatever lookups depend on (packing, vocabularies, strings), and the lookups
    level 1   an XLA program: forward, loss, backward, metrics, the update of dense variables
    level 2   the gradients of lookups, and the update of tables by them
    level 3   an XLA program, where dense ops depend on level 2, as a norm of all gradients does

Over ranks, the average of dense gradients is of level 2 and the update of dense variables of level
3: two programs.
"""

from __future__ import annotations

import collections

import tensorflow as tf

from group_embedding.training.compilable_ops import DROPPED, is_compilable, with_functions
from group_embedding.training.lookups_ahead import LookupsAhead

# Ops without work of their own, which run where what they wait for runs.
_ANYWHERE = ("Identity", "IdentityN", "NoOp")
# Ops that wait for other ranks or change tables. `ops.deferred` knows those that a step may have;
# others would be made at another time than the step says.
_WAITING = ("HostAlltoall", "HostExchangeRows", "HostLookUpRows", "HostRowsAhead")
_WRITING = ("GroupUpdate", "InsertKeys", "EraseKeys", "EvictKeys", "WriteAverages")
_REFUSED = ("Horovod", *(f"GroupEmbedding>{name}" for name in _WAITING + _WRITING))


def _nothing():
    pass


class SplitStep:
    """The levels of one trace.

    Args:
        name: of the step, for messages.
        concrete: the `tf.ConcreteFunction` of the trace.
        trace: its `ops.deferred.Trace`.

    Raises:
        ValueError: an op that XLA cannot compile stands between ops that it compiles.
    """

    def __init__(self, name, concrete, trace):
        self._graph, self._calls = concrete.graph, trace.calls
        self._outputs = concrete.structured_outputs
        captured = {id(inner): outer for outer, inner in self._graph.captures}
        self._captured = captured
        self._arguments = [t for t in self._graph.inputs if id(t) not in captured]
        self._number = {op: i for i, op in enumerate(self._graph.get_operations())}
        self._call_of = {out.op: call for call in self._calls for out in call.outputs}
        self._needed = self._find_needed()
        self._levels = _Levels(name, self)
        self._items = self._group_by_level(self._needed)
        self._programs = {}
        self._ahead = LookupsAhead(self, self._calls, self._graph)
        self._items_of_routed = self._group_by_level(self._find_needed_of_routed())

    @property
    def closes_over_graph(self):
        """True if the trace has tensors of the graph around it, which differ from call to call."""
        tensors = self._captured.values()
        return any(not isinstance(t, tf.__internal__.EagerTensor) for t in tensors)

    @property
    def not_ahead(self):
        """{name of a lookup that `route` leaves out: the op for which it does}."""
        return self._ahead.reasons

    @property
    def num_programs(self):
        """How many XLA programs the step has."""
        return sum(level % 2 for level in self._items)

    def route(self, arguments):
        """Makes the ops that can run a step ahead.

        Args:
            arguments: the flat list of the step's tensors, of a batch to come.

        Returns:
            A structure of tensors for each lookup whose ids depend on the batch alone.
        """
        copy = self._copy(arguments)
        for op in self._ahead.ops:
            copy.make(op)
        return [call.route(*[copy.tensor(t) for t in call.inputs]) for call in self._ahead.calls]

    def __call__(self, arguments, routed=None, route_next=_nothing):
        """Makes the step's ops in the graph at hand.

        Args:
            arguments: the flat list of the step's tensors.
            routed: what `route` returned of them, in this function or in one before; None: nothing
                is done yet.
            route_next: makes ops that are to run between the lookups and the update.

        Returns:
            The structure that the step returns.
        """
        copy = self._copy(arguments)
        routed_of = {} if routed is None else dict(zip(map(id, self._ahead.calls), routed))
        items_of_level = self._items if routed is None else self._items_of_routed
        for level, items in sorted(items_of_level.items()):
            if level > 0:
                self._call_beside_dense_part(route_next, copy)
                route_next = _nothing
            if level % 2:
                self._call_program(level, items, copy)
                continue
            for item in items:
                if _is_op(item):
                    copy.make(item)
                    continue
                self._call_deferred(item, copy, routed_of.get(id(item)))
        route_next()  # a step of lookups alone
        return tf.nest.map_structure(
            lambda t: copy.tensor(t) if tf.is_tensor(t) else t,
            self._outputs,
            expand_composites=True,
        )

    def _call_beside_dense_part(self, make, copy):
        """Makes ops that wait for the lookups, in whose way they would be."""
        outputs = [out for call in self._calls if call.is_lookup for out in call.outputs[:1]]
        made = [copy.tensors[id(out)].op for out in outputs if id(out) in copy.tensors]
        with tf.control_dependencies(made):
            make()

    def _copy(self, arguments):
        copy = _Copy(self._graph, tf.compat.v1.get_default_graph(), self._captured)
        copy.tensors.update(zip(map(id, self._arguments), arguments))
        return copy

    def _call_deferred(self, call, copy, routed):
        if routed is None:
            results = call.run(*[copy.tensor(t) for t in call.inputs])
        else:
            results = call.run_routed(routed)
        copy.tensors.update(zip(map(id, call.outputs), results))

    def inputs_of(self, item):
        """The ops and deferred calls that one waits for: producers of its inputs, and for an op its
        control inputs."""
        found = [self._call_of.get(t.op, t.op) for t in item.inputs]
        if _is_op(item):
            found += [c for c in item.control_inputs if c.type not in DROPPED]
        return found

    def is_source(self, item):
        """Returns whether every level has an op: a constant, an argument or a captured tensor."""
        return _is_op(item) and item.type in ("Const", "Placeholder")

    def position(self, item):
        """The position of an op or a deferred call in the trace, for sorting."""
        if _is_op(item):
            return self._number[item], 1
        return item.position, 0

    @property
    def needed(self):
        """All ops and deferred calls with an effect or a result that is used; see `behind`."""
        return self._needed

    def _find_needed(self):
        return self.behind([*self._returned(), *self._effects(), *self._calls])

    def _find_needed_of_routed(self):
        """Without what only the ids of routed lookups need."""
        before = set(map(id, self._ahead.ops))
        effects = [op for op in self._effects() if id(op) not in before]
        return self.behind([*self._returned(), *effects, *self._calls], but=self._ahead.calls)

    def _returned(self):
        flat = tf.nest.flatten(self._outputs, expand_composites=True)
        return [t.op for t in flat if tf.is_tensor(t)]

    def _effects(self):
        return [op for op in self._graph.control_outputs if op.type not in DROPPED]

    def behind(self, items, but=()):
        """These ops and calls, and all that they depend on: each after what it depends on, and else
        in the order of the trace. Without what calls in `but` depend on."""
        ends = set(map(id, but))
        items = [self._call_of.get(item, item) for item in items]
        waiting = sorted(items, key=self.position, reverse=True)
        found, is_open = {}, set()
        while waiting:
            item = waiting.pop()
            if id(item) in found:
                continue
            if id(item) in is_open:
                found[id(item)] = item
                continue
            is_open.add(id(item))
            inputs = () if id(item) in ends else self.inputs_of(item)
            first = [other for other in inputs if id(other) not in found]
            waiting += [item, *sorted(first, key=self.position, reverse=True)]
        return list(found.values())

    def _group_by_level(self, needed):
        items = collections.defaultdict(list)
        for item in needed:
            if not self.is_source(item):
                items[self._levels.of(item)].append(item)
        return dict(items)

    def _call_program(self, level, ops, copy):
        """Calls the XLA program of some ops, which is made the first time."""
        if level not in self._programs:
            self._programs[level] = self._make_program(level, ops)
        program, inputs, outputs = self._programs[level]
        inside = set(ops)
        waits = {c for op in ops for c in op.control_inputs if c not in inside}
        with tf.control_dependencies([copy.ops[c] for c in waits if c in copy.ops]):
            results = program(*[copy.tensor(t) for t in inputs])
        copy.tensors.update(zip(map(id, outputs), results))
        if results:  # ops outside that wait for one inside wait for the program
            copy.ops.update((op, results[0].op) for op in ops)

    def _make_program(self, level, ops):
        inside = set(ops)
        inputs, outputs = {}, {}
        for op in ops:
            for t in op.inputs:
                is_here = t.op in inside or t.op.type == "Const" or id(t) in self._captured
                if not is_here:
                    inputs[id(t)] = t
        for item in self._needed:
            tensors = item.inputs if item not in inside else ()
            outputs.update({id(t): t for t in tensors if t.op in inside})
        flat = tf.nest.flatten(self._outputs, expand_composites=True)
        outputs.update({id(t): t for t in flat if tf.is_tensor(t) and t.op in inside})
        inputs, outputs = list(inputs.values()), list(outputs.values())

        def xla_program(*arguments):
            graph = tf.compat.v1.get_default_graph()
            copy = _Copy(self._graph, graph, self._captured, keeps_devices=False)
            copy.tensors.update(zip(map(id, inputs), arguments))
            for op in ops:
                copy.make(op)
            return [copy.tensor(t) for t in outputs]

        signature = [tf.TensorSpec(t.shape, t.dtype) for t in inputs]
        program = tf.function(
            xla_program, input_signature=signature, autograph=False, jit_compile=True
        )
        return program, inputs, outputs


class _Levels:
    """The level of each op and deferred call that is needed."""

    def __init__(self, name, step):
        self._step, self._name = step, name
        self._level, self._has_any_rows, self._follows = {}, set(), {}
        lookups = [item for item in step.needed if getattr(item, "is_lookup", False)]
        self._before_lookups = set(map(id, step.behind(lookups))) if lookups else set()
        for item in step.needed:
            if not step.is_source(item):
                self._level[id(item)] = self._find(item)

    def of(self, item):
        return self._level[id(item)]

    def _find(self, item):
        is_op, step = _is_op(item), self._step
        waits_for = [other for other in step.inputs_of(item) if not step.is_source(other)]
        least = max((self._level[id(other)] for other in waits_for), default=0)
        is_outside = not is_op or self._runs_outside(item)
        level = least if least % 2 != is_outside else least + 1
        if is_op and item.type in _ANYWHERE and waits_for and is_compilable(item):
            level, is_outside = least, least % 2 == 0
        # What follows an op that splits a program, and is compiled, would be a program of its own.
        culprit = next((self._follows[id(o)] for o in waits_for if id(o) in self._follows), None)
        if culprit is None and is_op and is_outside and level > 0 and not is_compilable(item):
            culprit = item
        if culprit is not None:
            if level % 2:
                raise ValueError(self._refusal(culprit))
            self._follows[id(item)] = culprit
        return level

    def _runs_outside(self, op):
        refused = next((o for o in with_functions(op) if o.type.startswith(_REFUSED)), None)
        if refused is not None:
            raise ValueError(
                f"{self._name}: expected no op that waits for other ranks, or changes tables, but "
                "lookups, their gradients, the average of dense gradients and one update, got "
                f"{refused.type} '{refused.name}'. Route ids in the dataset (map(layer.route)), or "
                "ahead of the step (step.over(dataset)), and clip by value, or train with "
                "tf.keras.Model, which compiles nothing"
            )
        rows = any(id(t) in self._has_any_rows for t in op.inputs)
        rows = rows or any(c.has_any_rows for c in self._step.inputs_of(op) if not _is_op(c))
        if rows:
            is_shapeless = any(not out.shape.is_fully_defined() for out in op.outputs)
            self._has_any_rows.update(map(id, op.outputs) if is_shapeless else ())
            return True  # also a sum over rows, for each number of which XLA would compile anew
        return id(op) in self._before_lookups or not is_compilable(op)

    def _refusal(self, op):
        layer = op.name.rpartition("/")[0] or op.name
        return (
            f"{self._name}: expected ops that XLA compiles between the lookups and the update, got "
            f"{op.type} ('{op.name}') in '{layer}'. Leave it outside: do its work in the dataset, "
            "as by Dataset.map, or on the inputs of the lookups alone; or train with "
            "tf.keras.Model, which compiles nothing"
        )


class _Copy:
    """Ops of one graph on their way into another.

    Args:
        source, target: the graphs.
        captured: {id of a placeholder of `source`: the tensor from outside that it stands for}.
        keeps_devices: whether ops stay on the devices that they are placed on. A program has one.
    """

    def __init__(self, source, target, captured, keeps_devices=True):
        self._target, self._keeps_devices = target, keeps_devices
        self.tensors, self.ops = dict(captured), {}
        for function in source._functions.values():
            target._add_function_recursive(function)

    def tensor(self, tensor):
        """The copy of a tensor. Constants are copied when they are asked for."""
        if id(tensor) not in self.tensors:
            self.make(tensor.op)
        return self.tensors[id(tensor)]

    def make(self, op):
        inputs = [self.tensor(t) for t in op.inputs]
        attrs = {name: v for name, v in op.node_def.attr.items() if name != "_class"}
        after = [self.ops[c] for c in op.control_inputs if c in self.ops]
        device = op.device if self._keeps_devices else None
        with tf.control_dependencies(after), tf.device(device):
            made = self._target.create_op(
                op.type, inputs, [out.dtype for out in op.outputs], attrs=attrs, name=op.name
            )
        self.ops[op] = made
        self.tensors.update(zip(map(id, op.outputs), made.outputs))


def _is_op(item):
    return isinstance(item, tf.Operation)

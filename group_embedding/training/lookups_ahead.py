"""The lookups of a traced step whose ids a step before can route."""

import tensorflow as tf

from group_embedding.training.compilable_ops import DROPPED, with_functions

_OF_BATCH = tuple(
    f"GroupEmbedding>{name}"
    for name in ("GroupIds", "CheckIds", "BatchSizesToString", "BatchSizesFromString")
)
_READS_VOCABULARY = ("LookupTableFindV2", "LookupTableSizeV2")
_WRITES_VOCABULARY = ("LookupTableInsertV2", "LookupTableRemoveV2", "LookupTableImportV2")


class LookupsAhead:
    """The lookups whose ids depend on the batch alone: on no variable, which the step before
    changes, on no random number, and on no other lookup.

    Args:
        step: the `SplitStep`.
        calls: the deferred calls of its trace.
        graph: what was traced.

    Attributes:
        calls: those lookups.
        ops: what their ids are made by, in order.
        reasons: {name of another lookup: the op for which it cannot be routed ahead}.
    """

    def __init__(self, step, calls, graph):
        ops = graph.get_operations()
        self._reads = _OF_BATCH
        if not any(op.type in _WRITES_VOCABULARY for outer in ops for op in with_functions(outer)):
            self._reads += _READS_VOCABULARY
        self.calls, self.reasons = [], {}
        for call in calls:
            if call.route is None:
                continue
            needed = [item for item in step.behind([call]) if item is not call]
            culprit = next((item for item in needed if self._has_state(item)), None)
            if culprit is None:
                self.calls.append(call)
            else:
                self.reasons[call.name] = culprit.name
        needed = step.behind(self.calls)
        self.ops = [item for item in needed if isinstance(item, tf.Operation)]
        self.ops = [op for op in self.ops if not step.is_source(op)]

    def _has_state(self, item):
        if not isinstance(item, tf.Operation):  # a deferred call
            return True
        if item.type in ("Const", "Placeholder", *DROPPED, *self._reads):
            return False
        return item.op_def.is_stateful or any(t.dtype == tf.resource for t in item.inputs)

"""`MMoE` and `PLE`: several labels of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.experts import ExpertGate
from group_embedding.recommender.zoo.mlp import MLP
from group_embedding.recommender.zoo.model_inputs import Dense, Features
from group_embedding.recommender.zoo.recommender import Recommender


class _MultiTask(Recommender):
    """A tower and a logit for each task."""

    def _make_towers(self, tasks, tower, dropout):
        policy = self._policy
        self._tasks = tuple(tasks)
        self.towers = [MLP(tower, dropout=dropout, dtype=policy) for _ in self._tasks]
        self.logits = [self._logit_layer() for _ in self._tasks]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(self._tasks)

    def _outputs(self, inputs, training):
        """{task: logits [batch, 1]}, of the input of each task's tower."""
        towers = zip(self._tasks, self.towers, self.logits, inputs)
        return {task: logit(tower(x, training=training)) for task, tower, logit, x in towers}


def _check_tasks(model, tasks):
    names = [] if isinstance(tasks, str) else list(tasks)
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise ValueError(
            f"{model}: expected tasks to be different names, as in ['click', 'buy'], got {tasks!r}"
        )


@keras.utils.register_keras_serializable(package="group_embedding")
class MMoE(_MultiTask):
    """Multi-gate mixture of experts: Ma et al., https://doi.org/10.1145/3219819.3220007.

        ids --- one lookup --+             +-- expert 1 --+     +-- gate --- tower --- logit 1
                             |-- side by --|      ...     |-----|
        dense ---------------+   side      +-- expert n --+     +-- gate --- tower --- logit 2

    A gate is a softmax over the experts, computed of the same input, for each task.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> model = ge.models.MMoE([ge.FeatureConfig("item", items)], tasks=["click", "buy"])
    >>> {task: logits.shape for task, logits in model({"item": tf.constant([5, 7])}).items()}
    {'click': TensorShape([2, 1]), 'buy': TensorShape([2, 1])}

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      tasks: names of the outputs: the keys of the labels and of the losses in `compile`.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      num_experts: how many experts all tasks share.
      expert: units of the layers of an expert.
      tower: units of the hidden layers of a task's tower.
      dropout: the share of outputs of a layer that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: a dict from tasks to logits `[batch, 1]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def __init__(
        self,
        features: Features,
        *,
        tasks: Sequence[str],
        dense: Dense = None,
        dim: int = 16,
        num_experts: int = 8,
        expert: Sequence[int] = (128,),
        tower: Sequence[int] = (64,),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, **kwargs)
        self._check_combined()
        _check_tasks("MMoE", tasks)
        self._check_units(num_experts=[num_experts], expert=expert, tower=tower)
        policy = self._policy
        self.experts = [MLP(expert, dropout=dropout, dtype=policy) for _ in range(num_experts)]
        self.gates = [ExpertGate(num_experts, dtype=policy) for _ in tasks]
        self._make_towers(tasks, tower, dropout)

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        x = batch.concat(self.features)
        experts = [expert(x, training=training) for expert in self.experts]
        return self._outputs([gate(x, experts) for gate in self.gates], training)


@keras.utils.register_keras_serializable(package="group_embedding")
class PLE(_MultiTask):
    """Progressive layered extraction: Tang et al., https://doi.org/10.1145/3383313.3412236.

        input --- experts of task 1 --+-- gate 1 -----> ... experts of the next level --- tower 1
          |                           |
          +------ shared experts -----+-- shared gate -> ...
          |                           |
          +------ experts of task 2 --+-- gate 2 -----> ... experts of the next level --- tower 2

    The gate of a task weighs its own experts and the shared ones, the shared gate all experts. The
    last level has no shared gate.

    Example:

    >>> items = ge.TableConfig("items", num_rows=100, dim=8)
    >>> model = ge.models.PLE([ge.FeatureConfig("item", items)], tasks=["click", "buy"])
    >>> model({"item": tf.constant([5, 7])})["buy"].shape
    TensorShape([2, 1])

    Args:
      features: a `ge.data.Schema`, or `FeatureConfig`s.
      tasks: names of the outputs: the keys of the labels and of the losses in `compile`.
      dense: names of dense inputs, or a dict from names to widths; None: those of the schema.
      dim: the length of rows, where a schema does not say it.
      num_levels: how many levels of experts.
      task_experts: how many experts a task has on each level.
      shared_experts: how many experts all tasks share on each level.
      expert: units of the layers of an expert.
      tower: units of the hidden layers of a task's tower.
      dropout: the share of outputs of a layer that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras model.

    Returns:
      Called on a dict of inputs: a dict from tasks to logits `[batch, 1]`.

    Raises:
      TypeError, ValueError: An argument is not of the form above.
    """

    def __init__(
        self,
        features: Features,
        *,
        tasks: Sequence[str],
        dense: Dense = None,
        dim: int = 16,
        num_levels: int = 2,
        task_experts: int = 2,
        shared_experts: int = 2,
        expert: Sequence[int] = (128,),
        tower: Sequence[int] = (64,),
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, dense=dense, dim=dim, **kwargs)
        self._check_combined()
        _check_tasks("PLE", tasks)
        counts = [num_levels, task_experts, shared_experts]
        self._check_units(counts=counts, expert=expert, tower=tower)
        num_tasks = len(tasks)
        self._counts = (*[task_experts] * num_tasks, shared_experts)
        self.experts, self.gates = [], []  # by level, then by group: the tasks, the shared ones

        def make_expert():
            return MLP(expert, dropout=dropout, dtype=self._policy)

        for level in range(num_levels):
            num_gates = num_tasks + (level < num_levels - 1)
            self.experts.append([[make_expert() for _ in range(count)] for count in self._counts])
            sizes = [*[task_experts + shared_experts] * num_tasks, sum(self._counts)]
            self.gates.append([ExpertGate(n, dtype=self._policy) for n in sizes[:num_gates]])
        self._make_towers(tasks, tower, dropout)

    def predict_logits(self, batch: Any, training: Any = None) -> Any:
        inputs = [batch.concat(self.features)] * len(self._counts)
        for experts_of, gates in zip(self.experts, self.gates):
            *own, shared = [
                [expert(x, training=training) for expert in experts]
                for x, experts in zip(inputs, experts_of)
            ]
            seen = [[*of_task, *shared] for of_task in own]
            seen.append([output for group in (*own, shared) for output in group])
            inputs = [gate(x, outputs) for gate, x, outputs in zip(gates, inputs, seen)]
        return self._outputs(inputs, training)

"""`Pipeline`: steps of preprocessing, fitted in one pass, the same in training and in serving."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.recommender.data import fitted_steps, steps

_STEPS = {
    step.__name__: step
    for step in (
        *(steps.Log, steps.Clip, steps.FillMissing, steps.Bucketize, steps.Hash, steps.Cross),
        *(fitted_steps.Categorify, fitted_steps.Standardize),
    )
}


class Pipeline(tf.Module):
    """Steps of preprocessing, one after the other, in TensorFlow's ops alone: it is called in
    `map`, and in the signature of a SavedModel, which keeps its vocabularies.

    Example:

    >>> batches = [{"age": tf.constant([3.0, 5.0]), "item": tf.constant([70, 80])}]
    >>> pipeline = ge.data.Pipeline(
    ...     [ge.data.Log("age"), ge.data.Standardize("age"), ge.data.Categorify("item")]
    ... )
    >>> pipeline.fit(batches)(batches[0])["item"].numpy()
    array([1, 2])

    Args:
        steps: `Log`, `Clip`, `FillMissing`, `Bucketize`, `Hash`, `Cross`, `Categorify`,
            `Standardize`; each reads what those before wrote.

    Raises:
        ValueError: a step is fitted to features that depend on another fitted step, which would
            take a second pass.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        self.steps = list(steps)
        self._check_one_pass()

    def _check_one_pass(self):
        """Raises if a step is fitted to what another fitted step makes."""
        written_by = {}  # the fitted step that a feature depends on, by the feature's name
        for step in self.steps:
            source = next((written_by[name] for name in step.inputs if name in written_by), None)
            kind = type(step).__name__
            if source and _is_fitted_to_data(step):
                raise ValueError(
                    f"{kind} of {', '.join(step.inputs)}: expected features that can be fitted in "
                    f"one pass, got one that depends on {source}, which is fitted itself"
                )
            source = kind if _is_fitted_to_data(step) else source
            for name in step.outputs:
                written_by.pop(name, None)
                if source:
                    written_by[name] = source

    def fit(self, batches: Iterable[Any]) -> Pipeline:
        """Fits all steps in one pass.

        Args:
            batches: dicts of features, or pairs (features, labels), as of a `Reader`.

        Returns:
            The pipeline.
        """
        to_fit = [step for step in self.steps if _is_fitted_to_data(step)]
        for step in to_fit:
            step.fitted = False
            step.start()
        for batch in batches:
            self._update(dict(batch[0] if isinstance(batch, tuple) else batch))
        for step in to_fit:
            step.finish()
        return self

    def _update(self, features):
        """Shows one batch to the steps that are fitted, behind the steps before them."""
        unknown = set()  # features that depend on a step that is being fitted
        for step in self.steps:
            _check_inputs(step, features)
            if _is_fitted_to_data(step):
                for name in step.inputs:
                    step.update(_values_of(features[name]), name)
                unknown |= set(step.outputs)
            elif unknown & set(step.inputs):
                unknown |= set(step.outputs)
            else:
                features = step(features)
                unknown -= set(step.outputs)
            features.update({n: None for n in step.outputs if n not in features})

    def __call__(self, features: Any, labels: Any = None) -> Any:
        """The features with all outputs; with labels, a pair of these features and the labels.

        Raises:
            ValueError: a feature is missing or of another dtype, or a step is not fitted.
        """
        features = dict(features)
        for step in self.steps:
            kind = type(step).__name__
            if not step.fitted:
                raise ValueError(f"{kind} of {', '.join(step.inputs)}: expected fit() before")
            _check_inputs(step, features)
            features = step(features)
        return features if labels is None else (features, labels)

    @property
    def num_ids(self) -> dict[str, int]:
        """For each feature that has ids at the end, how many: the rows of its table."""
        return {
            name: step.num_ids
            for step in self.steps
            for name in step.outputs
            if step.num_ids is not None
        }

    def save(self, folder: str | os.PathLike) -> None:
        """Writes pipeline.json and the vocabularies, a text file for each, into a folder."""
        os.makedirs(folder, exist_ok=True)
        saved = []
        for number, step in enumerate(self.steps):
            entry = {"step": type(step).__name__, "arguments": step.config()}
            if hasattr(step, "save_values"):
                if not step.fitted:
                    raise ValueError(f"{entry['step']}: expected fit() before save()")
                entry["values"] = step.save_values(_path_of(folder, number))
            saved.append(entry)
        with open(os.path.join(folder, "pipeline.json"), "w") as file:
            json.dump({"steps": saved}, file, indent=1)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Pipeline:
        """Reads what `save` wrote."""
        with open(os.path.join(folder, "pipeline.json")) as file:
            saved = json.load(file)
        loaded = []
        for number, entry in enumerate(saved["steps"]):
            if entry["step"] not in _STEPS:
                raise ValueError(
                    f"{folder}: expected a step of {', '.join(_STEPS)}, got {entry['step']!r}"
                )
            step = _STEPS[entry["step"]](**entry["arguments"])
            if "values" in entry:
                step.load_values(_path_of(folder, number), entry["values"])
            loaded.append(step)
        return cls(loaded)


def _is_fitted_to_data(step):
    return hasattr(step, "start")


def _check_inputs(step, features):
    for name in step.inputs:
        if name not in features:
            raise ValueError(
                f"{type(step).__name__}: expected a feature '{name}', got "
                f"{', '.join(sorted(features))}"
            )


def _path_of(folder, number):
    return os.path.join(folder, f"step_{number}")


def _values_of(values):
    if isinstance(values, tf.RaggedTensor):
        return values.flat_values.numpy()
    if isinstance(values, tf.SparseTensor):
        return values.values.numpy()
    return values.numpy() if hasattr(values, "numpy") else np.asarray(values)

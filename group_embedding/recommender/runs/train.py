"""`train`: trains the model of a config, or goes on with its run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from group_embedding.ranks import exchange
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.runs.progress import Progress, as_text
from group_embedding.recommender.runs.remote_run import kept_run, upload_files
from group_embedding.recommender.runs.run import Run


def train(config: Config, models: Mapping[str, Any]) -> dict[str, Any]:
    """Trains a model to the end of its config, from the newest checkpoint of the run's folder.

    All ranks call it together. The folder then has `checkpoints/`, `best/`, `pipeline/`,
    `tensorboard/`, `config.json` and `result.json`.

    Args:
        config: the config.
        models: the classes that `model.name` names.

    Returns:
        What `result.json` has: the number of steps, why training ended, the metrics of the newest
        evaluation, and the best one with its step.

    Raises:
        ConfigError: the config cannot be used.
        FloatingPointError: the loss is infinite or NaN.
    """
    training = _Training(config, models)
    with kept_run(config):
        result = training.run()
    upload_files(config)  # the result, behind the checkpoint that it is of
    return result


class _Training(Run):
    """A run that is trained. `newest` has the metrics of the newest evaluation."""

    def run(self):
        self.state, self.newest = self.checkpoints.state, {}
        training, logging = self.config["training"], self.config["logging"]
        reader = self.model.make_reader("train")
        per_epoch = reader.num_batches
        if not per_epoch:
            raise ConfigError(
                f"{self.config.path}: data.train: expected enough rows for a batch, got "
                f"{reader.num_rows} rows"
            )
        num_steps = min(training["steps"] or math.inf, training["epochs"] * per_epoch)
        if self.checkpoints.restore():
            self.checkpoints.restore_reader(reader)
        self.write_config()
        self.evaluate_every = training["evaluate_every"] or per_epoch
        folder = self.folder / "tensorboard" if logging["tensorboard"] else None
        size = self.config["data"]["batch_size"]
        is_first = exchange.current().rank == 0
        self.progress = Progress(num_steps, size, folder, is_first)
        if self.state.step:
            self.progress.note(f"goes on behind step {self.state.step}")
        ended = self._loop(reader, num_steps)
        return self._finish(reader, ended)

    def _loop(self, reader, num_steps):
        """Trains; returns why it ended."""
        every = self.config["logging"]["every"]
        rates, metrics = self.model.learning_rates(num_steps), self.new_metrics()
        if self._is_patience_over():
            return "early stopping"
        if self.state.step >= num_steps:
            return "steps"
        self.progress.start(self.state.step)
        for batch in itertools.islice(self.model.batches(reader), num_steps - self.state.step):
            rate = rates.at(self.state.step + 1)
            self.model.learning_rate = rate
            loss, logits = self.model.train_outputs(batch)
            metrics.add(loss, logits, self.model.labels_of(batch))
            self.state.step += 1
            step = self.state.step
            if step % every == 0 or step == num_steps:
                window = metrics.result()
                metrics.reset()
                self._check_finite(window["loss"])
                self.progress.step(step, window, rate)
            if self._between_steps(reader, step, num_steps):
                return "early stopping"
        return "steps" if self.state.step >= num_steps else "epochs"

    def _between_steps(self, reader, step, num_steps):
        """Evaluates and saves, where it is time to; returns whether training ends early."""
        save_every = self.config["checkpoints"]["every"] or self.evaluate_every
        evaluates = step % self.evaluate_every == 0 or step == num_steps
        evaluates = evaluates and self.config.files("validation") is not None
        if evaluates:
            self._evaluate(reader, step)
        if evaluates or step % save_every == 0 or step == num_steps:
            self.checkpoints.save(reader)
            self.progress.start(step)
        return evaluates and self._is_patience_over()

    def _evaluate(self, reader, step):
        limit = self.config["data"]["evaluation_batches"]
        self.newest = self.evaluate("validation", max_batches=limit)
        state, training = self.state, self.config["training"]
        value = self.newest[training["metric"]]
        is_better = state.best is None or _is_better(
            training["metric"], value, state.best, training["early_stopping"]["min_delta"]
        )
        state.worse = 0 if is_better else state.worse + 1
        if is_better:
            state.best, state.best_step = value, step
            self.checkpoints.save_best(reader)
        self.progress.note(
            f"step {step}: validation {as_text(self.newest)}{', the best' if is_better else ''}"
        )
        self.progress.write("validation", step, self.newest)

    def _is_patience_over(self):
        patience = self.config["training"]["early_stopping"]["patience"]
        return patience is not None and self.state.worse >= patience

    def _check_finite(self, loss):
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"step {self.state.step}: expected a finite loss, got {loss}; lower "
                f"optimizer.learning_rate, or look for such numbers in the data. The newest "
                f"checkpoint in {self.folder} is from before"
            )

    def _finish(self, reader, ended):
        state, metric = self.state, self.config["training"]["metric"]
        if self.checkpoints.saved_step != state.step:
            self.checkpoints.save(reader)
        result = {
            "steps": state.step,
            "ended": ended,
            "validation": self.newest,
            "best": None if state.best is None else {metric: state.best, "step": state.best_step},
        }
        path = self.folder / "result.json"
        if not self.newest and path.exists():  # a run that had ended before
            result = json.loads(path.read_text())
        if exchange.current().rank == 0:
            path.write_text(json.dumps(result, indent=1) + "\n")
        self.progress.note(f"{self.folder}: {state.step} steps, ended by {ended}")
        return result


def _is_better(metric, value, best, min_delta):
    """Returns whether a metric is better than the best so far; NaN never is."""
    return value > best + min_delta if metric == "auc" else value < best - min_delta

"""The progress line of a training, and its TensorBoard summaries."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

_SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)


class Progress:
    """Shows steps, metrics, speed and the time that is left.

    Args:
        num_steps: the steps of the whole training; None: not known.
        batch_size: samples of a step, of all ranks.
        folder: the folder of TensorBoard's summaries; None: none are written.
        show: whether this process shows anything.
    """

    def __init__(
        self, num_steps: int | None, batch_size: int, folder: Path | None, show: bool = True
    ) -> None:
        self._num_steps, self._batch_size, self._show = num_steps, batch_size, show
        self._writer: Any = None
        if folder is not None and show:
            self._writer = tf.summary.create_file_writer(str(folder))
        self._last: tuple[int, float] | None = None
        self._speed = 0.0  # steps a second, the newest windows counting most
        self._num_windows = 0
        self.line_is_open = False

    def start(self, step: int) -> None:
        """Begins to measure the time of steps: behind whatever is no step."""
        self._last = step, time.perf_counter()

    def step(self, step: int, metrics: Mapping[str, float], learning_rate: float) -> None:
        """Shows a window of steps that ended with this one."""
        now = time.perf_counter()
        assert self._last is not None
        begin, since = self._last
        self._last = step, now
        if step > begin:
            # The first window traces and compiles the step: the second one replaces it.
            share = 1.0 if self._num_windows < 2 else 0.3
            speed = (step - begin) / max(now - since, 1e-9)
            self._speed += share * (speed - self._speed)
            self._num_windows += 1
        if not self._show:
            return
        rate = self._speed * self._batch_size
        total = f"/{self._num_steps}" if self._num_steps else ""
        line = f"step {step}{total}  {as_text(metrics)}  {rate:,.0f} examples/s{self._left(step)}"
        self._print(line, stays=not sys.stdout.isatty())
        summaries = {**metrics, "learning_rate": learning_rate, "examples_per_second": rate}
        self.write("train", step, summaries)

    def note(self, line: str) -> None:
        """Shows a line of its own."""
        if self._show:
            self._print(line, stays=True)

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Writes summaries."""
        if self._writer is None:
            return
        with self._writer.as_default():
            for name, value in values.items():
                # Not tf.summary.scalar, which needs TensorBoard to be installed.
                tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), step, _SCALARS)
        self._writer.flush()

    def _left(self, step):
        if not self._num_steps or not self._speed:
            return ""
        return f"  {as_duration((self._num_steps - step) / self._speed)} left"

    def _print(self, line, stays):
        if self.line_is_open:
            print("\r\033[K", end="")
        print(line, end="\n" if stays else "", flush=True)
        self.line_is_open = not stays


def as_text(metrics: Mapping[str, float]) -> str:
    """ "loss 0.1234  auc 0.7812" """
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def as_duration(seconds: float) -> str:
    """ "2h05m", "3m20s", "45s" """
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"

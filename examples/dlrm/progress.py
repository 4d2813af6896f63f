"""The progress line, and the speed that the closing table reports."""

import sys
import time

import numpy as np
import tensorflow as tf

WINDOW = 10  # steps between two lines, and in one measurement of speed


class Progress:
    """Told of each step that ended; writes step, loss and examples/s, on one line in a terminal."""

    def __init__(self, name, num_steps, batch_size, show=True):
        self.name, self.num_steps, self.batch_size, self.show = name, num_steps, batch_size, show
        self.ends = []
        self.num_ops = None  # of the training graph, once it is known

    def wants_loss(self):
        """Returns whether the next step ends a window."""
        step = len(self.ends) + 1
        return step % WINDOW == 0 or step == self.num_steps

    def step(self, loss=None):
        """One step has ended; `loss` only where it was wanted."""
        self.ends.append(time.perf_counter())
        if loss is None or not self.show:
            return
        step, in_terminal = len(self.ends), sys.stdout.isatty()
        if in_terminal or step % (10 * WINDOW) == 0 or step == self.num_steps:
            line = (
                f"{self.name:>8}  step {step:>6}/{self.num_steps}  loss {loss:.4f}  "
                f"{self.examples_per_second():>9,.0f} examples/s"
            )
            end = "\r" if in_terminal and step < self.num_steps else "\n"
            print(line, end=end, flush=True)

    def examples_per_second(self):
        """The median over windows of steps, the first window left out; NaN below three steps."""
        window = max(1, min(WINDOW, len(self.ends) // 3))
        seconds = np.diff(self.ends[window - 1 :: window])
        return window * self.batch_size / np.median(seconds) if len(seconds) else float("nan")


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Tells a Progress of an Estimator's steps and of the size of its graph."""

    def __init__(self, progress):
        self.progress = progress

    def begin(self):
        self.loss = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1]

    def after_create_session(self, session, coord):
        self.progress.num_ops = len(session.graph.get_operations())

    def before_run(self, run_context):
        wanted = {"loss": self.loss} if self.progress.wants_loss() else {}
        return tf.compat.v1.train.SessionRunArgs(wanted)

    def after_run(self, run_context, run_values):
        self.progress.step(run_values.results.get("loss"))

"""`CollectiveStrategy.estimator`: an Estimator of all ranks. For TensorFlow 2.15 and earlier."""

import tempfile

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow_estimator.python.estimator import estimator as tf_estimator
from tensorflow_estimator.python.estimator import run_config

from group_embedding.checkpoint import CheckpointSaverHook
from group_embedding.ranks.distributed import export_by_first_rank
from group_embedding.ranks.exchange import current

_DEFAULT_SECS = 600  # how often a RunConfig saves that is not told
_SAVE_STEPS = 1000


def make_estimator(strategy, model_fn, model_dir, config, params, **kwargs):
    """See `CollectiveStrategy.estimator`."""
    if model_dir is None and (config is None or config.model_dir is None):
        raise ValueError("estimator: expected a model_dir, a folder that all ranks share, got None")
    config = config or run_config.RunConfig()
    if config.save_checkpoints_secs == _DEFAULT_SECS:
        config = config.replace(save_checkpoints_secs=None, save_checkpoints_steps=_SAVE_STEPS)
    if config.save_checkpoints_secs is not None:
        raise ValueError(
            "estimator: expected a RunConfig with save_checkpoints_steps, as the clocks of ranks "
            f"differ, got save_checkpoints_secs={config.save_checkpoints_secs}"
        )
    if strategy.rank > 0:
        config = config.replace(save_summary_steps=None, log_step_count_steps=None)
    config = config.replace(session_config=_with_gpu_of_rank(config.session_config))
    kwargs.update(model_dir=model_dir, config=config, params=params)
    return CollectiveEstimator(_in_scope(strategy, model_fn), **kwargs)


def _with_gpu_of_rank(session_config):
    """A session that is given a config takes the host's first GPU, unless that names another."""
    given = session_config or run_config.get_default_session_config()
    gpu_options = tf.compat.v1.GPUOptions()
    gpu_options.CopyFrom(context.context().config.gpu_options)
    gpu_options.MergeFrom(given.gpu_options)
    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(given)
    config.gpu_options.CopyFrom(gpu_options)
    return config


class CollectiveEstimator(tf_estimator.EstimatorV2):
    """An Estimator whose methods every rank calls alike."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._exchange = current()
        self._scratch = tempfile.TemporaryDirectory(prefix="group_embedding_")

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        # First, as on rank 0: other hooks may wait for all ranks, as a PublisherHook does.
        hooks = [*self._saving_hooks(saving_listeners), *(hooks or [])]
        listeners = saving_listeners if self._exchange.rank == 0 else None
        return super().train(input_fn, hooks, steps, max_steps, listeners)

    def train_and_evaluate(self, train_spec, eval_spec):
        """Trains to the end, evaluates, and has the exporters of `eval_spec` export.

        Returns:
            What `evaluate` found.
        """
        self.train(train_spec.input_fn, train_spec.hooks, max_steps=train_spec.max_steps)
        latest = tf.train.latest_checkpoint(self.model_dir)
        metrics = self.evaluate(
            eval_spec.input_fn, eval_spec.steps, eval_spec.hooks, latest, eval_spec.name
        )
        for exporter in eval_spec.exporters:

            def export(exporter=exporter):
                folder = f"{self.model_dir}/export/{exporter.name}"
                exported = exporter.export(self, folder, latest, metrics, True)
                return tf.compat.as_str(exported or folder)

            export_by_first_rank(self._exchange, export)
        return metrics

    def eval_dir(self, name=None):
        return super().eval_dir(name) if self._exchange.rank == 0 else self._scratch.name

    def _train_with_estimator_spec(self, spec, worker_hooks, hooks, *args):
        """In one process training does not wait for checkpoints, unless a hook of the user's or of
        `model_fn` saves them: one that is given takes the place of stock's own."""
        config = self._config
        given = [*worker_hooks, *hooks, *spec.training_hooks, *spec.training_chief_hooks]
        stock = tf.compat.v1.train.CheckpointSaverHook
        has_hook = any(isinstance(hook, stock) for hook in given)
        if self._exchange.num_ranks == 1 and config.save_checkpoints_steps and not has_hook:
            ours = CheckpointSaverHook(
                self.model_dir,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                save_graph_def=config.checkpoint_save_graph_def,
            )
            hooks = [*hooks, ours]
        return super()._train_with_estimator_spec(spec, worker_hooks, hooks, *args)

    def _assert_members_are_not_overridden(self):
        """Stock has none overridden, lest a subclass lose what it does; here all call it."""

    def _saving_hooks(self, listeners):
        """The hooks by which ranks other than the first take part in its checkpoints. Their other
        files, such as events, are written to a folder of their own."""
        if self._exchange.rank == 0 or not self._config.save_checkpoints_steps:
            return []
        hook = tf.compat.v1.train.CheckpointSaverHook(
            self._scratch.name,
            save_steps=self._config.save_checkpoints_steps,
            listeners=listeners,
        )
        hook._save_path = f"{self.model_dir}/model.ckpt"  # which stock has in the hook's folder
        return [hook]


def _in_scope(strategy, model_fn):
    """`model_fn` inside the strategy's scope, with the signature that the Estimator looks at."""

    def in_scope(*args, **kwargs):
        with strategy.scope():
            return model_fn(*args, **kwargs)

    return tf.__internal__.decorator.make_decorator(model_fn, in_scope)

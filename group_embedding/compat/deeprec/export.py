"""A checkpoint and a function that builds a graph -> a SavedModel."""

import os

import tensorflow as tf

v1 = tf.compat.v1


def export_checkpoint(folder, checkpoint, build, assets_extra, as_text, **options):
    """Builds a model in a graph of its own, restores it and writes it; returns `folder`.

    Args:
        folder, checkpoint, build, assets_extra, as_text: of
            `CollectiveStrategy.export_saved_model`: savedmodel_dir, checkpoint_dir,
            signature_def_fn and so on.
        **options: of `SavedModelBuilder.add_meta_graph_and_variables`.
    """
    if not callable(build):
        raise TypeError(
            "export_saved_model: expected signature_def_fn to be a function that builds the "
            f"serving model, got {build!r}"
        )
    checkpoint = _find_checkpoint(checkpoint)
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = _as_signatures(build())
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        v1.train.Saver().restore(session, checkpoint)
        builder = v1.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(
            session,
            [v1.saved_model.tag_constants.SERVING],
            signatures,
            v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
            **options,
        )
        builder.save(as_text)
    for path, source in (assets_extra or {}).items():
        _copy(source, os.path.join(folder, "assets.extra", path))
    return folder


def _find_checkpoint(checkpoint):
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(
            "export_saved_model: expected checkpoint_dir to be the path of a checkpoint or of a "
            f"folder of checkpoints, got {checkpoint!r}"
        )
    checkpoint = os.fspath(checkpoint)
    if not tf.io.gfile.isdir(checkpoint):
        return checkpoint
    newest = tf.train.latest_checkpoint(checkpoint)
    if newest is None:
        raise ValueError(f"export_saved_model: expected a checkpoint in the folder {checkpoint!r}")
    return newest


def _as_signatures(built):
    """SignatureDefs by name, of what the user's function returned."""
    if isinstance(built, dict):
        return built
    if isinstance(built, tuple):
        built = v1.saved_model.predict_signature_def(*built)
    return {v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: built}


def _copy(source, target):
    tf.io.gfile.makedirs(os.path.dirname(target))
    tf.io.gfile.copy(source, target)

"""The keys of a config file, stated once: as a JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from group_embedding.optimizers import OPTIMIZER_NAMES

METRICS = ("auc", "loss")
LOSSES = ("binary_crossentropy", "mean_squared_error", "model")
FORMATS = ("parquet", "csv", "tsv", "criteo", "tfrecord", "hugectr", "torchrec")
STEPS = (
    *("Bucketize", "Categorify", "Clip", "Cross", "FillMissing", "Hash", "Log", "Standardize"),
)


def json_schema(model_names: Sequence[str]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a config file.

    Args:
        model_names: the models that `model.name` may name.

    Returns:
        Plain values that `json.dump` writes.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config file of group_embedding",
        **_object(
            "Data, model and training: see docs/guides/config.md.",
            ["model"],
            data=_data(),
            schema=_key(
                ["string", "object", "null"],
                "The schema of the data: its YAML or JSON file, or the schema itself",
                None,
            ),
            model=_object(
                "The model. Other keys are the arguments of its class in ge.models.",
                ["name"],
                is_open=True,
                name=_word(model_names, "The model's name"),
            ),
            loss=_object(
                "The loss of each label's logits.",
                name=_word(
                    LOSSES,
                    "What is averaged; model: the model's own loss, as of two_tower",
                    "binary_crossentropy",
                ),
                weights=_key("object", "The weight of each label's loss, where it is not 1", {}),
            ),
            optimizer=_optimizer(),
            precision=_word(
                ("float32", "mixed_bfloat16", "mixed_float16"),
                "Keras's dtype policy of the dense part; tables stay float32",
                "float32",
            ),
            ranks=_object(
                "The processes that train together; horovodrun launches more than one.",
                number=_key("integer", "How many", 1, minimum=1),
                placement=_key(
                    "string",
                    "Where tables lie: distributed, localized:<rank> or columns, each with :sums "
                    "behind it or without, the first two with :two_levels, replicated or auto",
                    "distributed",
                ),
            ),
            training=_training(),
            checkpoints=_object(
                "Where the run is kept.",
                folder=_key(
                    "string",
                    "The folder of the run; null: runs/<name of the file>, where a URL (s3://, "
                    "gs://, hdfs://) has its local copy",
                    None,
                ),
                every=_key(
                    "integer",
                    "Steps between two checkpoints; null: as evaluations",
                    None,
                    minimum=1,
                ),
                keep=_key("integer", "How many checkpoints are kept", 3, minimum=1),
            ),
            logging=_object(
                "What is shown meanwhile.",
                every=_key("integer", "Steps between two progress lines", 100, minimum=1),
                tensorboard=_key("boolean", "Write TensorBoard summaries", True),
            ),
            export=_object(
                "The SavedModel.",
                folder=_key("string", "Its folder, or URL; null: export in the run's folder", None),
            ),
            predict=_object(
                "What predict reads and writes.",
                files=_key(["string", "array"], "Files; null: data.test", None, **_items()),
                output=_key(
                    "string",
                    "A .parquet or .csv file, or URL; null: predictions.parquet in the run's "
                    "folder",
                    None,
                ),
            ),
            tune=_object(
                "The search of tune.",
                search=_word(("grid", "random"), "How values are chosen", "grid"),
                trials=_key("integer", "How many, of a random search", 10, minimum=1),
                seed=_key("integer", "Of a random search", 0),
                parameters=_key(
                    "object",
                    "By dotted key, such as model.dim: a list of values, or for a random search "
                    "{low, high, log}",
                    {},
                ),
            ),
        ),
    }


def _data():
    return _object(
        "The files of samples and how they are read: see ge.data.Reader.",
        train=_key(["string", "array"], "Files, folders or globs to train on", None, **_items()),
        validation=_key(
            ["string", "array"], "Files that evaluations during training read", None, **_items()
        ),
        test=_key(["string", "array"], "Files of evaluate; null: validation", None, **_items()),
        format=_word(FORMATS, "The files' format; null: by the first file's name", None),
        batch_size=_key("integer", "Samples of a step, of all ranks together", 1024, minimum=1),
        evaluation_batch_size=_key(
            "integer", "Samples of a batch of evaluations; null: batch_size", None, minimum=1
        ),
        evaluation_batches=_key(
            "integer", "At most so many batches of an evaluation in training", None, minimum=1
        ),
        shuffle_rows=_key("integer", "Rows that are shuffled together", 0, minimum=0),
        drop_remainder=_key("boolean", "Leave out an epoch's last, smaller batch", False),
        on_bad_rows=_word(("raise", "skip"), "What a row that cannot be read does", "raise"),
        threads=_key("integer", "Threads that read; null: one for each core", None, minimum=1),
        preprocessing={
            "type": "array",
            "description": "Steps of ge.data.Pipeline, each an object of its class and arguments; "
            "features with a hash_size are hashed after them",
            "default": [],
            "items": {
                "type": "object",
                "required": ["step"],
                "properties": {"step": _word(STEPS, "The step's class in ge.data")},
                "additionalProperties": True,
            },
        },
    )


def _optimizer():
    return _object(
        "The optimizer, wrapped by ge.optimizers.wrap. Other keys are the arguments of Keras's "
        "class, or of the function in ge.optimizers.",
        is_open=True,
        name=_word(OPTIMIZER_NAMES, "Which", "adagrad"),
        learning_rate=_key("number", "Its learning rate", 0.01, exclusiveMinimum=0),
        schedule=_object(
            "The learning rate by steps.",
            decay=_word(
                ("none", "linear", "polynomial", "cosine"), "The form of its decay", "none"
            ),
            warmup_steps=_key("integer", "Steps in which it rises from 0", 0, minimum=0),
            decay_start=_key("integer", "The last step before it decays", 0, minimum=0),
            decay_steps=_key(
                "integer", "Steps of the decay; null: to the end of training", None, minimum=1
            ),
            power=_key("number", "Of a polynomial decay", 2.0, exclusiveMinimum=0),
            end=_key("number", "The learning rate at the end", 0.0, minimum=0),
        ),
    )


def _training():
    return _object(
        "How long, and how.",
        epochs=_key("integer", "Passes over data.train", 1, minimum=1),
        steps=_key("integer", "Steps at most; null: all of the epochs", None, minimum=1),
        compiled=_key("boolean", "Compile the dense part of a step to one XLA program", False),
        seed=_key("integer", "Of initial values and of the order of rows", 0, minimum=0),
        evaluate_every=_key(
            "integer", "Steps between two evaluations; null: after each epoch", None, minimum=1
        ),
        metric=_word(
            METRICS, "Which metric the best checkpoint, early stopping and tune go by", "auc"
        ),
        early_stopping=_object(
            "When training ends because evaluations get no better.",
            patience=_key(
                "integer",
                "Evaluations without a better one; null: no early stopping",
                None,
                minimum=1,
            ),
            min_delta=_key("number", "By how much better counts", 0.0, minimum=0),
        ),
    )


def _items():
    return {"items": {"type": "string"}, "minItems": 1}


_NO_DEFAULT = object()


def _key(kind, description, default=_NO_DEFAULT, **limits):
    """A key of a type; one whose default is None may be null."""
    kinds = [kind] if isinstance(kind, str) else list(kind)
    stated = {"type": kinds[0] if len(kinds) == 1 else kinds, "description": description, **limits}
    if default is None and "null" not in kinds:
        stated["type"] = [*kinds, "null"]
    if default is not _NO_DEFAULT:
        stated["default"] = default
    return stated


def _word(choices, description, default=_NO_DEFAULT):
    choices = list(choices)
    if default is None:
        choices.append(None)
    stated = {"enum": choices, "description": description}
    return stated if default is _NO_DEFAULT else {**stated, "default": default}


def _object(description, required=(), is_open=False, **properties):
    return {
        "type": "object",
        "description": description,
        **({"required": list(required)} if required else {}),
        "properties": properties,
        "additionalProperties": is_open,
    }

"""InferenceSession: a SavedModel that answers requests, and is updated by deltas meanwhile."""

import contextlib
import ctypes
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from group_embedding.files import DataSourceParams
from group_embedding.ops import library as op_library
from group_embedding.serving.session.calls_in_progress import CallsInProgress
from group_embedding.serving.session.native_library import check, library, take_text
from group_embedding.serving.session.request_tensors import Prediction, to_prediction, to_tensors
from group_embedding.serving.session.saved_models import local_model

_NO_LIMIT = 2**63 - 1  # microseconds


class InferenceSession:
    """Opens a SavedModel for requests.

    The session answers each request from one version of the model: all tables and all dense
    variables of one instant. `apply` moves the model to the next version while requests go on.
    The methods may be called from any thread, and predictions run side by side. This is the same
    native code that `ge-serve` and `libge_serving` run; docs/guides/serving.md has the whole way
    from a trainer to a server.

    Args:
        path: the folder of a SavedModel, or its URL (`s3://`, `gs://`, `hdfs://`, ...): then it is
            opened from a local copy, whose checksums were verified. Its tables may be
            `EmbeddingVariable`s and variables `[rows, dim]`; both are kept once, in host memory,
            however they were trained.
        quantize: the storage of rows. None: as trained. "bfloat16": 2 bytes a value. "int8" and
            "fp8" (E4M3): 1 byte a value, and 4 bytes a row. Sums of rows are in float32.
        version: int >= 0, the version of this model. None: what a `Publisher` wrote beside the
            model, or the folder's name if that is a number, or 0.
        tags: of the graph in the SavedModel.
        threads: of an op, and ops that run at a time. None: one per core.
        state: the path of a file in which the session writes which deltas it has applied. If the
            file exists and is of this model, its deltas are applied before the constructor returns.
        tiers: where the rows of keyed tables are, as "memory=16GB,rocksdb=/var/rows": in RocksDB in
            that folder, with as many in memory as fit. None: all in memory. The folder is made and
            filled when a model is opened first, and kept; one process at a time uses it. Rows of
            deltas stay in memory. Sizes are bytes, or kB, MB, GB, KiB, MiB, GiB. Or
            "memory=16GB,redis=HOST:PORT[,HOST:PORT...]": in Redis, which any number of processes
            share. More may follow, durations with us, ms, s, min or h: `timeout=50ms`, from a
            request's start until its rows below memory are there; `on_failure=default`, to answer
            late rows and rows that cannot be read as those of absent keys, counted, where `error`
            raises; `insert=background` or `off`: rows that were read come into memory after the
            answer, or never, where `at_once` is before it; `expire=1h`: rows of the base leave
            memory that nobody asks for. docs/reference/tiers.md says more, also of passwords,
            TLS and clusters.
        devices: where lookups and the dense part run: "CPU", "GPU:0", or a list of one of them.
            None: the CPU. With a GPU, small tables have their rows in its memory; rows of large
            ones stay in host memory that the GPU reads in place, and those that are asked for often
            have copies in its own. All get half of what the GPU has left, or the `hbm=4GB` of
            `tiers`, alone or with the others.
        data_source: the file system of a `path` without a scheme, which the whole job may share; a
            `ge.data.DataSourceParams`. None: this machine's.

    Raises:
        FileNotFoundError: the folder has no SavedModel.
        ValueError: a wrong option.
        tf.errors.OpError: TensorFlow cannot load the model; DataLossError: a file is damaged;
            UnavailableError: the tier below memory cannot be opened.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import group_embedding as ge
    >>> from group_embedding.serving import InferenceSession
    >>> class Model(tf.Module):
    ...     def __init__(self):
    ...         self.items = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))
    ...     @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="item")])
    ...     def serve(self, item):
    ...         return {"row": ge.group_embedding_lookup([self.items], [item])[0]}
    >>> folder, model = tempfile.mkdtemp(), Model()
    >>> tf.saved_model.save(model, folder, signatures=model.serve)
    >>> with InferenceSession(folder) as session:
    ...     print(session.predict({"item": np.array([3, 0])})["row"].tolist())
    [[6.0, 7.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        path: Union[str, bytes, os.PathLike],
        *,
        quantize: Optional[str] = None,
        version: Optional[int] = None,
        tags: Sequence[str] = ("serve",),
        threads: Optional[int] = None,
        state: Union[str, os.PathLike, None] = None,
        tiers: Optional[str] = None,
        devices: Union[str, Sequence[str], None] = None,
        data_source: Optional[DataSourceParams] = None,
    ) -> None:
        op_library()  # says in one sentence what is missing
        options = {
            "tensorflow": os.path.dirname(tf.__file__),
            "tags": list(tags),
            "quantize": quantize,
            "version": version,
            "threads": threads,
            "state": None if state is None else os.fspath(state),
            "tiers": tiers,
            "devices": [devices] if isinstance(devices, str) else devices and list(devices),
        }
        self._copy = contextlib.ExitStack()  # of a model at a URL
        path = self._copy.enter_context(local_model(path, data_source, progress=False))
        self._model: Optional[ctypes.c_void_p] = None
        self._calls = CallsInProgress()
        model = ctypes.c_void_p()
        try:
            check(
                library().ge_serving_open,
                os.fsencode(path),
                json.dumps(options, ensure_ascii=False).encode(),
                ctypes.byref(model),
            )
        except BaseException:
            self._copy.close()
            raise
        self._model = model

    def predict(
        self,
        inputs: Mapping[str, Any],
        signature: str = "serving_default",
        outputs: Sequence[str] = (),
        *,
        timeout: Optional[float] = None,
    ) -> Prediction:
        """Answers a request from the newest version.

        Args:
            inputs: {the signature's input: array}, with a dtype and shape that the signature has.
                Lists of numbers and strings are taken as the signature's dtype.
            signature: its name in the SavedModel.
            outputs: names of the outputs to compute. Empty: all.
            timeout: seconds from now, at least 0, after which the answer is not wanted: the
                computation ends between two ops or within a lookup, and rows below memory are late,
                where that is before the `timeout=` of `tiers`. None: no other limit.

        Returns:
            dict: output -> array, with the attribute `version`.

        Raises:
            ValueError: an input is missing, unknown, or of a wrong dtype or shape.
            KeyError: the model has no such signature.
            RuntimeError: the session is closed.
            tf.errors.DeadlineExceededError: the answer, or rows below memory, did not come in time.
            tf.errors.UnavailableError: rows below memory cannot be read.
        """
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ValueError(f"timeout: expected seconds, at least 0, got {timeout!r}")
        microseconds = _NO_LIMIT if timeout is None else min(int(timeout * 1e6), _NO_LIMIT)
        with self._calls:
            tensors, kept = to_tensors(inputs, self._dtypes(signature))
            names = (ctypes.c_char_p * len(outputs))(*[name.encode() for name in outputs])
            response = ctypes.c_void_p()
            check(
                library().ge_serving_predict_within,
                self._opened(),
                signature.encode(),
                tensors,
                len(tensors),
                names,
                len(outputs),
                microseconds,
                None,
                None,
                ctypes.byref(response),
            )
            del kept
            try:
                return to_prediction(response)
            finally:
                library().ge_serving_free_response(response)

    def signatures(self) -> dict:
        """The signatures of the model.

        Returns:
            dict: signature -> {"method_name": str, "inputs": {name: {"name": tensor of the graph,
            "dtype": number of TensorFlow's DataType, "shape": list with -1 for any size, or
            None}}, "outputs": the same}.
        """
        with self._calls:
            return self._json(library().ge_serving_signatures)

    @property
    def version(self) -> int:
        """The version that the next request is answered from."""
        with self._calls:
            return library().ge_serving_version(self._opened())

    def info(self) -> dict:
        """Describes what the session holds.

        Returns:
            dict: "path", "quantize", "memory_bytes" (of tables) and

            - "base_version", "version", "previous_version" (None: `rollback` has nothing to return
              to);
            - "step" and "time" of the trainer when it published the version (None: not known;
              seconds since 1970), "staleness_seconds" (now - time);
            - "tables": [{"name", "rows", "dim", "storage", "bytes", "variable"}]. "variable" is the
              checkpoint's key of a table by row number, and None for a keyed table.

            With `tiers`, "rows" of a keyed table are those of the base, and the table also has
            "tier" (such as "rocksdb=/var/rows"), and numbers since it was opened:

            - "in_memory", "below", "absent" (nowhere), "defaulted" (read as absent, since the tier
              failed): keys of answers;
            - "fetched": rows that came from below;
            - "reads": of the tier, by their time: up to 1 us, 2 us, 4 us, ...; "read_seconds": of
              all; "timeouts", "failures": reads that were late or failed;
            - "cached", "cached_bytes": rows of the base that are in memory now;
            - "evicted": keys that left memory for others; "expired": keys that left since nobody
              asked for them.

            On a GPU each table has "copies", a dict:

            - "resident": whether all rows are in the GPU's memory; "bytes", "rows": their space;
            - if not all rows are: "found", the ids that read a copy; "brought", the rows that came
              over the bus; "kept", the rows of these that became copies.
        """
        with self._calls:
            return self._json(library().ge_serving_info)

    def apply(self, folder: Union[str, os.PathLike]) -> int:
        """Applies a delta that a `Publisher` wrote; requests go on meanwhile.

        All files are read and verified before any request sees a part of the delta.

        Args:
            folder: of the delta, such as `target/versions/00000000000000000002`.

        Returns:
            The version of the model after it.

        Raises:
            tf.errors.AlreadyExistsError: the model has this version, or a later one.
            tf.errors.FailedPreconditionError: the delta does not follow the model's version.
            tf.errors.DataLossError: the delta is incomplete or damaged. The model stays as it is.
        """
        with self._calls:
            check(library().ge_serving_apply, self._opened(), os.fspath(folder).encode())
            return library().ge_serving_version(self._opened())

    def rollback(self) -> int:
        """Returns to the version before the last `apply`.

        Returns:
            The version of the model after it.

        Raises:
            tf.errors.FailedPreconditionError: there is none; the last apply can be taken back once.
        """
        with self._calls:
            check(library().ge_serving_rollback, self._opened())
            return library().ge_serving_version(self._opened())

    def close(self) -> None:
        """Frees the model, after the calls in progress. More calls of `close` do nothing."""
        with self._calls.ended():
            model, self._model = self._model, None
            if model is not None:
                library().ge_serving_close(model)
                self._copy.close()

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_model", None) is not None:
            self.close()

    def _opened(self):
        if self._model is None:
            raise RuntimeError("InferenceSession: expected an open session, got one that is closed")
        return self._model

    def _json(self, function):
        text = ctypes.c_void_p()
        check(function, self._opened(), ctypes.byref(text))
        return json.loads(take_text(text))

    def _dtypes(self, signature):
        """{input: dtype} of a signature; the native code complains of an unknown one."""
        if not hasattr(self, "_inputs"):
            self._inputs = {
                name: {key: tf.as_dtype(info["dtype"]) for key, info in found["inputs"].items()}
                for name, found in self._json(library().ge_serving_signatures).items()
            }
        return self._inputs.get(signature, {})

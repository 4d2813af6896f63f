"""Clients of ge-serve for tests: the stubs of tensorflow-serving-api, and HTTP."""

import json
import time
import urllib.error
import urllib.request

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
from tensorflow_serving.apis import (  # noqa: E402
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
    regression_pb2,
)

SECONDS = 20  # for any answer


class Client:
    """The unmodified client over one channel."""

    def __init__(self, server, credentials=None):
        address = f"localhost:{server.grpc_port}"
        options = [("grpc.max_receive_message_length", -1)]
        self.channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def predict(self, inputs, seconds=SECONDS, **spec):
        """{output: array}, and the version."""
        answer = self.predictions.Predict(predict_request(inputs, **spec), timeout=seconds)
        outputs = {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}
        return outputs, answer.model_spec.version.value

    def classify(self, examples, **spec):
        request = with_spec(classification_pb2.ClassificationRequest(), **spec)
        request.input.example_list.examples.extend(examples)
        return self.predictions.Classify(request, timeout=SECONDS)

    def regress(self, examples, context=None, **spec):
        request = with_spec(regression_pb2.RegressionRequest(), **spec)
        if context is None:
            request.input.example_list.examples.extend(examples)
        else:
            request.input.example_list_with_context.examples.extend(examples)
            request.input.example_list_with_context.context.CopyFrom(context)
        return self.predictions.Regress(request, timeout=SECONDS)

    def metadata(self, field="signature_def", **spec):
        request = with_spec(get_model_metadata_pb2.GetModelMetadataRequest(), **spec)
        request.metadata_field.append(field)
        answer = self.predictions.GetModelMetadata(request, timeout=SECONDS)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert answer.metadata["signature_def"].Unpack(signatures)
        return signatures.signature_def, answer.model_spec.version.value

    def states(self, **spec):
        """{version: (state's name, message)}."""
        request = with_spec(get_model_status_pb2.GetModelStatusRequest(), **spec)
        answer = self.models.GetModelStatus(request, timeout=SECONDS)
        state = get_model_status_pb2.ModelVersionStatus.State
        return {
            one.version: (state.Name(one.state), one.status.error_message)
            for one in answer.model_version_status
        }

    def raw(self, method, message=b""):
        """Sends bytes to a method such as "tensorflow.serving.PredictionService/Predict"."""
        return self.channel.unary_unary(f"/{method}")(message, timeout=SECONDS)


def with_spec(request, model="m", version=None, label=None, signature=""):
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label is not None:
        request.model_spec.version_label = label
    return request


def predict_request(inputs, outputs=(), **spec):
    request = with_spec(predict_pb2.PredictRequest(), **spec)
    for name, value in inputs.items():
        proto = value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
        request.inputs[name].CopyFrom(proto)
    request.output_filter.extend(outputs)
    return request


def http(server, path, body=None, context=None, headers=None, raw=False):
    """(status, text) of a GET, or of a POST of a body: bytes, or what becomes JSON. With `raw`
    (status, headers, bytes)."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    scheme = "http" if context is None else "https"
    url = f"{scheme}://localhost:{server.rest_port}{path}"
    try:
        request = urllib.request.Request(url, body, headers or {})
        with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:
            found = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        found = error.code, error.headers, error.read()
    return found if raw else (found[0], found[2].decode())


def rest(server, path, body=None):
    """(status, the JSON of the answer)."""
    status, text = http(server, path, body)
    return status, json.loads(text)


def wait_for(happened, seconds=SECONDS):
    """Looks until something has happened; fails if it does not in time."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)

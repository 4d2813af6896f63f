"""A Python gRPC server of one SavedModel, as the peer of ge-serve: PATH of the model, by name.

Prints its port. TensorFlow Serving's messages, `tf.saved_model.load`, a thread per core.
"""

import os
import sys
from concurrent import futures
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

import group_embedding  # noqa: F401  the ops of the model


class Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, path):
        self._model = tf.saved_model.load(path)
        self._serve = self._model.signatures["serving_default"]

    def Predict(self, request, context):
        inputs = {n: tf.constant(tf.make_ndarray(t)) for n, t in request.inputs.items()}
        answer = predict_pb2.PredictResponse()
        for name, value in self._serve(**inputs).items():
            answer.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
        return answer


def main():
    server = grpc.server(futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Predictions(sys.argv[1]), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()

"""Trained models go live: versions are published while a model is trained, and served."""

from group_embedding.serving.publish.callback import PublisherCallback
from group_embedding.serving.publish.hook import PublisherHook
from group_embedding.serving.publish.publisher import Publisher
from group_embedding.serving.session.request_tensors import Prediction
from group_embedding.serving.session.saved_models import export_to, local_model
from group_embedding.serving.session.session import InferenceSession
from group_embedding.serving.stores.open_target import open_target
from group_embedding.serving.stores.targets import TargetError

__all__ = [
    "InferenceSession",
    "Prediction",
    "Publisher",
    "PublisherCallback",
    "PublisherHook",
    "TargetError",
    "export_to",
    "local_model",
    "open_target",
]

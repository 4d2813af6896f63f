"""Trained models go live: versions are published while a model is trained, and served."""

from group_embedding.file_systems.saved_models import export_to, local_model
from group_embedding.serving.callback import PublisherCallback
from group_embedding.serving.hook import PublisherHook
from group_embedding.serving.open_target import open_target
from group_embedding.serving.publisher import Publisher
from group_embedding.serving.request_tensors import Prediction
from group_embedding.serving.session import InferenceSession
from group_embedding.serving.targets import TargetError

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

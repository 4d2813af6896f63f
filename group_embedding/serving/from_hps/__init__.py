"""Moving from HugeCTR's hierarchical parameter server (HPS): its configuration and its models."""

from group_embedding.serving.from_hps.config import HpsConfig, HpsModel, read_hps
from group_embedding.serving.from_hps.saved_models import write_saved_model

__all__ = ["HpsConfig", "HpsModel", "read_hps", "write_saved_model"]

"""Moving from HugeCTR's hierarchical parameter server (HPS): its configuration and its models."""

from group_embedding.compat.hps.command import add_from_hps
from group_embedding.compat.hps.config import HpsConfig, HpsModel, read_hps
from group_embedding.compat.hps.saved_models import write_saved_model

__all__ = ["HpsConfig", "HpsModel", "add_from_hps", "read_hps", "write_saved_model"]

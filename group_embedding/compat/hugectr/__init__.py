"""HugeCTR's JSON files: their networks as Keras models."""

from group_embedding.compat.hugectr.fields import Fields as Fields
from group_embedding.compat.hugectr.graph import Graph, read_graph
from group_embedding.compat.hugectr.graph import is_hugectr as is_hugectr
from group_embedding.compat.hugectr.network import Network
from group_embedding.compat.hugectr.run_config import columns_of as columns_of
from group_embedding.compat.hugectr.run_config import config_of_graph as config_of_graph

__all__ = ["Graph", "Network", "read_graph"]

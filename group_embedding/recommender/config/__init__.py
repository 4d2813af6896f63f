"""Config files: their keys, reading and checking them."""

from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.json_schema import json_schema
from group_embedding.recommender.config.read import Config, read_config

__all__ = ["Config", "ConfigError", "json_schema", "read_config"]

"""One thin module per native op, with its gradient."""

# For extensions. Modules that import TensorFlow are not imported here: where it is missing,
# `library` says so in a sentence.
from group_embedding.ops._library import core as core
from group_embedding.ops._library import library as library

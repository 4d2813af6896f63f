"""A SavedModel that answers requests, through `libge_serving`."""

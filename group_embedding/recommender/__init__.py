"""Recommender models: readers of data, a zoo of models, config files and their runs."""

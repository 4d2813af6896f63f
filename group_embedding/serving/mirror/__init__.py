"""A mirror: copies the versions of a source into a folder that servers follow."""

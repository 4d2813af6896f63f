"""The versions of a published model: their records and files, read, listed and written anew."""

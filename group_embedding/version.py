"""The version of the project. setup.py, the package and the documents read it here."""

VERSION = "0.1.0"

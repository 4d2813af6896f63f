"""`ge-serve`, started from Python: its arguments, the models that it fetches, mirrors beside it."""

from group_embedding.serving.server.process import PROGRAM, READY, ServerProcess, command, main

__all__ = ["PROGRAM", "READY", "ServerProcess", "command", "main"]

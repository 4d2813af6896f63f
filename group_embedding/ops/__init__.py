"""One thin module per native op, with its gradient."""

"""Publishers: versions of a model, written to a target while it is trained."""

"""DeepRec's names that stock TensorFlow lacks, as `group_embedding.deeprec` and `patch_tensorflow`
give them: `table.py` says where each is."""

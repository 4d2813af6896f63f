"""The names, models and files of other libraries: DeepRec, SOK, HugeCTR, TFRA, TorchRec, Keras."""

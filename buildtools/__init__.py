"""The build of the native libraries: what setup.py and `make wheel` share.

| file | its one job |
|---|---|
| `report.py` | how a build speaks: one line, or one sentence and the end |
| `versions.py` | which TensorFlow has wheels for which Python |
| `tensorflow.py` | flags and library of the TensorFlow to build for |
| `cuda.py` | the CUDA toolkit, and the GPU architectures to build for |
| `ninja_file.py` | the text of a build.ninja, and running it |
| `native.py` | the libraries: their sources, their flags, their record |
| `core.exports` | the names that the library of the core exports |
| `serving.py` | ge-serve, the server: in the package, and in a wheel |
| `wheel.py` | `make wheel`: the wheel of one Python, with a library for each TensorFlow minor |
| `try_wheel.py` | `make try-wheel`: programs run in fresh environments that have a wheel |
"""

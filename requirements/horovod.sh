#!/usr/bin/env bash
# Installs Horovod into the environment of the given Python, built against the TensorFlow there.
#   requirements/horovod.sh <python> <wheel folder>
# The build takes minutes, so the wheel is kept in the folder, under the TensorFlow and the Python it
# was built for. On a machine with a GPU and nvcc it is built with NCCL, elsewhere with Gloo alone.
set -euo pipefail
python=$1
wheels=$2
version=0.28.1
here=$(cd "$(dirname "$0")" && pwd)

if "$python" -c "import importlib.metadata as m; assert m.version('horovod') == '$version'" 2>/dev/null; then
  exit 0
fi

export TF_CPP_MIN_LOG_LEVEL=3
# The distribution's name counts: a Horovod with NCCL imports only beside the full TensorFlow wheel.
key=$("$python" - <<'PY'
import importlib.metadata as m, sys
name = "tensorflow-cpu" if any(d.name.replace("_", "-") == "tensorflow-cpu" for d in m.distributions()) else "tensorflow"
print(f"{name}-{m.version(name)}-cp{sys.version_info.major}{sys.version_info.minor}")
PY
)
minor=$(echo "$key" | sed -E 's/.*-2\.([0-9]+)\..*/\1/')
purelib=$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")

# build <wheel folder> [VARIABLE=value ...]
build() {
  local folder=$1
  shift
  if ! compgen -G "$folder/horovod-*.whl" >/dev/null; then
    echo "building Horovod $version for $key (2 to 4 minutes, log: $folder/build.log)"
    mkdir -p "$folder"
    env HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
      HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
      PATH="$(dirname "$python"):$PATH" "$@" \
      "$python" -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir "$folder" \
      "horovod==$version" >"$folder/build.log" 2>&1 || return 1
  fi
  "$python" -m pip install --quiet --force-reinstall --no-deps --no-index "$folder"/horovod-*.whl
  # What was linked may still miss a symbol of TensorFlow's, or a library.
  "$python" -c "import horovod.tensorflow" >>"$folder/build.log" 2>&1
}

settings=()
if [ "$minor" -ge 16 ]; then
  include=$("$python" -c "import tensorflow as tf; print(tf.sysconfig.get_include())")
  settings+=("CPLUS_INCLUDE_PATH=$here/horovod_shim:$include/external/highwayhash:$include/external/farmhash_archive/src")
fi

nccl="$purelib/nvidia/nccl"
if command -v nvcc >/dev/null && [ -d "$nccl" ]; then
  home=$(mktemp -d)
  trap 'rm -rf "$home"' EXIT
  ln -s "$nccl/include" "$home/include"
  mkdir "$home/lib"
  ln -s "$nccl"/lib/libnccl.so.2 "$home/lib/libnccl.so" # the wheel lacks the name that linkers look for
  cuda=${CUDA_HOME:-/usr/local/cuda}
  if build "$wheels/$key-nccl" "${settings[@]}" HOROVOD_GPU=CUDA "HOROVOD_CUDA_HOME=$cuda" \
    HOROVOD_GPU_OPERATIONS=NCCL "HOROVOD_NCCL_HOME=$home" HOROVOD_NCCL_LINK=SHARED \
    HOROVOD_BUILD_CUDA_CC_LIST=80,90 'LDFLAGS=-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib'; then
    exit 0
  fi
  echo "Horovod with NCCL did not build, or does not load (see $wheels/$key-nccl/build.log): it is" \
    "built with Gloo alone, which copies through host memory"
fi

if ! build "$wheels/$key-gloo" "${settings[@]}"; then
  tail -n 30 "$wheels/$key-gloo/build.log"
  echo "Horovod $version did not build for $key, see the log above and $wheels/$key-gloo/build.log"
  exit 1
fi

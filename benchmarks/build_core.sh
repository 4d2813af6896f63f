#!/bin/sh
# Builds the core alone into a folder, for a machine without TensorFlow:
#     benchmarks/build_core.sh FOLDER [PYTHON] [CUDA_ARCH]     (default: python3, sm_90)
# Needs pybind11, numpy, g++, and nvcc for CUDA.
set -eu
cd "$(dirname "$0")/.."
folder=$1 python=${2:-python3} arch=${3:-sm_90} sources=${SOURCES:-cc}
mkdir -p "$folder/objects"
includes="-I$sources -I$($python -c 'import pybind11; print(pybind11.get_include())') \
    -I$($python -c 'import sysconfig; print(sysconfig.get_path("include"))')"
flags="-std=c++17 -O3 -DNDEBUG -DGROUP_EMBEDDING_CUDA=1 $includes -Itests/cc"
find "$sources" tests/cc/python \( -name '*.cc' -o -name '*.cu' \) ! -path '*/tf/*' ! -path '*/serving/server/*' \
    ! -path '*/serving/c_api/*' ! -path '*/bindings/module.cc' | while read -r file; do
    object="$folder/objects/$(echo "$file" | tr / _).o"
    [ "$object" -nt "$file" ] || echo "nvcc -arch=$arch -fmad=false --expt-relaxed-constexpr --extended-lambda \
        -Xcompiler=-fPIC,-march=native,-fvisibility=hidden $flags -c $file -o $object"
done | tr '\n' '\0' | xargs -0 -r -P "$(nproc)" -n 1 sh -c
suffix=$($python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
g++ -shared -o "$folder/_core$suffix" "$folder"/objects/*.o \
    -L"$(dirname "$(readlink -f "$(command -v nvcc)")")/../lib64" -L/usr/local/cuda/lib64 \
    -lcudart_static -ldl -lrt -lpthread -Wl,-Bsymbolic -Wl,--exclude-libs,libcudart_static.a

#!/usr/bin/env bash
# Installs what ge-serve is built with, from Debian or Ubuntu. Without root it says the command.
set -euo pipefail
packages=(
  libnghttp2-dev                         # HTTP/2, for gRPC; the client of benchmarks/bench_serving.py
  protobuf-compiler libprotobuf-dev      # messages of TensorFlow Serving
  libboost1.81-dev libssl-dev zlib1g-dev # HTTP/1.1 (Boost.Beast) with TLS and gzip
  rapidjson-dev                          # JSON with NaN, which TensorFlow Serving allows
  libb64-0d                              # perf_analyzer, in the tests
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "group_embedding: ge-serve needs system libraries: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=30)
apt-get update "${options[@]}" && apt-get install "${options[@]}" -y --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "group_embedding: ge-serve was not built, as apt-get could not install ${missing[*]}" >&2
  exit 1
}

#!/usr/bin/env bash
# Installs what the tests' HDFS runs on: Java, from Debian or Ubuntu, and Hadoop's jars.
#   requirements/hdfs.sh <python>
# PyPI has the jars inside pyspark 3.0.0 (205 MB, downloaded once); 28 MB of them are kept, in
# the folder that tests/support/servers/hdfs_server.py names.
set -euo pipefail
python=$1
tests=$(dirname "$0")/../tests
jars=$(PYTHONPATH=$tests "$python" "$tests/support/servers/hdfs_server.py")
needed=(
  hadoop-common hadoop-hdfs hadoop-auth hadoop-annotations hadoop-mapreduce-client-core
  commons-cli commons-codec commons-collections commons-configuration commons-io commons-lang-
  commons-logging guava htrace-core jackson-core-asl jackson-mapper-asl jakarta.ws.rs-api
  javax.servlet-api jcl-over-slf4j jetty leveldbjni-all log4j netty-all protobuf-java slf4j-api
  slf4j-log4j12 xercesImpl
)

if ! command -v java >/dev/null; then
  options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=30)
  if [ "$(id -u)" -ne 0 ]; then
    echo "group_embedding: the tests of HDFS need Java: sudo apt-get install openjdk-17-jre-headless" >&2
    exit 1
  fi
  apt-get update "${options[@]}" &&
    apt-get install "${options[@]}" -y --no-install-recommends openjdk-17-jre-headless >/dev/null || {
    echo "group_embedding: tests of HDFS are left out, as apt-get could not install Java" >&2
    exit 1
  }
fi

[ -e "$jars/complete" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$work" pyspark==3.0.0 || {
  echo "group_embedding: tests of HDFS are left out, as pip could not download pyspark 3.0.0" >&2
  exit 1
}
mkdir -p "$jars"
patterns=("${needed[@]/#/pyspark-3.0.0/deps/jars/}")
patterns=("${patterns[@]/%/*.jar}")
tar -xzf "$work"/pyspark-3.0.0.tar.gz -C "$jars" --strip-components=3 --wildcards \
  "${patterns[@]}"
touch "$jars/complete"

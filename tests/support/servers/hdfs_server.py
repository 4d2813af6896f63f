"""A real HDFS on loopback for tests: a namenode and a datanode, of the jars that
requirements/hdfs.sh keeps."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

from support.servers.shared_server import ServerMissing, ending_with_parent

JARS = pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
    "group_embedding/hadoop-2.7.4",
)
START_SECONDS = 90

# Hadoop 2.7 is older than Java's modules, and reads fields of java.lang.
OPENED = ("java.lang", "java.net", "java.nio", "java.util")
JAVA = [
    *("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
]
NODE = "org.apache.hadoop.hdfs.server"


class HdfsServer:
    """One namenode with one datanode; `settings` has the `url` of its root.

    Args:
        folder: a path, for the server's blocks, names and logs.
    """

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._nodes = {}
        self.settings = {}

    def start(self):
        """Returns once files can be written.

        Raises:
            ServerMissing: Java or the jars are not installed.
        """
        if not shutil.which("java") or not (JARS / "complete").exists():
            raise ServerMissing("HDFS is missing: run requirements/hdfs.sh python")
        port = _free_port()
        self._write_configuration(port)
        self._run("namenode.NameNode", "format", "-format", "-nonInteractive").wait(START_SECONDS)
        self._nodes["namenode"] = self._run("namenode.NameNode", "namenode")
        self.start_datanode()
        self.settings = {"url": f"hdfs://127.0.0.1:{port}"}

    def start_datanode(self):
        """Returns once the datanode takes blocks."""
        before = self._count_reports()
        self._nodes["datanode"] = self._run("datanode.DataNode", "datanode")
        deadline = time.monotonic() + START_SECONDS
        while self._count_reports() == before:
            for name, node in self._nodes.items():
                if node.poll() is not None:
                    raise RuntimeError(f"the {name} of HDFS ended: see {self._folder}/{name}.log")
            if time.monotonic() > deadline:
                raise RuntimeError(f"HDFS did not start within {START_SECONDS} s: {self._folder}")
            time.sleep(0.1)

    def kill_datanode(self):
        """Kills the datanode at once, as kill -9 does."""
        self._nodes["datanode"].kill()
        self._nodes["datanode"].wait()

    def stop(self):
        for node in self._nodes.values():
            node.kill()
            node.wait()

    def _count_reports(self):
        """How often a datanode has told the namenode all its blocks."""
        log = self._folder / "namenode.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        return said.count("BLOCK* processReport")

    def _run(self, program, name, *arguments):
        classes = f"{self._folder}/conf:{JARS}/*"
        folder = f"-Djava.io.tmpdir={self._folder}"  # of what Jetty unpacks
        command = [*JAVA, folder, "-cp", classes, f"{NODE}.{program}", *arguments]
        with open(self._folder / f"{name}.log", "a") as log:
            return subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log)

    def _write_configuration(self, port):
        conf = self._folder / "conf"
        for webapp in ("hdfs", "datanode"):  # pages that are not in the jars
            (conf / "webapps" / webapp).mkdir(parents=True, exist_ok=True)
        loopback = "127.0.0.1:0"
        _write_xml(conf / "core-site.xml", {"fs.defaultFS": f"hdfs://127.0.0.1:{port}"})
        _write_xml(
            conf / "hdfs-site.xml",
            {
                "dfs.namenode.name.dir": f"file://{self._folder}/names",
                "dfs.datanode.data.dir": f"file://{self._folder}/blocks",
                "dfs.namenode.http-address": loopback,
                "dfs.namenode.secondary.http-address": loopback,
                "dfs.datanode.address": loopback,
                "dfs.datanode.http.address": loopback,
                "dfs.datanode.ipc.address": loopback,
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
                "dfs.webhdfs.enabled": "false",
                "dfs.namenode.safemode.extension": "0",
                "dfs.heartbeat.interval": "1",
                "dfs.namenode.heartbeat.recheck-interval": "1000",
                "dfs.namenode.edits.noeditlogchannelflush": "true",
            },
        )
        (conf / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,file\n"
            "log4j.appender.file=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.file.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n\n"
        )


def _write_xml(path, values):
    items = (
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    path.write_text(f"<configuration>{''.join(items)}</configuration>\n")


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    print(JARS)

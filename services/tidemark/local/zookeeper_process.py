# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper for laptops and tests: one server process on loopback, out of the jars that come inside PySpark."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidemark.local.certificates import Authority
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ChildProcess
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import TlsFiles

JUTE_MAXBUFFER_BYTES: Final = 8 << 20
"""Largest request and answer, as on every ZooKeeper of a Tidemark cluster (docs/formats.md)."""

CLASS_ARCHIVE: Final = Path(sys.prefix) / "zookeeper-classes.jsa"
"""ZooKeeper's classes as Java maps them (class data sharing, JEP 350): parsing them is half of the start's time.

The set-up of a checkout writes the archive: python -m tidemark.local.zookeeper_process. Java ignores an archive of
another Java or of other jars, so a missing or old archive does no harm.
"""

_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JARS: Final = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "commons-*", "metrics-core-*", "snappy-java-*")
"""The jars of PySpark that the server needs; naming them all makes Java open some 300 files at start."""

_START_TIMEOUT_S: Final = 60.0
"""Time limit of the start: on a twentieth of a core a start takes 40 s with TLS."""
_STOP_TIMEOUT_S: Final = 10.0
_WRITE_TIMEOUT_S: Final = 60.0
"""Java writes the class archive while it ends: in a few seconds, on an idle machine."""
_POLL_INTERVAL_S: Final = 0.02

# minSessionTimeout below the usual two ticks: tests expire sessions quickly.
_CONFIG: Final = """\
dataDir={data}
tickTime=500
minSessionTimeout=500
maxSessionTimeout=120000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok
autopurge.purgeInterval=1
"""

_PLAIN: Final = """\
clientPort={port}
clientPortAddress={host}
"""

# Netty is ZooKeeper's only server with TLS. x509 refuses sessions without a certificate of the authority.
_TLS: Final = """\
secureClientPort={port}
secureClientPortAddress={host}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
ssl.protocol=TLSv1.3
ssl.enabledProtocols=TLSv1.3,TLSv1.2
ssl.clientAuth=need
ssl.keyStore.location={pem}
ssl.keyStore.type=PEM
ssl.trustStore.location={ca}
ssl.trustStore.type=PEM
client.certReload=true
"""

_ENFORCED: Final = """\
enforce.auth.enabled=true
enforce.auth.schemes=x509
"""

_LOG_CONFIG: Final = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p %c{{1}} %m%n
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


class ZooKeeperProcess(ChildProcess):
    """One ZooKeeper server. The data stays in `directory`, and a later start uses it.

    Args:
        directory: for data, configuration and logs; made where missing.
        port: port of the server; None: a free port, kept as long as this object exists.
        java_options: more options of Java.
        tls: files of `Authority.issue_zookeeper`: connections use TLS, and sessions need a certificate of the same
            authority.
        plain_port: a second port, without TLS.
        enforced: with `tls`, refuse sessions without a certificate.

    The process is killed when this process ends.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        java_options: Sequence[str] = (),
        tls: TlsFiles | None = None,
        plain_port: int | None = None,
        enforced: bool = True,
    ) -> None:
        self._directory = directory.absolute()
        super().__init__("zookeeper", (), {}, self._directory)
        self._java_options = java_options
        self._tls = tls
        self._plain_port = plain_port
        self._enforced = enforced
        self.port: Final = port or self._held_port()
        """Port at which the server listens."""

    @property
    def connect(self) -> str:
        """The value of `zookeeper.connect` for this server."""
        return f"{HOST}:{self.port}"

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start ZooKeeper and wait until the server answers requests.

        Raises:
            TidemarkError: COORDINATION_UNAVAILABLE when Java or PySpark is missing, or the server does not answer in
                time.
        """
        assert not self.running, "running already"
        self._command = [*java_command(self._directory, self._java_options), _MAIN, str(self._directory / "zoo.cfg")]
        try:
            self._launch()
            self._wait_until_serving(time.monotonic() + timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL after `timeout_s`. Idempotent."""
        self.signal(signal.SIGTERM)
        self.wait(timeout_s)
        self.kill()

    def __enter__(self) -> ZooKeeperProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _held_port(self) -> int:
        held = HeldPorts()
        weakref.finalize(self, held.release)
        port = held.take(self.name)
        held.hand_over()
        return port

    def _launch(self) -> None:
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = _CONFIG.format(data=data)
        if self._tls is None:
            config += _PLAIN.format(port=self.port, host=HOST)
        else:
            pem = Path(self._tls.certificate).with_suffix(".pem")
            config += _TLS.format(port=self.port, host=HOST, pem=pem, ca=self._tls.ca)
            config += _ENFORCED if self._enforced else ""
            config += "" if self._plain_port is None else _PLAIN.format(port=self._plain_port, host=HOST)
        (self._directory / "zoo.cfg").write_bytes(_properties(config))
        log_config = self._directory / "log4j2.properties"
        log_config.write_bytes(_properties(_LOG_CONFIG.format(log=self._directory / "zookeeper.log")))
        with (self._directory / "console.log").open("wb") as console:
            self._run(console)

    def _wait_until_serving(self, deadline_s: float) -> None:
        while not _serves(self.port, self._tls):
            if not self.running:
                raise self._not_up(f"ended with status {self.exit_status}")
            if time.monotonic() >= deadline_s:
                raise self._not_up("did not serve in time")
            time.sleep(_POLL_INTERVAL_S)

    def _not_up(self, what: str) -> TidemarkError:
        return TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE,
            f"the local ZooKeeper {what}; see {self._directory / 'zookeeper.log'} and console.log in its directory; "
            f"the last line there: {_last_line(self._directory) or 'none'}",
        )


def _properties(text: str) -> bytes:
    """A properties file. Java reads it as Latin-1, so letters of other languages, as in a path, are escapes."""
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text).encode("ascii")


def _last_line(directory: Path) -> str:
    for path in (directory / "zookeeper.log", directory / "console.log"):
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        for line in reversed(lines):
            if line.strip():
                return line.strip()
    return ""


def _shared_classes() -> list[str]:
    if not CLASS_ARCHIVE.exists():
        return []
    return [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def java_command(directory: Path, more: Sequence[str] = ()) -> list[str]:
    """Java with the options and the class path of ZooKeeper; the main class and its arguments follow."""
    options = [
        *_shared_classes(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-XX:-UsePerfData",
        f"-Djute.maxbuffer={JUTE_MAXBUFFER_BYTES}",
        # A laptop or a test loses only the process, and the page cache outlives the process.
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.preAllocSize=4096",
        # One thread reads and writes all connections: with more, each request changes threads twice more.
        "-Dzookeeper.nio.numSelectorThreads=1",
        "-Dzookeeper.nio.numWorkerThreads=0",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
        "-Djava.awt.headless=true",
        *more,
    ]
    return [_java(), *options, "-cp", _class_path()]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE,
            "Java is missing, which the local ZooKeeper needs: install a JDK >= 17, "
            "e.g. `apt install openjdk-17-jre-headless` or `brew install openjdk@17`, or set JAVA_HOME",
        )
    return found


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE,
            "PySpark is missing, whose jars hold the local ZooKeeper: `pip install 'tidemark[dev]'`",
        )
    jars = Path(spec.origin).parent / "jars"
    if not jars.is_dir() and "SPARK_HOME" in os.environ:  # under spark-submit the package comes out of a zip file
        jars = Path(os.environ["SPARK_HOME"]) / "jars"
    found = sorted(path for pattern in _JARS for path in jars.glob(f"{pattern}.jar"))
    if not any(path.name.startswith("zookeeper-") for path in found):
        raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, f"there is no ZooKeeper among the jars in {jars}")
    return os.pathsep.join(str(path) for path in found)


def _serves(port: int, tls: TlsFiles | None) -> bool:
    """Whether the server answers `srvr` with a mode, which a server that has just started does not yet have."""
    try:
        with _connected(port, tls) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return False
    return b"Mode:" in answer


def _connected(port: int, tls: TlsFiles | None) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=1.0)
    if tls is None:
        return connection
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(tls.certificate, tls.key)
    with connection:  # the connection is closed, unless TLS takes it over
        return context.wrap_socket(connection, server_hostname=HOST)


def write_archive(archive: Path = CLASS_ARCHIVE) -> None:
    """Start a ZooKeeper with TLS, stop it, and keep the classes that it has loaded; a ZooKeeper without TLS uses the
    classes, too.

    Raises:
        TidemarkError: COORDINATION_UNAVAILABLE when Java or PySpark is missing.
    """
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tls = Authority.create(directory / "certs", "local").issue_zookeeper("1", (HOST,))
        server = ZooKeeperProcess(directory, java_options=[f"-XX:ArchiveClassesAtExit={archive}"], tls=tls)
        server.start()
        server.stop(_WRITE_TIMEOUT_S)


if __name__ == "__main__":
    write_archive()
    sys.stdout.write(f"{CLASS_ARCHIVE}: {CLASS_ARCHIVE.stat().st_size} bytes\n")

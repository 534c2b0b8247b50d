"""A PostgreSQL server of the tests: Debian's package, in a temporary folder, without a port."""

from __future__ import annotations

import getpass
import glob
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile

BINARIES = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))


def is_installed() -> bool:
    """Whether there is a server, and a user who may run it."""
    if not BINARIES:
        return False
    return os.getuid() != 0 or any(user.pw_name == "postgres" for user in pwd.getpwall())


class PostgreSQLServer:
    """A server that runs from its construction on. Everybody of this machine may connect as `tester`; `locked` needs
    the password `s3cret/pass@word`.
    """

    password = "s3cret/pass@word"

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="stoker-pg-", dir="/tmp")
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
        self._run(
            "initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "tester", "-N", "-E", "UTF8", "--no-locale"
        )
        with open(f"{self.folder}/data/pg_hba.conf", "r+") as file:
            rules = file.read()
            file.seek(0)
            file.write("local all locked scram-sha-256\n" + rules)
        self.start()

    def start(self) -> None:
        options = (
            f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c autovacuum=off "
            "-c max_connections=50 -c shared_buffers=16MB"
        )
        self._run("pg_ctl", "start", "-w", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", f"{self.folder}/data")

    def remove(self) -> None:
        if os.path.exists(f"{self.folder}/data/postmaster.pid"):
            self.stop()
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        return f"postgresql://tester@/postgres?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = shlex.join([os.path.join(os.path.dirname(BINARIES[-1]), program), *arguments])
        if os.getuid() == 0 and getpass.getuser() != "postgres":
            words = ["su", "postgres", "-c", command]
        else:
            words = shlex.split(command)
        unmarked = {name: value for name, value in os.environ.items() if name != "STOKER_TESTS"}
        with open(f"{self.folder}/{program}.log", "ab") as log:  # no pipe: the server would hold it open
            done = subprocess.run(words, cwd="/", env=unmarked, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode:
            with open(log.name) as file:
                raise RuntimeError(f"{command} failed with status {done.returncode}: {file.read()}")

"""A Slurm of the test's own: Debian's munged, slurmctld and two slurmd on this machine, below one folder.

Keys, sockets, ports, state and spool are private, so that it stands beside whatever Slurm the machine has.  The nodes `n1`
and `n2` have two fake GPUs between them, which are character nodes (gres.conf).  Everything is stopped by process id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import tools
from ports import free_ports
from processes import ancestors, descendants, has_ended, name_of

NODES = ("n1", "n2")
PATIENCE = 60.0
"""Seconds that a daemon may take to do what it was asked."""

RUNC_OCI_CONF = """\
RunTimeQuery="runc --rootless=false --root={root} state %n.%u.%j.%s.%t"
RunTimeRun="runc --rootless=false --root={root} run %n.%u.%j.%s.%t -b %b"
RunTimeKill="runc --rootless=false --root={root} kill -a %n.%u.%j.%s.%t"
RunTimeDelete="runc --rootless=false --root={root} delete --force %n.%u.%j.%s.%t"
"""
"""oci.conf for runc (Slurm's containers page, `RunTimeRun`)."""


class RealSlurm:
    """A cluster of two nodes with two processors each.  `oci` writes an oci.conf for runc."""

    def __init__(self, folder: Path, *, oci: bool = True) -> None:
        self.folder = folder
        self.oci = oci
        self.conf = folder / "slurm.conf"
        self.devices = folder / "dev"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find this cluster and no other."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
        }
        return {**kept, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> RealSlurm:
        tools.root()
        for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "runc"):
            tools.program(name)
        try:
            self._write()
            self._start_munge()
            self._start("slurmctld", [tools.program("slurmctld"), "-D", "-i", "-f", str(self.conf)])
            for node in NODES:
                self.start_node(node)
            self._await(lambda: all(self.node_state(node) == "IDLE" for node in NODES), "the nodes do not become idle")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, AssertionError, subprocess.TimeoutExpired):
            self.command("scancel", "--signal=KILL", "--user=root")
            self._await(lambda: not self._steps(), "steps outlive the cluster")
        for name in reversed(list(self._daemons)):
            self.stop_daemon(name)
        for pid in self._steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _write(self) -> None:
        folder, ports = self.folder, free_ports(3)
        for name in ("munge", "state", "spool-n1", "spool-n2", "log", "runc"):
            (folder / name).mkdir(mode=0o755)
        self.devices.mkdir()
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            # The same device as /dev/null: something to count, and to look for in a container.
            os.mknod(self.devices / name, 0o020666, os.makedev(1, 3))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=2"
            " RealMemory=1000 Gres=gpu:fake:1 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        self.conf.write_text(
            f"""\
ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,default_queue_depth=100
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout=60
KillWait=2
CompleteWait=0
InactiveLimit=0
MinJobAge=300
Waittime=0
MaxArraySize=1001
SlurmdDebug=info
{nodes}
PartitionName=test Nodes={",".join(NODES)} Default=YES MaxTime=60 State=UP
"""
        )
        lines = (f"NodeName={node} Name=gpu Type=fake File={self.devices}/nvidia{n}\n" for n, node in enumerate(NODES))
        (folder / "gres.conf").write_text("".join(lines))
        if self.oci:
            (folder / "oci.conf").write_text(RUNC_OCI_CONF.format(root=folder / "runc"))

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        socket_path = folder / "socket"
        # --force: below a folder of a test the parents' permissions are not what munged asks of /run.
        command = [tools.program("munged"), "--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}"]
        command += [f"--log-file={folder}/log", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed"]
        self._start("munged", command)
        self._await(socket_path.exists, "munged does not listen")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        self._start(node, [tools.program("slurmd"), "-D", "-N", node, "-f", str(self.conf)])

    def stop_daemon(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._daemons.pop(name, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)

    def lose(self, node: str) -> None:
        """The node goes away with everything on it, as at a power cut, and the controller learns of it."""
        self.stop_daemon(node, signal.SIGKILL)
        found = self._steps(node)
        # the managers of steps first, or they tell the controller of the others' end
        managers = {parent for pid in found for parent in ancestors(pid) if name_of(parent).startswith("slurmstepd")}
        killed = (*managers, *(child for one in (*managers, *found) for child in descendants(one)), *found)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # until then they may remove what is removed below
        self._await(lambda: all(map(has_ended, killed)), f"processes of {node} outlive SIGKILL")
        shutil.rmtree(self.folder / f"spool-{node}")
        (self.folder / f"spool-{node}").mkdir()
        # what a runtime keeps below /run does not outlive a machine either
        runc = [tools.program("runc"), f"--root={self.folder / 'runc'}"]
        held = subprocess.run([*runc, "list", "--quiet"], capture_output=True, text=True, check=True).stdout.split()
        for name in held:
            if name.startswith(f"{node}."):
                subprocess.run([*runc, "delete", "--force", name], capture_output=True, check=False)
        self.control("update", f"nodename={node}", "state=down", "reason=lost")

    def bring_back(self, node: str) -> None:
        self.start_node(node)
        self.control("update", f"nodename={node}", "state=resume")
        self._await(lambda: self.node_state(node) == "IDLE", f"{node} does not come back")

    def _steps(self, node: str = "") -> list[int]:
        """Process ids of what this cluster's nodes started: their environment names its slurm.conf and the node."""
        conf, place = f"SLURM_CONF={self.conf}".encode(), f"SLURMD_NODENAME={node}".encode()
        out = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                if conf in words and any(word.startswith(place) for word in words):
                    out.append(int(entry.name))
        return out

    def command(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [tools.program(words[0]), *words[1:]],
            capture_output=True, text=True, check=False, timeout=PATIENCE, env=self.environment,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stderr}\n{self.log()}"
        return done.stdout

    def control(self, *words: str) -> str:
        return self.command("scontrol", *words)

    def node_state(self, node: str) -> str:
        return (
            self.command("sinfo", "--noheader", "-N", "-n", node, "-o", "%T", check=False).strip().upper().rstrip("*")
        )

    def _await(self, holds: object, what: str) -> None:
        assert callable(holds)
        end = time.monotonic() + PATIENCE
        while not holds():
            for name, process in self._daemons.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}\n{self.log()}"
            assert time.monotonic() < end, f"{what}\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        """The ends of all logs."""
        texts = []
        for path in sorted((self.folder / "log").glob("*")):
            texts.append(f"== {path.name}\n" + path.read_text(errors="replace")[-2000:])
        return "\n".join(texts)

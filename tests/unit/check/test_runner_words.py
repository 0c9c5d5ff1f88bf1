"""What runners ask engines and runtimes for: pure documents and command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.check.runner import Devices, Job, Mount
from imagebuild.check.runners import devices as device_nodes
from imagebuild.check.runners import docker, libraries, podman
from imagebuild.check.runners.bundle import CAPABILITIES, Machine, User, bundle_config, user_of
from imagebuild.check.runners.devices import Node, cdi_names, check_devices, groups_of, has_cdi, machine_nodes
from imagebuild.check.runners.libraries import INSIDE, driver_libraries, linker_folders, named_folders
from imagebuild.errors import InputError
from imagebuild.oci.documents import ImageConfig
from imagebuild.oci.platform import Platform

JOB = Job(("python3", "-c", "1"), 60, {"A": "1", "B": ""}, ("GONE",), mounts=(Mount(Path("/m"), "/in", False),))
NVIDIA, AMD = Devices("nvidia"), Devices("amd")


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev whose nodes are files: number and owner follow from the name."""
    names = ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "kfd", "null"]
    for name in [*names, "dri/renderD128", "dri/renderD129", "dri/card0"]:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).write_text("")

    def node(path: Path) -> Node | None:
        gid = 110 if "renderD" in path.name else (44 if path.name == "kfd" else 0)
        return Node(str(path), False, 195, len(path.name), 0o660, 0, gid) if path.is_file() else None

    monkeypatch.setattr(device_nodes, "node_at", node)
    return tmp_path / "dev"


def names(nodes: list[Node]) -> list[str]:
    return [node.path.partition("/dev/")[2] for node in nodes]


def test_nodes_of_nvidia(dev: Path) -> None:
    shared = ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"]
    assert names(machine_nodes(NVIDIA, dev)) == ["nvidia0", "nvidia1", "nvidia10", *shared]
    assert names(machine_nodes(Devices("nvidia", 2), dev)) == ["nvidia0", "nvidia1", *shared]
    (dev / "nvidia0").unlink()
    (dev / "nvidia1").unlink()
    (dev / "nvidia10").unlink()
    assert machine_nodes(NVIDIA, dev) == []


def test_nodes_of_amd(dev: Path) -> None:
    assert names(machine_nodes(AMD, dev)) == ["kfd", "dri/renderD128", "dri/renderD129"]
    assert names(machine_nodes(Devices("amd", 1), dev)) == ["kfd", "dri/renderD128"]
    assert groups_of(machine_nodes(AMD, dev)) == [44, 110]
    (dev / "kfd").unlink()
    assert machine_nodes(AMD, dev) == []


def test_a_machine_without_accelerators_has_no_nodes(tmp_path: Path) -> None:
    assert machine_nodes(NVIDIA, tmp_path / "nowhere") == []
    assert machine_nodes(AMD, tmp_path / "nowhere") == []


def test_a_file_is_no_device_node(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").write_text("")
    assert device_nodes.node_at(tmp_path / "nvidia0") is None
    found = device_nodes.node_at(Path("/dev/null"))
    assert found is not None
    assert (found.major, found.minor, found.block) == (1, 3, False)


@pytest.mark.parametrize("wrong", [Devices("intel"), Devices("nvidia", 0)])
def test_devices_that_nobody_knows_are_refused(wrong: Devices) -> None:
    with pytest.raises(InputError, match=r"check\.bad-job"):
        check_devices(wrong)


def test_cdi(tmp_path: Path) -> None:
    assert cdi_names(NVIDIA) == ["nvidia.com/gpu=all"]
    assert cdi_names(Devices("nvidia", 2)) == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert not has_cdi("nvidia", [str(tmp_path)])
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert has_cdi("nvidia", [str(tmp_path / "nowhere"), str(tmp_path)])
    assert not has_cdi("amd", [str(tmp_path)])


# docker


def test_a_container_of_docker() -> None:
    config = docker.container_config("sha256:1", JOB, limits={"nofile": (5, 6)})
    assert config["Entrypoint"] == ["python3", "-c", "1"]
    assert config["Env"] == ["A=1", "B=", "IMAGEBUILD_IN=/imagebuild/in", "IMAGEBUILD_OUT=/imagebuild/out", "GONE"]
    host = config["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ShmSize"] == 1 << 30
    assert host["Binds"] == ["/m:/in:rw"]
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 5, "Hard": 6}]
    assert not {"DeviceRequests", "Devices", "Privileged"} & set(host)
    assert set(config["Labels"]) == {"io.github.imagebuild.check.owner", "io.github.imagebuild.check.until"}


def test_devices_of_docker(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = machine_nodes(AMD, dev)
    monkeypatch.setattr(docker, "machine_nodes", lambda devices: nodes)
    assert docker.device_config(Devices("nvidia", 2)) == {
        "DeviceRequests": [{"Driver": "", "Count": 2, "Capabilities": [["gpu"]]}]
    }
    assert docker.device_config(NVIDIA)["DeviceRequests"][0]["Count"] == -1
    assert docker.device_config(NVIDIA, cdi=True) == {
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]
    }
    amd = docker.device_config(AMD)
    assert [item["PathOnHost"] for item in amd["Devices"]] == [node.path for node in nodes]
    assert amd["GroupAdd"] == ["44", "110"]
    monkeypatch.setattr(docker, "machine_nodes", lambda devices: [])
    # an engine elsewhere has what we do not see
    assert [item["PathOnHost"] for item in docker.device_config(AMD)["Devices"]] == ["/dev/kfd", "/dev/dri"]


@pytest.mark.parametrize(
    ("info", "cdi"),
    [
        ({}, False),
        ({"CDISpecDirs": ["/nowhere"]}, False),
        ({"CDISpecDirs": ["/nowhere"], "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        (
            {
                "CDISpecDirs": ["/nowhere"],
                "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
                "Runtimes": {"nvidia": {}},
            },
            False,
        ),
        ({"CDISpecDirs": ["/nowhere"], "DiscoveredDevices": [{"ID": "amd.com/gpu=0"}]}, False),
    ],
)
def test_docker_is_asked_by_cdi_where_it_knows_nothing_else(info: dict[str, object], cdi: bool) -> None:
    assert docker.wants_cdi(info, NVIDIA) is cdi


# podman


def after(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_a_container_of_podman() -> None:
    words = podman.create_words(JOB, rootless=False, limits={"nofile": (5, 6)})
    assert after(words, "--env") == ["A=1", "B=", "IMAGEBUILD_IN=/imagebuild/in", "IMAGEBUILD_OUT=/imagebuild/out"]
    assert after(words, "--unsetenv") == ["GONE"]
    assert after(words, "--network") == ["none"]
    assert after(words, "--volume") == ["/m:/in:rw"]
    assert after(words, "--ulimit") == ["nofile=5:6"]
    assert after(words, "--shm-size") == [f"{1 << 30}b"]
    assert after(words, "--pull") == ["never"]
    assert "--http-proxy=false" in words
    assert "--device" not in words
    assert after(podman.create_words(Job(("x",), 1, network=True), rootless=False), "--network") == ["host"]


def test_devices_of_podman(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = machine_nodes(AMD, dev)
    monkeypatch.setattr(podman, "machine_nodes", lambda devices: nodes)
    nvidia = podman.create_words(Job(("x",), 1, devices=Devices("nvidia", 2)), rootless=True, limits={})
    assert after(nvidia, "--device") == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    amd = Job(("x",), 1, devices=AMD)
    assert after(podman.create_words(amd, rootless=False, limits={}), "--device") == [node.path for node in nodes]
    assert after(podman.create_words(amd, rootless=False, limits={}), "--group-add") == ["44", "110"]
    # a user's own groups have no numbers in his namespace, but he can keep them
    assert after(podman.create_words(amd, rootless=True, limits={}), "--group-add") == ["keep-groups"]


# oci


def image_config(**section: object) -> ImageConfig:
    return ImageConfig(b"", {"config": section}, Platform("linux", "amd64"), ())


def bundle(job: Job, machine: Machine, user: User | None = None, **section: object) -> dict[str, object]:
    return bundle_config(job, image_config(**section), user or User(), Path("/g"), Path("/l"), machine)


def test_a_bundle() -> None:
    config = bundle(JOB, Machine(limits={"nofile": (5, -1)}), Env=["B=image", "C=3", "GONE=x"], WorkingDir="/w")
    process = config["process"]
    assert isinstance(process, dict)
    assert process["args"] == ["python3", "-c", "1"]
    assert process["cwd"] == "/w"
    assert process["env"] == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "B=",
        "C=3",
        "A=1",
        "IMAGEBUILD_IN=/imagebuild/in",
        "IMAGEBUILD_OUT=/imagebuild/out",
    ]
    assert process["rlimits"] == [{"type": "RLIMIT_NOFILE", "soft": 5, "hard": (1 << 64) - 1}]
    mounts = {mount["destination"]: mount for mount in config["mounts"]}  # type: ignore[attr-defined]
    assert mounts["/imagebuild/in"]["options"][-1] == "ro"
    assert mounts["/imagebuild/out"]["source"] == "/l"
    assert mounts["/in"]["options"][-1] == "rw"
    assert f"size={1 << 30}" in mounts["/dev/shm"]["options"]
    assert config["root"] == {"path": "rootfs", "readonly": False}


def kinds(config: dict[str, object]) -> set[str]:
    return {space["type"] for space in config["linux"]["namespaces"]}  # type: ignore[index]


def test_only_a_job_that_asks_is_on_the_machines_network() -> None:
    assert "network" in kinds(bundle(Job(("x",), 1), Machine()))
    assert "network" not in kinds(bundle(Job(("x",), 1, network=True), Machine()))


def test_a_bundle_has_no_capability_that_we_lack() -> None:
    held = bundle(JOB, Machine(capabilities=0b1001))["process"]["capabilities"]  # type: ignore[index]
    assert held == {name: ["CAP_CHOWN", "CAP_FOWNER"] for name in ("bounding", "effective", "permitted")}
    held = bundle(JOB, Machine(), User(1000, 1000, "/h"))["process"]["capabilities"]  # type: ignore[index]
    assert held["effective"] == held["permitted"] == []
    assert {"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_NET_RAW"}.isdisjoint(CAPABILITIES)


def test_devices_and_libraries_are_bound_into_a_bundle() -> None:
    nodes = (Node("/dev/kfd", False, 511, 0, 0o660, 0, 44), Node("/dev/dri/renderD128", False, 226, 128, 0o660, 0, 110))
    found = {"libcuda.so.1": Path("/drv/libcuda.so.580")}
    config = bundle(JOB, Machine(nodes=nodes, libraries=found, programs={"nvidia-smi": Path("/u/smi")}))
    mounts = {mount["destination"]: mount["source"] for mount in config["mounts"]}  # type: ignore[attr-defined]
    assert mounts["/dev/kfd"] == "/dev/kfd"
    assert mounts[f"{INSIDE}/libcuda.so.1"] == "/drv/libcuda.so.580"
    assert mounts["/usr/bin/nvidia-smi"] == "/u/smi"
    assert config["process"]["user"]["additionalGids"] == [44, 110]  # type: ignore[index]
    assert f"LD_LIBRARY_PATH={INSIDE}" in config["process"]["env"]  # type: ignore[index]
    rules = config["linux"]["resources"]["devices"]  # type: ignore[index]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert rules[1:] == [
        {"allow": True, "type": "c", "major": 511, "minor": 0, "access": "rw"},
        {"allow": True, "type": "c", "major": 226, "minor": 128, "access": "rw"},
    ]


def test_the_images_own_library_path_comes_first() -> None:
    machine = Machine(libraries={"libcuda.so.1": Path("/x")})
    own = bundle(JOB, machine, Env=["LD_LIBRARY_PATH=/a:/b"])["process"]["env"]  # type: ignore[index]
    assert f"LD_LIBRARY_PATH=/a:/b:{INSIDE}" in own
    own = bundle(JOB, machine, Env=[f"LD_LIBRARY_PATH={INSIDE}:/b"])["process"]["env"]  # type: ignore[index]
    assert f"LD_LIBRARY_PATH={INSIDE}:/b" in own


def test_a_bundle_in_a_user_namespace_asks_for_no_group_and_no_sysfs_of_the_machine() -> None:
    config = bundle(
        Job(("x",), 1, network=True, devices=AMD),
        Machine(in_user=True, nodes=[Node("/dev/kfd", False, 1, 1, 0, 0, 44)]),
    )
    assert "additionalGids" not in config["process"]["user"]  # type: ignore[index]
    mounts = {mount["destination"]: mount for mount in config["mounts"]}  # type: ignore[attr-defined]
    assert mounts["/sys"]["type"] == "bind"
    assert "gid=5" not in mounts["/dev/pts"]["options"]


@pytest.mark.parametrize(
    ("said", "user"),
    [
        (None, User(0, 0, "/root")),
        ("", User(0, 0, "/root")),
        ("dyn", User(1000, 1001, "/srv/dyn")),
        ("1000", User(1000, 1001, "/srv/dyn")),
        ("dyn:video", User(1000, 44, "/srv/dyn")),
        ("77:88", User(77, 88, "/")),
        ("77", User(77, 0, "/")),
    ],
)
def test_who_the_image_runs_as(tmp_path: Path, said: str | None, user: User) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbroken\ndyn:x:1000:1001::/srv/dyn:/bin/sh\n")
    (tmp_path / "etc/group").write_text("video:x:44:\n")
    assert user_of({"User": said} if said is not None else {}, tmp_path) == user


def test_a_user_that_the_image_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"check\.no-such-user"):
        user_of({"User": "nobody-here"}, tmp_path)
    with pytest.raises(InputError, match=r"check\.no-such-user"):
        user_of({"User": "0:nobody-here"}, tmp_path)


def test_accounts_are_never_those_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "passwd").write_text("mine:x:5:5::/:/bin/sh\n")
    (tmp_path / "root/etc/passwd").symlink_to(tmp_path / "passwd")
    with pytest.raises(InputError, match=r"check\.no-such-user"):
        user_of({"User": "mine"}, tmp_path / "root")


# driver libraries


def test_driver_libraries_come_from_the_first_folder_that_has_the_driver(tmp_path: Path) -> None:
    for name in ("named", "known"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libcuda.so.580.1").write_text(name)
        (tmp_path / name / "libcuda.so.1").symlink_to("libcuda.so.580.1")
        for other in ("libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libcudart.so.13", "libc.so.6"):
            (tmp_path / name / other).write_text("")
    listed = f"2 libs found\n\tlibcuda.so.1 (libc6,x86-64) => {tmp_path}/known/libcuda.so.1\n"
    found = driver_libraries([tmp_path / "empty", tmp_path / "named"], listed)
    assert list(found) == ["libcuda.so.1", "libcuda.so.580.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"]
    assert found["libcuda.so.1"] == tmp_path / "named" / "libcuda.so.580.1"
    assert driver_libraries([], listed)["libcuda.so.1"] == tmp_path / "known" / "libcuda.so.580.1"
    assert linker_folders(listed) == [tmp_path / "known"]


def test_no_driver_no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDERS", ())
    assert driver_libraries([], "\tlibc.so.6 (libc6) => /lib/libc.so.6\n") == {}


def test_folders_of_libraries_are_named_by_site_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBUILD_DRIVER_LIBRARIES", "/b:relative:/c")
    assert named_folders({"IMAGEBUILD_DRIVER_LIBRARIES": "/a"}) == (Path("/a"), Path("/b"), Path("/c"))

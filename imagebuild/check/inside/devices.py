"""What accelerators this container sees, each question with a deadline of its own: a driver that hangs is told as such.

`devices.py cuda` is the process that calls the driver's libraries, since a call into a driver may never return.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import json
import os
import resource
import shutil
import subprocess
import sys
from typing import Any

VENDORS = {"nvidia": "0x10de", "amd": "0x1002"}
ACCELERATORS = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of display controllers and processing accelerators, by their first digits."""
LIMIT = 8000


def text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 16).strip()
    except OSError:
        return None


def pci_devices(root: str, vendor: str) -> list[dict[str, Any]]:
    out = []
    for folder in sorted(glob.glob(root + "/sys/bus/pci/devices/*")):
        kind = text_of(folder + "/class") or ""
        if text_of(folder + "/vendor") == VENDORS[vendor] and kind.startswith(ACCELERATORS):
            out.append({"address": os.path.basename(folder), "device": text_of(folder + "/device"), "class": kind})
    return out


def opened(path: str) -> str:
    """`open`, or the name of the error."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "open"


def run(command: list[str], deadline: float) -> dict[str, Any]:
    if shutil.which(command[0]) is None:
        return {"state": "missing"}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, 9)
        # not waited for: a process that hangs in a driver does not die
        return {"state": "hung", "seconds": deadline}
    return {"state": "ended", "code": child.returncode, "output": said.decode("utf-8", "replace")[-LIMIT:]}


def ask_libraries(deadline: float) -> dict[str, Any]:
    boot = "import sys;sys.argv=sys.argv[1:];exec(compile(open(sys.argv[0],'rb').read(),sys.argv[0],'exec'))"
    program = os.path.join(os.environ["IMAGEBUILD_IN"], "devices.py")
    done = run([sys.executable, "-B", "-c", boot, program, "cuda"], deadline)
    if done["state"] == "ended":
        try:
            found: dict[str, Any] = json.loads(done["output"].splitlines()[-1])
            return {"state": "ended", **found}
        except (ValueError, IndexError):
            done["state"] = "crashed"
    return done


def library(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def cuda() -> dict[str, Any]:
    driver = library("libcuda.so.1", "libcuda.so")
    if driver is None:
        return {"cuda": "missing"}
    driver.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]

    def said(code: int) -> dict[str, Any]:
        words = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(words))
        return {"cuda": "error", "error": code, "message": (words.value or b"").decode("ascii", "replace")}

    code = driver.cuInit(0)
    if code:
        return said(code)
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return said(code)
    devices = []
    for number in range(count.value):
        device, name, size = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), number)
        driver.cuDeviceGetName(name, 128, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        values = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            value = ctypes.c_int()
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            values.append(value.value)
        one = {"name": name.value.decode(), "capability": f"{values[0]}.{values[1]}", "memory": size.value}
        context = ctypes.c_void_p()
        code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if code:
            one.update(said(code))
        else:
            driver.cuDevicePrimaryCtxRelease_v2(device)
        devices.append(one)
    return {"cuda": "ready", "cuda_version": version.value, "devices": devices}


class Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def nvml() -> dict[str, Any]:
    manager = library("libnvidia-ml.so.1", "libnvidia-ml.so")
    if manager is None:
        return {"nvml": "missing"}
    code = manager.nvmlInit_v2()
    manager.nvmlErrorString.restype = ctypes.c_char_p
    if code:
        return {"nvml": "error", "nvml_error": code, "nvml_message": manager.nvmlErrorString(code).decode()}
    version, count, used = ctypes.create_string_buffer(96), ctypes.c_uint(), []
    manager.nvmlSystemGetDriverVersion(version, 96)
    manager.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number in range(count.value):
        handle, memory = ctypes.c_void_p(), Memory()
        code = manager.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        code = code or manager.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        used.append({"error": manager.nvmlErrorString(code).decode()} if code else {
            "used": memory.used, "total": memory.total
        })  # fmt: skip
    return {"nvml": "ready", "driver": version.value.decode(), "memory": used}


def nvidia(root: str, deadline: float) -> dict[str, Any]:
    nodes = sorted(glob.glob(root + "/dev/nvidia[0-9]*"))
    nodes += [root + f"/dev/{name}" for name in ("nvidiactl", "nvidia-uvm") if os.path.exists(root + f"/dev/{name}")]
    if os.path.exists("/dev/dxg"):
        nodes.append("/dev/dxg")
    query = "--query-gpu=index,name,uuid,driver_version,memory.used,memory.total,compute_mode"
    out: dict[str, Any] = {"nodes": {path[len(root) :]: opened(path) for path in nodes}}
    kernel = text_of(root + "/proc/driver/nvidia/version")
    out["kernel_driver"] = kernel.splitlines()[0] if kernel else None
    if not nodes:
        # without a node these can only fail, and slowly
        return {**out, "smi": {"state": "not-asked"}, "libraries": {"state": "not-asked"}}
    out["smi"] = run(["nvidia-smi", query, "--format=csv,noheader,nounits"], deadline)
    if out["smi"]["state"] != "hung":
        out["libraries"] = ask_libraries(deadline)
    else:
        out["libraries"] = {"state": "not-asked"}
    return out


def properties(path: str) -> dict[str, int]:
    out = {}
    for line in (text_of(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            out[words[0]] = int(words[1])
    return out


def gfx(version: int) -> str:
    """`gfx_target_version` 90402 is gfx942: decimal major, minor and stepping, the last two shown in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def amd(root: str, deadline: float) -> dict[str, Any]:
    nodes = [
        path for path in [root + "/dev/kfd", *sorted(glob.glob(root + "/dev/dri/renderD*"))] if os.path.exists(path)
    ]
    out: dict[str, Any] = {"nodes": {path[len(root) :]: opened(path) for path in nodes}, "devices": []}
    for folder in sorted(glob.glob(root + "/sys/class/kfd/kfd/topology/nodes/*"), key=lambda one: (len(one), one)):
        read = properties(folder + "/properties")
        if not read.get("gfx_target_version"):
            continue  # a processor
        out["devices"].append(
            {
                "gfx": gfx(read["gfx_target_version"]),
                "name": text_of(folder + "/name") or "",
                "minor": read.get("drm_render_minor"),
                "mec_firmware": read.get("fw_version"),
                "units": read.get("simd_count"),
            }
        )
    cards = []
    for folder in sorted(glob.glob(root + "/sys/class/drm/renderD*/device")):
        if text_of(folder + "/vendor") != VENDORS["amd"]:
            continue
        cards.append(
            {
                "minor": int(folder.split("/")[-2][len("renderD") :]),
                "product": text_of(folder + "/product_name"),
                "mec_firmware": text_of(folder + "/fw_version/mec_fw_version"),
                "used": text_of(folder + "/mem_info_vram_used"),
                "total": text_of(folder + "/mem_info_vram_total"),
                "uncorrectable": text_of(folder + "/ras/umc_err_count"),
            }
        )
    out["cards"] = cards
    out["kernel_driver"] = text_of(root + "/sys/module/amdgpu/version")
    out["smi"] = run(["rocm-smi", "--showproductname"], deadline) if nodes else {"state": "not-asked"}
    return out


def main() -> int:
    if sys.argv[1:] == ["cuda"]:
        found = {**cuda(), **nvml()}
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        sys.stdout.flush()
        os._exit(0)
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    asked, root = request["arguments"], request["arguments"].get("root", "")
    vendor, deadline = asked["vendor"], max(2.0, (request["deadline"] - 5) / 3)
    answer: dict[str, Any] = {"vendor": vendor, "pci": pci_devices(root, vendor)}
    shared = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    answer["shared_memory"] = shared.f_frsize * shared.f_blocks if shared is not None else 0
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    answer["memlock"] = "unlimited" if soft == resource.RLIM_INFINITY else soft
    answer["huge_pages"] = text_of(root + "/sys/kernel/mm/transparent_hugepage/enabled")
    answer["visible"] = {
        name: os.environ[name]
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        if name in os.environ
    }
    answer.update(nvidia(root, deadline) if vendor == "nvidia" else amd(root, deadline))
    with open(os.environ["IMAGEBUILD_ANSWER"], "w", encoding="utf-8") as stream:
        json.dump(answer, stream, indent=1, sort_keys=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

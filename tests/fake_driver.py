"""NVIDIA's driver libraries, made up: ``libcuda.so.1`` and ``libnvidia-ml.so.1`` that describe
whatever GPUs a test asks for, built with the C++ compiler and loaded by a process of its own."""

import os
import subprocess
import sys

SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>

// What a variable says, or else the number ``usual``.
static int number(const char* name, int usual) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : usual;
}

struct PciInfo { char legacy[16]; unsigned numbers[5]; char bus[32]; };
struct Process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };

extern "C" {
int cuDriverGetVersion(int* v) { *v = number("FAKE_CUDA", 13000); return 0; }
int cuInit(unsigned) { return number("FAKE_STATUS", 0); }
int cuGetErrorString(int, const char** text) { *text = "made up"; return 0; }
int cuDeviceGetCount(int* n) { *n = number("FAKE_GPUS", 1); return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int) { std::snprintf(name, size, "Fake GPU"); return 0; }
int cuDeviceGetPCIBusId(char* id, int size, int device) {
    std::snprintf(id, size, "0000:%02X:00.0", device + 10);
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? number("FAKE_MAJOR", 9) : number("FAKE_MINOR", 0);
    return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
    const char* release = std::getenv("FAKE_DRIVER");
    std::snprintf(text, size, "%s", release ? release : "580.95.05");
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned* n) { *n = number("FAKE_BOARDS", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = reinterpret_cast<void*>(static_cast<size_t>(index) + 1);
    return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
    std::snprintf(name, size, "Fake GPU");
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
    unsigned index = static_cast<unsigned>(reinterpret_cast<size_t>(device)) - 1;
    std::memset(info, 0, sizeof *info);
    std::snprintf(info->bus, sizeof info->bus, "00000000:%02X:00.0", index + 10);
    return 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned* pending) {
    *current = *pending = number("FAKE_MIG", 0);
    return 0;
}
int nvmlDeviceGetPersistenceMode(void*, unsigned* on) {
    *on = number("FAKE_PERSISTENCE", 1);
    return 0;
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
    *mhz = number("FAKE_MHZ", 1980);
    return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
    *bits = number("FAKE_REASONS", 0);
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* found) {
    *count = number("FAKE_PROCESSES", 0);
    for (unsigned i = 0; i < *count; ++i) found[i] = Process{4000 + i, 1 << 30, 0, 0};
    return 0;
}
}
"""


def build(folder):
    """Both libraries in ``folder``, for LD_LIBRARY_PATH."""
    library = folder / "libcuda.so.1"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library.name)


def python(folder, *arguments, **variables):
    """Run Python under the driver in ``folder``; the finished process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )

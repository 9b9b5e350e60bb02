// The CUDA runtime on the emulated device: what a candidate's own host code, built by nvcc with -cudart none, calls.
//
// Launches run to their end before they return, so streams and events only order what is ordered already. There is
// no time: asking for one is refused. Names, arguments and limits follow CUDA 13's runtime API; the device's limits
// are those of compute capability 9.0.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core.h"
#include "host_api.h"

extern "C" {
int ca_fatbin_ptx(const void *fatbin, const char **text, uint64_t *bytes);  // fatbin.cpp
}

namespace {

enum Error : int {
    Success = 0,
    InvalidValue = 1,
    MemoryAllocation = 2,
    InvalidSymbol = 13,
    InvalidDevicePointer = 17,
    InvalidMemcpyDirection = 21,
    InvalidDeviceFunction = 98,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidKernelImage = 200,
    NoKernelImageForDevice = 209,
    InvalidResourceHandle = 400,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeout = 702,
    Assert = 710,
    IllegalInstruction = 715,
    MisalignedAddress = 716,
    LaunchFailure = 719,
    CooperativeLaunchTooLarge = 720,
    NotSupported = 801,
    Unknown = 999,
};

struct Dim3 {
    unsigned x, y, z;
};

constexpr uint32_t kSharedDefault = 48 * 1024, kSharedOptIn = 227 * 1024;
constexpr unsigned kMultiprocessors = 132, kThreadsPerMultiprocessor = 2048, kBlocksPerMultiprocessor = 32;

struct Fatbin {
    const void *data = nullptr;
    ca_module *module = nullptr;
    bool failed = false;
};
struct Kernel {
    Fatbin *fatbin;
    std::string name;
    uint32_t dynamic_limit = kSharedDefault;
    int id = -1;
};
struct Variable {
    Fatbin *fatbin;
    std::string name;
};
struct Configuration {
    Dim3 grid, block;
    size_t shared;
    void *stream;
};

std::map<const void *, Kernel> kernels;
std::map<const void *, Variable> variables;
std::map<void **, Variable> managed;
std::map<void *, size_t> allocations;
std::vector<Configuration> configurations;
std::vector<const void *> call_tensors;
std::string call_fault, launcher;
cuda_agent_loader load_text = nullptr;
int last_error = Success, sticky_error = Success;
uint64_t next_handle = 16;
std::recursive_mutex lock;

int fail(int error) {
    last_error = error;
    return error;
}

// A fault ends the context, as on a device: every later call returns it.
int fault(int error) {
    sticky_error = last_error = error;
    const ca_fault *f = ca_last_fault();
    if (f && call_fault.empty()) call_fault = f->message;
    return error;
}

int unsupported(const char *what) {
    std::string text = std::string(what) + ": not supported on the emulated device; judge it on a CUDA device";
    ca_set_fault(CA_UNSUPPORTED, launcher.c_str(), text.c_str());
    return fault(NotSupported);
}

ca_module *module_of(Fatbin &f) {
    if (f.module || f.failed) return f.module;
    const char *text = nullptr;
    uint64_t bytes = 0;
    if (!ca_fatbin_ptx(f.data, &text, &bytes)) {
        f.failed = true;
        ca_set_fault(CA_UNSUPPORTED, "", "the built library holds no plain PTX, so the emulated device can't run it");
        return nullptr;
    }
    f.module = load_text ? static_cast<ca_module *>(load_text(text, bytes)) : nullptr;
    f.failed = f.module == nullptr;
    if (f.failed && !ca_last_fault()) ca_set_fault(CA_UNSUPPORTED, "", "the PTX could not be loaded");
    return f.module;
}

Kernel *kernel_of(const void *function) {
    auto found = kernels.find(function);
    if (found == kernels.end()) {
        fail(InvalidDeviceFunction);
        return nullptr;
    }
    Kernel &k = found->second;
    ca_module *m = module_of(*k.fatbin);
    if (!m) {
        fault(NotSupported);
        return nullptr;
    }
    if (k.id < 0) k.id = ca_module_find_kernel(m, k.name.c_str());
    if (k.id < 0) {
        fail(InvalidDeviceFunction);
        return nullptr;
    }
    return &k;
}

int error_of(int kind) {
    switch (kind) {
        case CA_OK: return Success;
        case CA_OUT_OF_BOUNDS_GLOBAL:
        case CA_OUT_OF_BOUNDS_SHARED:
        case CA_OUT_OF_BOUNDS_LOCAL:
        case CA_READ_ONLY: return IllegalAddress;
        case CA_MISALIGNED: return MisalignedAddress;
        case CA_DEADLOCK:
        case CA_TIMEOUT: return LaunchTimeout;
        case CA_UNSUPPORTED: return NotSupported;
        case CA_ASSERT: return Assert;
        case CA_ILLEGAL: return IllegalInstruction;
        default: return LaunchFailure;
    }
}

int launch(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, bool cooperative) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (sticky_error) return sticky_error;
    Kernel *k = kernel_of(function);
    if (!k) return last_error;
    uint64_t threads = uint64_t{block.x} * block.y * block.z;
    // CUDA 13 gives cudaErrorInvalidValue for all of these (seen on an H200).
    if (!grid.x || !grid.y || !grid.z || !threads || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.x > 1024 ||
        block.y > 1024 || block.z > 64 || threads > 1024)
        return fail(InvalidValue);
    if (threads > ca_kernel_most_threads(k->fatbin->module, k->id)) return fail(InvalidValue);  // __launch_bounds__
    uint32_t fixed = ca_kernel_static_shared(k->fatbin->module, k->id);
    if (fixed + shared > k->dynamic_limit || shared > k->dynamic_limit) return fail(InvalidValue);
    if (cooperative && uint64_t{grid.x} * grid.y * grid.z > uint64_t{kMultiprocessors} * (kThreadsPerMultiprocessor / threads))
        return fail(CooperativeLaunchTooLarge);
    const ca_parameters *p = ca_kernel_parameters(k->fatbin->module, k->id);
    std::vector<char> buffer(p->bytes);
    for (uint32_t n = 0; n < p->count; ++n) std::copy_n(static_cast<const char *>(arguments[n]), p->size[n], buffer.data() + p->offset[n]);
    uint32_t g[3] = {grid.x, grid.y, grid.z}, b[3] = {block.x, block.y, block.z};
    int kind = ca_launch(k->fatbin->module, k->id, g, b, buffer.data(), static_cast<uint32_t>(shared), cooperative);
    return kind == CA_OK ? Success : fault(error_of(kind));
}

int allocate(void **out, size_t bytes, const char *what) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (sticky_error) return sticky_error;
    if (!out) return fail(InvalidValue);
    *out = nullptr;
    if (bytes == 0) return Success;
    void *p = bytes > (size_t{8} << 30) ? nullptr : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!p) return fail(MemoryAllocation);
    std::fill_n(static_cast<unsigned char *>(p), bytes, static_cast<unsigned char>(0xFE));
    allocations[p] = bytes;
    ca_range_add(what, p, bytes, 0);
    *out = p;
    return Success;
}

int release(void *p) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!p) return Success;
    auto found = allocations.find(p);
    if (found == allocations.end()) return fail(InvalidValue);
    ca_range_remove(p);
    allocations.erase(found);
    std::free(p);
    return sticky_error;
}

// An address inside an allocation whose bytes are not all inside it.
bool runs_over(const void *p, size_t bytes) {
    auto after = allocations.upper_bound(const_cast<void *>(p));
    if (after == allocations.begin()) return false;
    const auto &[base, size] = *std::prev(after);
    size_t offset = static_cast<size_t>(static_cast<const char *>(p) - static_cast<const char *>(base));
    return offset < size && bytes > size - offset;
}

int copy(void *to, const void *from, size_t bytes) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (sticky_error) return sticky_error;
    if (bytes && (!to || !from)) return fail(InvalidValue);
    if (runs_over(to, bytes) || runs_over(from, bytes)) return fail(InvalidValue);
    if (bytes) std::copy_n(static_cast<const char *>(from), bytes, static_cast<char *>(to));
    return Success;
}

int symbol_address(const void *symbol, uint64_t *address, uint64_t *bytes) {
    auto found = variables.find(symbol);
    if (found == variables.end()) return fail(InvalidSymbol);
    ca_module *m = module_of(*found->second.fatbin);
    if (!m) return fault(NotSupported);
    *address = ca_module_find_variable(m, found->second.name.c_str(), bytes);
    return *address ? Success : fail(InvalidSymbol);
}

struct Named {
    int code;
    const char *name, *text;
};
const Named names[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {999, "cudaErrorUnknown", "unknown error"},
};

int attribute(int *value, int which) {
    // Numbers of cudaDeviceAttr, values of compute capability 9.0.
    static const std::map<int, int> known = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, kSharedDefault}, {9, 65536},
        {10, 32}, {11, 2147483647}, {12, 65536}, {13, 1000000}, {14, 512}, {16, kMultiprocessors}, {17, 0}, {18, 1}, {19, 1},
        {31, 1}, {36, 1000000}, {37, 5120}, {38, 50 * 1024 * 1024}, {39, kThreadsPerMultiprocessor}, {41, 1}, {75, 9}, {76, 0},
        {81, 228 * 1024}, {82, 65536}, {83, 1}, {89, 1}, {95, 1}, {97, kSharedOptIn}, {106, kBlocksPerMultiprocessor}, {111, 1024},
        {115, 1},
    };
    auto found = known.find(which);
    *value = found == known.end() ? 0 : found->second;
    return Success;
}

int occupancy(int *blocks, const void *function, int threads, size_t shared) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Kernel *k = kernel_of(function);
    if (!k) return last_error;
    if (threads < 1 || threads > 1024) return fail(InvalidValue);
    unsigned warps = (static_cast<unsigned>(threads) + 31) / 32;
    size_t bytes = ca_kernel_static_shared(k->fatbin->module, k->id) + shared + 1024;
    size_t by_shared = (size_t{228} * 1024) / bytes;
    *blocks = static_cast<int>(std::min<size_t>({kThreadsPerMultiprocessor / 32 / warps, kBlocksPerMultiprocessor, by_shared}));
    return Success;
}

template <class T> void put(void *structure, size_t offset, T value) { *reinterpret_cast<T *>(static_cast<char *>(structure) + offset) = value; }

}  // namespace

extern "C" {

// Registration, as nvcc's host code calls it.
void **__cudaRegisterFatBinary(void *wrapper) {
    struct Wrapper {
        int magic, version;
        const void *data;
        void *rest;
    };
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto *f = new Fatbin;
    f->data = static_cast<Wrapper *>(wrapper)->data;
    return reinterpret_cast<void **>(f);
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto *f = reinterpret_cast<Fatbin *>(handle);
    std::erase_if(kernels, [f](const auto &x) { return x.second.fatbin == f; });
    std::erase_if(managed, [f](const auto &x) { return x.second.fatbin == f; });
    std::erase_if(variables, [f](const auto &x) { return x.second.fatbin == f; });
    if (f->module) ca_module_free(f->module);
    delete f;
}
// Called before host code touches a managed variable: point it at the device's.
char __cudaInitModule(void **handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (auto &[host, variable] : managed) {
        if (variable.fatbin != reinterpret_cast<Fatbin *>(handle)) continue;
        uint64_t bytes = 0;
        ca_module *m = module_of(*variable.fatbin);
        if (m) *host = reinterpret_cast<void *>(ca_module_find_variable(m, variable.name.c_str(), &bytes));
    }
    return 1;
}
void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, void *, void *, void *, void *, int *) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    kernels[host] = Kernel{reinterpret_cast<Fatbin *>(handle), name};
}
void __cudaRegisterVar(void **handle, char *host, char *, const char *name, int, size_t, int, int) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    variables[host] = Variable{reinterpret_cast<Fatbin *>(handle), name};
}
void __cudaRegisterManagedVar(void **handle, void **host, char *, const char *name, int, size_t, int, int) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    variables[host] = Variable{reinterpret_cast<Fatbin *>(handle), name};
    managed[host] = Variable{reinterpret_cast<Fatbin *>(handle), name};
}
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void *stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (configurations.empty()) return fail(Unknown);
    Configuration c = configurations.back();
    configurations.pop_back();
    *grid = c.grid;
    *block = c.block;
    *shared = c.shared;
    *static_cast<void **>(stream) = c.stream;
    return Success;
}
int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = const_cast<void *>(function);
    return Success;
}
int cudaGetKernel(void **kernel, const void *function) { return __cudaGetKernel(kernel, function); }
int __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *) {
    return launch(kernel, grid, block, arguments, shared, false);
}
int __cudaLaunchKernel_ptsz(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *) {
    return launch(kernel, grid, block, arguments, shared, false);
}
int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *) {
    return launch(function, grid, block, arguments, shared, false);
}
int cudaLaunchKernel_ptsz(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *) {
    return launch(function, grid, block, arguments, shared, false);
}
int cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *) {
    return launch(function, grid, block, arguments, shared, true);
}
int cudaLaunchKernelExC(const void *configuration, const void *function, void **arguments) {
    struct Attribute {
        int id, pad;
        char value[64];
    };
    struct Launch {
        Dim3 grid, block;
        size_t shared;
        void *stream;
        Attribute *attributes;
        unsigned count;
    };
    const auto *c = static_cast<const Launch *>(configuration);
    bool cooperative = false;
    for (unsigned n = 0; n < c->count; ++n) {
        const Attribute &a = c->attributes[n];
        const auto *words = reinterpret_cast<const unsigned *>(a.value);
        if (a.id == 2) cooperative = words[0] != 0;
        if (a.id == 4 && uint64_t{words[0]} * words[1] * words[2] > 1) return unsupported("a launch with thread block clusters");
    }
    return launch(function, c->grid, c->block, arguments, c->shared, cooperative);
}

// Memory.
int cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, "cudaMalloc'ed memory"); }
int cudaMallocAsync(void **p, size_t bytes, void *) { return allocate(p, bytes, "cudaMallocAsync'ed memory"); }
int cudaMallocManaged(void **p, size_t bytes, unsigned) { return allocate(p, bytes, "managed memory"); }
int cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, "host memory"); }
int cudaHostAlloc(void **p, size_t bytes, unsigned) { return allocate(p, bytes, "host memory"); }
int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(p, *pitch * height, "pitched memory");
}
int cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return Success;
}
int cudaFree(void *p) { return release(p); }
int cudaFreeAsync(void *p, void *) { return release(p); }
int cudaFreeHost(void *p) { return release(p); }
int cudaMemcpy(void *to, const void *from, size_t bytes, int) { return copy(to, from, bytes); }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, void *) { return copy(to, from, bytes); }
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int) {
    for (size_t r = 0; r < height; ++r)
        if (int e = copy(static_cast<char *>(to) + r * to_pitch, static_cast<const char *>(from) + r * from_pitch, width)) return e;
    return sticky_error;
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, void *) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
int cudaMemset(void *to, int value, size_t bytes) {
    if (sticky_error) return sticky_error;
    if (bytes && !to) return fail(InvalidValue);
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (runs_over(to, bytes)) return fail(InvalidValue);
    std::fill_n(static_cast<unsigned char *>(to), bytes, static_cast<unsigned char>(value));
    return Success;
}
int cudaMemsetAsync(void *to, int value, size_t bytes, void *) { return cudaMemset(to, value, bytes); }
int cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    for (size_t r = 0; r < height; ++r)
        if (int e = cudaMemset(static_cast<char *>(to) + r * pitch, value, width)) return e;
    return sticky_error;
}
int cudaGetSymbolAddress(void **address, const void *symbol) {
    uint64_t a = 0, bytes = 0;
    int e = symbol_address(symbol, &a, &bytes);
    *address = reinterpret_cast<void *>(a);
    return e;
}
int cudaGetSymbolSize(size_t *size, const void *symbol) {
    uint64_t a = 0, bytes = 0;
    int e = symbol_address(symbol, &a, &bytes);
    *size = bytes;
    return e;
}
int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int) {
    uint64_t a = 0, size = 0;
    if (int e = symbol_address(symbol, &a, &size)) return e;
    if (offset + bytes > size) return fail(InvalidValue);
    return copy(reinterpret_cast<char *>(a) + offset, from, bytes);
}
int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind, void *) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int) {
    uint64_t a = 0, size = 0;
    if (int e = symbol_address(symbol, &a, &size)) return e;
    if (offset + bytes > size) return fail(InvalidValue);
    return copy(to, reinterpret_cast<char *>(a) + offset, bytes);
}
int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, int kind, void *) {
    return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = size_t{8} << 30;
    *total = size_t{8} << 30;
    return Success;
}
int cudaMemPrefetchAsync(const void *, size_t, ...) { return sticky_error; }
int cudaMemAdvise(const void *, size_t, ...) { return sticky_error; }

// Streams and events: everything is done when a call returns.
int cudaStreamCreate(void **s) {
    *s = reinterpret_cast<void *>(next_handle++);
    return sticky_error;
}
int cudaStreamCreateWithFlags(void **s, unsigned) { return cudaStreamCreate(s); }
int cudaStreamCreateWithPriority(void **s, unsigned, int) { return cudaStreamCreate(s); }
int cudaStreamDestroy(void *) { return sticky_error; }
int cudaStreamSynchronize(void *) { return sticky_error; }
int cudaStreamQuery(void *) { return sticky_error; }
int cudaStreamWaitEvent(void *, void *, unsigned) { return sticky_error; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return Success;
}
int cudaStreamIsCapturing(void *, int *status) {
    *status = 0;
    return Success;
}
int cudaEventCreate(void **e) { return cudaStreamCreate(e); }
int cudaEventCreateWithFlags(void **e, unsigned) { return cudaStreamCreate(e); }
int cudaEventDestroy(void *) { return sticky_error; }
int cudaEventRecord(void *, void *) { return sticky_error; }
int cudaEventRecordWithFlags(void *, void *, unsigned) { return sticky_error; }
int cudaEventSynchronize(void *) { return sticky_error; }
int cudaEventQuery(void *) { return sticky_error; }
int cudaEventElapsedTime(float *, void *, void *) { return unsupported("cudaEventElapsedTime (the emulated device has no time)"); }

// Devices.
int cudaDeviceSynchronize(void) { return sticky_error; }
int cudaDeviceReset(void) {
    cuda_agent_reset();
    return Success;
}
int cudaGetDeviceCount(int *n) {
    *n = 1;
    return Success;
}
int cudaGetDevice(int *device) {
    *device = 0;
    return Success;
}
int cudaSetDevice(int device) { return device == 0 ? sticky_error : fail(InvalidDevice); }
int cudaSetDeviceFlags(unsigned) { return Success; }
int cudaDriverGetVersion(int *v) {
    *v = 13000;
    return Success;
}
int cudaRuntimeGetVersion(int *v) { return cudaDriverGetVersion(v); }
int cudaDeviceGetAttribute(int *value, int which, int) { return attribute(value, which); }
int cudaDeviceSetLimit(int, size_t) { return Success; }
int cudaDeviceGetLimit(size_t *value, int) {
    *value = 8 << 20;
    return Success;
}
int cudaDeviceSetCacheConfig(int) { return Success; }
int cudaCtxResetPersistingL2Cache(void) { return Success; }
int cudaGetDeviceProperties(void *p, int device) {
    if (device != 0) return fail(InvalidDevice);
    std::fill_n(static_cast<char *>(p), 1008, '\0');
    std::snprintf(static_cast<char *>(p), 256, "CUDA Agent emulated device");
    put<size_t>(p, 288, size_t{8} << 30);      // totalGlobalMem
    put<size_t>(p, 296, kSharedDefault);       // sharedMemPerBlock
    put<int>(p, 304, 65536);                   // regsPerBlock
    put<int>(p, 308, 32);                      // warpSize
    put<size_t>(p, 312, 2147483647);           // memPitch
    put<int>(p, 320, 1024);                    // maxThreadsPerBlock
    const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    for (size_t k = 0; k < 3; ++k) put<int>(p, 324 + 4 * k, block[k]), put<int>(p, 336 + 4 * k, grid[k]);
    put<size_t>(p, 352, 65536);                // totalConstMem
    put<int>(p, 360, 9);                       // major
    put<int>(p, 384, kMultiprocessors);        // multiProcessorCount
    put<int>(p, 560, 1);                       // concurrentKernels
    put<int>(p, 588, 1);                       // unifiedAddressing
    put<int>(p, 592, 5120);                    // memoryBusWidth
    put<int>(p, 596, 50 << 20);                // l2CacheSize
    put<int>(p, 604, kThreadsPerMultiprocessor);
    put<size_t>(p, 624, 228 * 1024);           // sharedMemPerMultiprocessor
    put<int>(p, 632, 65536);                   // regsPerMultiprocessor
    put<int>(p, 636, 1);                       // managedMemory
    put<int>(p, 668, 1);                       // cooperativeLaunch
    put<size_t>(p, 672, kSharedOptIn);         // sharedMemPerBlockOptin
    put<int>(p, 688, kBlocksPerMultiprocessor);
    put<size_t>(p, 696, 1024);                 // reservedSharedMemPerBlock
    return Success;
}

// Functions.
int cudaFuncSetAttribute(const void *function, int which, int value) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Kernel *k = kernel_of(function);
    if (!k) return last_error;
    if (which != 8) return Success;  // carve-out and the like are hints
    uint32_t fixed = ca_kernel_static_shared(k->fatbin->module, k->id);
    if (value < 0 || fixed + static_cast<uint32_t>(value) > kSharedOptIn) return fail(InvalidValue);
    k->dynamic_limit = std::max(kSharedDefault, fixed + static_cast<uint32_t>(value));
    return Success;
}
int cudaFuncSetCacheConfig(const void *, int) { return Success; }
int cudaFuncGetAttributes(void *a, const void *function) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Kernel *k = kernel_of(function);
    if (!k) return last_error;
    std::fill_n(static_cast<char *>(a), 144, '\0');
    put<size_t>(a, 0, ca_kernel_static_shared(k->fatbin->module, k->id));
    put<size_t>(a, 16, ca_kernel_local_bytes(k->fatbin->module, k->id));
    put<int>(a, 24, static_cast<int>(ca_kernel_most_threads(k->fatbin->module, k->id)));
    put<int>(a, 28, 32);
    put<int>(a, 32, 90);
    put<int>(a, 36, 90);
    put<int>(a, 44, static_cast<int>(k->dynamic_limit));
    return Success;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t shared) { return occupancy(blocks, f, threads, shared); }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int threads, size_t shared, unsigned) {
    return occupancy(blocks, f, threads, shared);
}

// Errors.
int cudaGetLastError(void) {
    int e = sticky_error ? sticky_error : last_error;
    last_error = Success;
    return e;
}
int cudaPeekAtLastError(void) { return sticky_error ? sticky_error : last_error; }
const char *cudaGetErrorName(int error) {
    for (const auto &n : names)
        if (n.code == error) return n.name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(int error) {
    for (const auto &n : names)
        if (n.code == error) return n.text;
    return "unrecognized error code";
}

// Known to the linker, refused when called.
#define REFUSED(name) \
    int name(void) { return unsupported(#name); }
REFUSED(cudaStreamBeginCapture)
REFUSED(cudaStreamEndCapture)
REFUSED(cudaGraphCreate)
REFUSED(cudaGraphInstantiate)
REFUSED(cudaGraphInstantiateWithFlags)
REFUSED(cudaGraphLaunch)
REFUSED(cudaGraphDestroy)
REFUSED(cudaGraphExecDestroy)
REFUSED(cudaStreamSetAttribute)
REFUSED(cudaStreamAddCallback)
REFUSED(cudaLaunchHostFunc)
REFUSED(cudaCreateTextureObject)
REFUSED(cudaDestroyTextureObject)
REFUSED(cudaCreateSurfaceObject)
REFUSED(cudaDestroySurfaceObject)
REFUSED(cudaMallocArray)
REFUSED(cudaFreeArray)
REFUSED(cudaMalloc3D)
REFUSED(cudaMemcpy3D)
REFUSED(cudaMemcpyPeer)
REFUSED(cudaMemcpyPeerAsync)
REFUSED(cudaDeviceEnablePeerAccess)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaMemPoolCreate)
REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaHostRegister)
REFUSED(cudaHostUnregister)
REFUSED(cudaPointerGetAttributes)
REFUSED(cudaGetDriverEntryPoint)
REFUSED(cudaGetDriverEntryPointByVersion)
REFUSED(__cudaRegisterTexture)
REFUSED(__cudaRegisterSurface)

// host_api.h
void cuda_agent_begin_call(const char *name) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (const void *p : call_tensors) ca_range_remove(p);
    call_tensors.clear();
    call_fault.clear();
    launcher = name;
    if (sticky_error) {
        const ca_fault *f = ca_last_fault();
        call_fault = std::string("an earlier launch failed and ended the device's context") + (f ? std::string(": ") + f->message : "");
    }
}
void cuda_agent_register_tensor(const char *name, const void *data, unsigned long long bytes, int read_only) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!data || !bytes) return;
    for (const auto &[p, size] : allocations)
        if (data >= p && data < static_cast<char *>(p) + size) return;
    ca_range_add(name, data, bytes, read_only);
    call_tensors.push_back(data);
}
const char *cuda_agent_end_call(void) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (const void *p : call_tensors) ca_range_remove(p);
    call_tensors.clear();
    return call_fault.empty() ? nullptr : call_fault.c_str();
}
void cuda_agent_reset(void) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    last_error = sticky_error = Success;
    call_fault.clear();
    configurations.clear();
    ca_clear_fault();
}
void cuda_agent_set_loader(cuda_agent_loader loader) { load_text = loader; }

}  // extern "C"

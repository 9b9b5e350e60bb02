// The machine: warps of 32 lanes as fragments (pc, mask), frames of registers, blocks, and what operations may touch.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core.h"

namespace ca {

constexpr int kLanes = 32;
constexpr uint32_t kFull = 0xffffffffu;

// Generic addresses: host addresses stay below 2^47, so these tags never collide with global memory.
constexpr uint64_t kSharedTag = 1ull << 62;
constexpr uint64_t kLocalTag = 1ull << 61;
constexpr uint64_t kFunctionTag = 1ull << 60;
constexpr uint64_t kTagMask = kSharedTag | kLocalTag | kFunctionTag;
constexpr uint32_t kLocalStackBytes = 64 * 1024;  // per lane

struct Context;
struct Instruction;
using Handler = void (*)(Context &, const Instruction &);

struct Instruction {
    Handler run;
    int32_t guard;
    bool guard_negated;
    int16_t file;
    int32_t line;
    int32_t op;
    int32_t o[16];
    int64_t imm[2];
};

struct Slot {
    int32_t offset, bytes;
};

struct CallSite {
    int target;
    std::vector<Slot> arguments, results;
};

struct Function {
    std::string name, unsupported;
    bool is_kernel = false;
    std::vector<Instruction> code;
    std::vector<char> constants;
    uint32_t frame_bytes = 0, local_bytes = 0, static_shared_bytes = 0;
    uint32_t most_threads = 1024;  // a block of more is refused: __launch_bounds__
    ca_parameters parameters{};
    std::vector<Slot> parameter_slots, return_slots;
    std::vector<CallSite> calls;
    std::vector<std::vector<int32_t>> lists;
};

struct Range {
    uint64_t base, end;
    bool read_only;
    std::string name;
};

// Thrown by an operation; the launch turns it into the last fault.
struct Fault {
    int kind;
    std::string message;
    int lane;
    uint64_t address = 0;
    uint32_t bytes = 0;
};

struct Frame {
    const Function *function = nullptr;
    char *registers = nullptr;
    uint32_t local_base = 0;
    uint32_t live = 0;  // lanes that have not returned from it
    Frame *parent = nullptr;
    int32_t return_pc = 0;
    const CallSite *site = nullptr;
    int depth = 0;
    std::unique_ptr<char[]> storage;
    uint32_t storage_bytes = 0;
};

enum class State : uint8_t { Ready, AtBarrier, AtWarpSync };

struct Fragment {
    int32_t pc;
    uint32_t mask;
    Frame *frame;
    State state = State::Ready;
    int barrier = 0;        // id of the barrier it waits at
    uint32_t waits_for = 0; // lanes a warp-level operation waits for
    const Instruction *parked_at = nullptr;
    uint64_t last_run = 0;
};

struct AsyncCopy {
    uint32_t shared;
    uint64_t source;
    uint32_t bytes, filled;
};

struct Block;

struct Warp {
    int index = 0;
    Block *block = nullptr;
    uint32_t live = 0;
    std::vector<Fragment> fragments;
    std::vector<std::unique_ptr<Frame>> free_frames;
    std::vector<std::unique_ptr<Frame>> frames;
    std::unique_ptr<char[]> local;  // kLanes stacks, made when first needed
    std::vector<std::vector<AsyncCopy>> committed_copies;
    std::vector<AsyncCopy> open_copies;
    alignas(64) uint32_t tid[3][kLanes];
    uint64_t instructions = 0;
    uint64_t ticks = 0;
};

struct Barrier {
    uint32_t arrived = 0;   // threads
    uint32_t expected = 0;  // 0: all live threads of the block
    uint32_t accumulated = 0;
    bool all = true, any = false;
};

struct Launch;

struct Block {
    Launch *launch = nullptr;
    uint32_t index[3]{};
    uint64_t linear = 0;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<int> order;
    std::vector<char> shared_storage;
    char *shared = nullptr;
    uint32_t shared_bytes = 0;
    uint32_t live_threads = 0;
    Barrier barriers[16];
    bool done = false;
};

struct Module;

struct Launch {
    Module *module;
    const Function *kernel;
    uint32_t grid[3], block[3];
    std::vector<char> parameters;
    uint32_t dynamic_shared = 0;
    uint64_t blocks = 0;
    uint64_t schedule = 0;
    bool cooperative = false;
    uint64_t grid_workspace = 0;
    double deadline = 0;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> instructions{0};
};

// What an operation sees. `mask` holds the lanes for which it runs.
struct Context {
    char *registers;
    uint32_t mask;
    int32_t pc, next;
    bool repick;
    Frame *frame;
    Fragment *fragment;
    Warp *warp;
    Block *block;
    Launch *launch;
    const Range *range_cache[64];

    template <class T> T *at(int32_t offset) const { return reinterpret_cast<T *>(registers + offset); }
    uint32_t &predicate(int32_t offset) const { return *reinterpret_cast<uint32_t *>(registers + offset); }
};

struct Module {
    std::deque<Function> functions;
    std::vector<std::string> files;
    struct Variable {
        std::unique_ptr<char[]> storage;
        uint64_t address, bytes;
    };
    std::map<std::string, Variable> variables;
};

struct Operation {
    std::string name;
    Handler run;
};

// Registry of operations; each ops_*.cpp adds its own.
void add_operation(const std::string &name, Handler run);
void add_integer_operations();
void add_float_operations();
void add_half_operations();
void add_convert_operations();
void add_memory_operations();
void add_atomic_operations();
void add_warp_operations();
void add_control_operations();
void add_matrix_operations();

// Memory (memory.cpp)
// The range that holds all the bytes; where several do, one that may be written is preferred for a write.
const Range *find_range(uint64_t address, uint64_t bytes, bool write = false);
[[noreturn]] void bad_global(const Context &c, uint64_t address, uint32_t bytes, bool write, int lane);
[[noreturn]] void misaligned(uint64_t address, uint32_t bytes, bool write, const char *space, int lane);
char *shared_at(const Context &c, uint64_t offset, uint32_t bytes, bool write, int lane);
char *local_at(const Context &c, uint64_t offset, uint32_t bytes, bool write, int lane);
// Host address of one lane's access in any space; throws a Fault when it is out of bounds or misaligned.
char *generic_at(const Context &c, uint64_t address, uint32_t bytes, bool write, int lane);
void finish_async_copies(Context &c, size_t keep_groups);

// Scheduling (machine.cpp)
void split_parked(Context &c, State state, int barrier, uint32_t waits_for, int32_t pc, const Instruction &i);
void leave_lanes(Context &c, uint32_t mask);  // exit
Frame *enter_frame(Warp &w, const Function *function, Frame *parent, uint32_t mask);
void arrive_at_barrier(Context &c, const Instruction &i, int id, uint32_t expected, int32_t resume_pc);
std::string where(const Module &m, const Instruction &i);

template <class T> inline void blend(T *d, const T *r, uint32_t mask) {
    if (mask == kFull) {
        std::memcpy(d, r, sizeof(T) * kLanes);
    } else {
        for (int i = 0; i < kLanes; ++i) d[i] = (mask >> i) & 1 ? r[i] : d[i];
    }
}

// Pack 32 bytes that are 0 or 1 into a mask.
inline uint32_t pack(const uint8_t *b) {
    uint32_t m = 0;
    for (int k = 0; k < 4; ++k) {
        uint64_t x;
        std::memcpy(&x, b + 8 * k, 8);
        m |= static_cast<uint32_t>((x * 0x0102040810204080ull) >> 56) << (8 * k);
    }
    return m;
}

}  // namespace ca

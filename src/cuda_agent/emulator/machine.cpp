// Scheduling: fragments of a warp, warps of a block, blocks over threads; launches and their faults.
#include "machine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace ca {

namespace {

constexpr uint64_t kQuantum = 200000;     // instructions before another fragment or warp gets a turn
constexpr int kPoisonByte = 0xFE;         // shared memory starts with it, so that a missing initialisation shows

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Operation> &operations() {
    static std::vector<Operation> list;
    return list;
}

std::unordered_map<std::string, int> &operation_index() {
    static std::unordered_map<std::string, int> index;
    return index;
}

void ensure_operations() {
    static std::once_flag once;
    std::call_once(once, [] {
        add_integer_operations();
        add_float_operations();
        add_half_operations();
        add_convert_operations();
        add_memory_operations();
        add_atomic_operations();
        add_warp_operations();
        add_control_operations();
        add_matrix_operations();
    });
}

ca_fault last_fault{};
uint64_t schedule_seed = 0;
int thread_setting = 0;
double time_limit = 60;
bool idle_device = false;
std::atomic<uint64_t> launches{0}, instructions{0};

uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

void copy_text(char *to, size_t size, const std::string &text) {
    std::snprintf(to, size, "%s", text.c_str());
}

}  // namespace

void add_operation(const std::string &name, Handler run) {
    if (operation_index().emplace(name, static_cast<int>(operations().size())).second) operations().push_back({name, run});
}

std::string where(const Module &m, const Instruction &i) {
    if (i.file < 0 || i.line <= 0) return "an unknown line";
    return m.files[i.file] + ":" + std::to_string(i.line);
}

Frame *enter_frame(Warp &w, const Function *function, Frame *parent, uint32_t mask) {
    std::unique_ptr<Frame> frame;
    for (size_t k = w.free_frames.size(); k-- > 0;)
        if (w.free_frames[k]->function == function) {
            frame = std::move(w.free_frames[k]);
            w.free_frames.erase(w.free_frames.begin() + static_cast<long>(k));
            break;
        }
    if (!frame) {
        frame = std::make_unique<Frame>();
        frame->function = function;
        frame->storage_bytes = function->frame_bytes + 128;
        frame->storage.reset(new char[frame->storage_bytes]());
        auto base = (reinterpret_cast<uintptr_t>(frame->storage.get()) + 63) & ~uintptr_t{63};
        frame->registers = reinterpret_cast<char *>(base);
        std::memcpy(frame->registers, function->constants.data(), function->constants.size());
    }
    frame->parent = parent;
    frame->depth = parent ? parent->depth + 1 : 0;
    frame->live = mask;
    frame->local_base = parent ? parent->local_base + parent->function->local_bytes : 16;
    if (frame->local_base + function->local_bytes > kLocalStackBytes)
        throw Fault{CA_OUT_OF_BOUNDS_LOCAL, "stack overflow: local memory of a thread exceeds 64 KB (recursion too deep?)",
                    mask ? __builtin_ctz(mask) : 0};
    if (function->local_bytes && !w.local) w.local.reset(new char[size_t{kLanes} * kLocalStackBytes]);
    Frame *raw = frame.get();
    w.frames.push_back(std::move(frame));
    return raw;
}

static void release_frame(Warp &w, Frame *frame) {
    for (size_t k = 0; k < w.frames.size(); ++k)
        if (w.frames[k].get() == frame) {
            w.free_frames.push_back(std::move(w.frames[k]));
            w.frames.erase(w.frames.begin() + static_cast<long>(k));
            return;
        }
}

// Lanes of `mask` have returned from `frame`, which dies with its last lane.
void drop_lanes(Warp &w, Frame *frame, uint32_t mask) {
    frame->live &= ~mask;
    if (frame->live == 0) release_frame(w, frame);
}

// Move the lanes of c.mask out of the running fragment into a parked one.
void split_parked(Context &c, State state, int barrier, uint32_t waits_for, int32_t pc, const Instruction &i) {
    Fragment parked;
    parked.pc = pc;
    parked.mask = c.mask;
    parked.frame = c.frame;
    parked.state = state;
    parked.barrier = barrier;
    parked.waits_for = waits_for;
    parked.parked_at = &i;
    c.fragment->mask &= ~c.mask;
    c.repick = true;
    Warp &w = *c.warp;
    int32_t keep_pc = c.next;
    size_t self = static_cast<size_t>(c.fragment - w.fragments.data());
    w.fragments.push_back(parked);  // may move the vector
    c.fragment = &w.fragments[self];
    c.fragment->pc = keep_pc;
}

static void check_barrier(Block &b, int id) {
    Barrier &bar = b.barriers[id];
    if (bar.arrived == 0) return;
    uint32_t expected = bar.expected ? bar.expected : b.live_threads;
    if (bar.arrived < expected) return;
    for (auto &w : b.warps)
        for (auto &f : w->fragments)
            if (f.state == State::AtBarrier && f.barrier == id) {
                const Instruction &i = *f.parked_at;
                if (i.imm[1]) {  // barrier with reduction: 1 popc, 2 and, 3 or
                    if (i.imm[1] == 1) {
                        auto *d = reinterpret_cast<uint32_t *>(f.frame->registers + i.o[2]);
                        for (int k = 0; k < kLanes; ++k)
                            if ((f.mask >> k) & 1) d[k] = bar.accumulated;
                    } else {
                        auto &p = *reinterpret_cast<uint32_t *>(f.frame->registers + i.o[2]);
                        bool value = i.imm[1] == 2 ? bar.all : bar.any;
                        p = value ? p | f.mask : p & ~f.mask;
                    }
                }
                f.state = State::Ready;
            }
    bar = Barrier{};
}

void arrive_at_barrier(Context &c, const Instruction &i, int id, uint32_t expected, int32_t resume_pc) {
    Block &b = *c.block;
    Barrier &bar = b.barriers[id];
    bar.arrived += static_cast<uint32_t>(__builtin_popcount(c.mask));
    if (expected) bar.expected = expected;
    split_parked(c, State::AtBarrier, id, 0, resume_pc, i);
    check_barrier(b, id);
}

void leave_lanes(Context &c, uint32_t mask) {
    Warp &w = *c.warp;
    Block &b = *c.block;
    w.live &= ~mask;
    b.live_threads -= static_cast<uint32_t>(__builtin_popcount(mask));
    for (Frame *f = c.frame; f;) {
        Frame *parent = f->parent;
        drop_lanes(w, f, mask);
        f = parent;
    }
    c.fragment->mask &= ~mask;
    c.repick = true;
    for (int id = 0; id < 16; ++id) check_barrier(b, id);
}

namespace {

void describe(Context &c, const Instruction &i, const Fault &fault) {
    Launch &l = *c.launch;
    last_fault = ca_fault{};
    last_fault.kind = fault.kind;
    last_fault.address = fault.address;
    last_fault.bytes = fault.bytes;
    last_fault.line = i.line;
    if (i.file >= 0) copy_text(last_fault.file, sizeof last_fault.file, l.module->files[i.file]);
    copy_text(last_fault.kernel, sizeof last_fault.kernel, l.kernel->name);
    std::string text = fault.message;
    if (fault.lane >= 0) {
        for (int k = 0; k < 3; ++k) {
            last_fault.block[k] = static_cast<int32_t>(c.block->index[k]);
            last_fault.thread[k] = static_cast<int32_t>(c.warp->tid[k][fault.lane]);
        }
        char by[128];
        std::snprintf(by, sizeof by, " by thread (%d,%d,%d) of block (%d,%d,%d)", last_fault.thread[0], last_fault.thread[1],
                      last_fault.thread[2], last_fault.block[0], last_fault.block[1], last_fault.block[2]);
        // The message says "@" where line and thread belong.
        std::string place = " at " + where(*l.module, i) + by;
        size_t at = text.find('@');
        if (at != std::string::npos)
            text.replace(at, 1, place);
        else
            text += place;
    }
    copy_text(last_fault.message, sizeof last_fault.message, text);
}

std::mutex fault_mutex;

void report(Context &c, const Instruction &i, const Fault &fault) {
    std::lock_guard<std::mutex> lock(fault_mutex);
    if (!c.launch->stop.exchange(true)) describe(c, i, fault);
}

void merge(Warp &w) {
    auto &fs = w.fragments;
    for (size_t a = 0; a < fs.size(); ++a) {
        if (fs[a].mask == 0 || fs[a].state == State::AtBarrier) continue;
        for (size_t b = a + 1; b < fs.size(); ++b)
            if (fs[b].mask && fs[b].state != State::AtBarrier && fs[a].frame == fs[b].frame && fs[a].pc == fs[b].pc) {
                // Two that wait for different lanes are no help to each other, and would wait again for ever.
                bool both_wait = fs[a].state == State::AtWarpSync && fs[b].state == State::AtWarpSync;
                if (both_wait && ((fs[a].waits_for ^ fs[b].waits_for) & w.live)) continue;
                fs[a].mask |= fs[b].mask;
                fs[a].state = State::Ready;
                fs[b].mask = 0;
            }
    }
    fs.erase(std::remove_if(fs.begin(), fs.end(), [](const Fragment &f) { return f.mask == 0; }), fs.end());
}

// Fragments that wait for lanes which have exited since, or which all stand at a __syncwarp, may go on.
bool release_warp_waits(Warp &w) {
    bool any = false;
    uint32_t at_syncwarp = 0;
    for (auto &f : w.fragments)
        if (f.state == State::AtWarpSync) {
            if ((f.waits_for & w.live & ~f.mask) == 0) f.state = State::Ready, any = true;
            if (f.parked_at->imm[1] == 1) at_syncwarp |= f.mask;
        }
    if (any) return true;
    for (auto &f : w.fragments)
        if (f.state == State::AtWarpSync && f.parked_at->imm[1] == 1 && (f.waits_for & w.live & ~at_syncwarp) == 0) {
            f.state = State::Ready;
            f.pc += 1;
            any = true;
        }
    return any;
}

Fragment *pick(Warp &w, bool fair) {
    Fragment *best = nullptr;
    for (auto &f : w.fragments) {
        if (f.state != State::Ready) continue;
        if (!best) {
            best = &f;
        } else if (fair ? f.last_run < best->last_run
                        : f.frame->depth > best->frame->depth || (f.frame->depth == best->frame->depth && f.pc < best->pc)) {
            best = &f;
        }
    }
    return best;
}

// Run a warp until nothing in it can go on, or its quantum is over. Returns whether anything ran.
bool run_warp(Context &c, Warp &w) {
    bool ran = false, fair = false;
    uint64_t budget = kQuantum;
    c.warp = &w;
    const Instruction *at = nullptr;
    try {
        while (budget) {
            if (w.fragments.size() > 1) merge(w);
            Fragment *f = pick(w, fair);
            if (!f) {
                if (w.fragments.empty() || !release_warp_waits(w)) break;
                continue;
            }
            fair = false;
            ran = true;
            c.fragment = f;
            c.frame = f->frame;
            c.registers = f->frame->registers;
            c.pc = f->pc;
            c.repick = false;
            const Instruction *code = f->frame->function->code.data();
            int32_t stop = INT32_MAX;  // where another fragment waits to be merged
            for (auto &other : w.fragments)
                if (&other != f && other.frame == f->frame && other.state != State::AtBarrier && other.pc > f->pc)
                    stop = std::min(stop, other.pc);
            // A fragment among several may spin on another: give each a shorter turn.
            uint64_t turn = w.fragments.size() > 1 ? std::min<uint64_t>(budget, 4096) : budget;
            uint64_t left = turn;
            while (left) {
                --left;
                const Instruction &in = code[c.pc];
                uint32_t mask = c.fragment->mask;
                if (in.guard >= 0) {
                    uint32_t p = c.predicate(in.guard);
                    mask &= in.guard_negated ? ~p : p;
                }
                c.next = c.pc + 1;
                if (mask) {
                    c.mask = mask;
                    at = &in;
                    in.run(c, in);
                }
                c.pc = c.next;
                if (c.repick || c.pc == stop) break;
            }
            uint64_t used = turn - left;
            budget -= used;
            w.instructions += used;
            if (!c.repick && c.pc != stop) fair = true;
            if (!c.repick || c.fragment->mask) c.fragment->pc = c.pc;
            c.fragment->last_run = ++w.ticks;
            auto &fs = w.fragments;
            fs.erase(std::remove_if(fs.begin(), fs.end(), [](const Fragment &x) { return x.mask == 0; }), fs.end());
        }
    } catch (const Fault &fault) {
        report(c, *at, fault);
    }
    if (c.launch->deadline && now() > c.launch->deadline && !c.launch->stop && !w.fragments.empty()) {
        const Fragment &f = w.fragments.front();
        const Instruction &in = f.frame->function->code[f.pc];
        char text[160];
        std::snprintf(text, sizeof text, "the launch used up its %.0f s on the emulated device (an endless loop?); it was", time_limit);
        report(c, in, Fault{CA_TIMEOUT, text, __builtin_ctz(f.mask)});
    }
    return ran;
}

void start_block(Block &b, Launch &l, uint64_t linear) {
    b.launch = &l;
    b.linear = linear;
    b.done = false;
    b.index[0] = static_cast<uint32_t>(linear % l.grid[0]);
    b.index[1] = static_cast<uint32_t>(linear / l.grid[0] % l.grid[1]);
    b.index[2] = static_cast<uint32_t>(linear / l.grid[0] / l.grid[1]);
    uint32_t threads = l.block[0] * l.block[1] * l.block[2];
    uint32_t warps = (threads + kLanes - 1) / kLanes;
    b.live_threads = threads;
    for (auto &bar : b.barriers) bar = Barrier{};
    uint32_t bytes = ((l.kernel->static_shared_bytes + 15) & ~15u) + l.dynamic_shared;
    if (b.shared_storage.size() < bytes + 256) b.shared_storage.resize(bytes + 256);
    b.shared = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(b.shared_storage.data()) + 127) & ~uintptr_t{127});
    b.shared_bytes = bytes;
    std::memset(b.shared, kPoisonByte, bytes);
    b.warps.resize(warps);
    for (uint32_t k = 0; k < warps; ++k) {
        if (!b.warps[k]) b.warps[k] = std::make_unique<Warp>();
        Warp &w = *b.warps[k];
        w.index = static_cast<int>(k);
        w.block = &b;
        uint32_t in_warp = std::min<uint32_t>(kLanes, threads - k * kLanes);
        w.live = in_warp == kLanes ? kFull : (1u << in_warp) - 1;
        for (auto &f : w.frames) w.free_frames.push_back(std::move(f));
        w.frames.clear();
        w.fragments.clear();
        w.open_copies.clear();
        w.committed_copies.clear();
        for (int lane = 0; lane < kLanes; ++lane) {
            uint32_t t = k * kLanes + static_cast<uint32_t>(lane);
            w.tid[0][lane] = t % l.block[0];
            w.tid[1][lane] = t / l.block[0] % l.block[1];
            w.tid[2][lane] = t / l.block[0] / l.block[1];
        }
        Fragment f;
        f.pc = 0;
        f.mask = w.live;
        f.frame = enter_frame(w, l.kernel, nullptr, w.live);
        w.fragments.push_back(f);
    }
    b.order.resize(warps);
    for (uint32_t k = 0; k < warps; ++k) b.order[k] = static_cast<int>(l.schedule == 1 ? warps - 1 - k : k);
    if (l.schedule > 1)
        for (uint32_t k = warps; k > 1; --k)
            std::swap(b.order[k - 1], b.order[mix(l.schedule * 0x10001 + linear * 131 + k) % k]);
}

// Say where everybody stands when nobody can go on.
void report_deadlock(Context &c, Block &b) {
    std::map<std::string, uint32_t> places;
    const Instruction *first = nullptr;
    Warp *first_warp = nullptr;
    int lane = 0;
    for (auto &w : b.warps)
        for (auto &f : w->fragments) {
            const Instruction &i = f.parked_at ? *f.parked_at : f.frame->function->code[f.pc];
            const char *what = f.state == State::AtBarrier ? "barrier (__syncthreads)"
                               : i.imm[1] == 1              ? "__syncwarp"
                                                            : "warp-level operation (shuffle, vote, ...)";
            places[std::string(what) + " at " + where(*c.launch->module, i)] += static_cast<uint32_t>(__builtin_popcount(f.mask));
            if (!first) first = &i, first_warp = w.get(), lane = __builtin_ctz(f.mask);
        }
    std::string text = "deadlock: no thread of the block can go on: ";
    bool comma = false;
    for (auto &[place, count] : places) {
        text += (comma ? "; " : "") + std::to_string(count) + " threads wait at the " + place;
        comma = true;
    }
    uint32_t exited = c.launch->block[0] * c.launch->block[1] * c.launch->block[2] - b.live_threads;
    if (exited) text += "; " + std::to_string(exited) + " have exited";
    text += ". Every thread named by a barrier or a mask must reach it. First seen@";
    if (!first) return;
    c.warp = first_warp;
    report(c, *first, Fault{CA_DEADLOCK, text, lane});
}

// Let every warp of a block run once; returns false when the block is finished or stuck.
bool advance_block(Context &c, Block &b) {
    c.block = &b;
    bool ran = false;
    for (int k : b.order) {
        Warp &w = *b.warps[static_cast<size_t>(k)];
        if (w.fragments.empty()) continue;
        ran |= run_warp(c, w);
        if (c.launch->stop) return false;
    }
    if (b.live_threads == 0) return false;
    if (!ran) {
        report_deadlock(c, b);
        return false;
    }
    return true;
}

void run_blocks(Launch &l, Block &b) {
    Context c{};
    c.launch = &l;
    while (!l.stop) {
        uint64_t linear = l.next.fetch_add(1);
        if (linear >= l.blocks) break;
        try {
            start_block(b, l, linear);
        } catch (const Fault &fault) {
            c.block = &b;
            c.warp = b.warps[0].get();
            report(c, l.kernel->code[0], fault);
            break;
        }
        while (advance_block(c, b)) {
        }
    }
    for (auto &w : b.warps)
        if (w) l.instructions += w->instructions, w->instructions = 0;
}

// All blocks of a cooperative launch are resident at once and take turns.
void run_cooperative(Launch &l) {
    Context c{};
    c.launch = &l;
    std::vector<std::unique_ptr<Block>> blocks;
    for (uint64_t k = 0; k < l.blocks; ++k) {
        blocks.push_back(std::make_unique<Block>());
        start_block(*blocks.back(), l, k);
    }
    bool any = true;
    while (any && !l.stop) {
        any = false;
        for (auto &b : blocks)
            if (!b->done) {
                b->done = !advance_block(c, *b);
                any |= !b->done;
                if (l.stop) break;
            }
    }
    for (auto &b : blocks)
        for (auto &w : b->warps) l.instructions += w->instructions;
}

// Threads that outlive launches; started at the first launch, so that a fork before it is safe.
class Pool {
   public:
    explicit Pool(int threads) {
        for (int k = 0; k < threads; ++k) workers_.emplace_back([this] { work(); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            quit_ = true;
        }
        wake_.notify_all();
        for (auto &t : workers_) t.join();
    }
    void run(const std::function<void()> &job) {
        std::unique_lock<std::mutex> lock(mutex_);
        job_ = &job;
        ++generation_;
        busy_ = workers_.size();
        wake_.notify_all();
        lock.unlock();
        job();
        lock.lock();
        idle_.wait(lock, [this] { return busy_ == 0; });
        job_ = nullptr;
    }

   private:
    void work() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return quit_ || generation_ != seen; });
            if (quit_) return;
            seen = generation_;
            const auto *job = job_;
            lock.unlock();
            (*job)();
            lock.lock();
            if (--busy_ == 0) idle_.notify_all();
        }
    }
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    const std::function<void()> *job_ = nullptr;
    uint64_t generation_ = 0;
    size_t busy_ = 0;
    bool quit_ = false;
    std::vector<std::thread> workers_;
};

Pool *pool = nullptr;  // never destroyed: threads may outlive static destruction
int pool_threads = 0;

}  // namespace

}  // namespace ca

using namespace ca;

struct ca_module : Module {};

int ca_op(const char *name) {
    ensure_operations();
    auto found = operation_index().find(name);
    return found == operation_index().end() ? -1 : found->second;
}
int ca_op_count(void) {
    ensure_operations();
    return static_cast<int>(operations().size());
}
const char *ca_op_name(int op) { return operations()[static_cast<size_t>(op)].name.c_str(); }

ca_module *ca_module_new(void) {
    ensure_operations();
    return new ca_module;
}
void ca_module_free(ca_module *module) {
    for (auto &[name, v] : module->variables) ca_range_remove(reinterpret_cast<void *>(v.address));
    delete module;
}
int ca_module_file(ca_module *module, const char *name) {
    module->files.emplace_back(name);
    return static_cast<int>(module->files.size()) - 1;
}
uint64_t ca_module_variable(ca_module *module, const char *name, const void *init, uint64_t bytes, uint64_t align,
                            int read_only) {
    (void)read_only;  // constants are written by cudaMemcpyToSymbol; kernels can't name a store to them
    Module::Variable v;
    align = std::max<uint64_t>(align, 16);
    v.storage.reset(new char[bytes + align + 16]());
    v.address = (reinterpret_cast<uint64_t>(v.storage.get()) + align - 1) / align * align;
    v.bytes = bytes;
    if (init) std::memcpy(reinterpret_cast<void *>(v.address), init, bytes);
    uint64_t address = v.address;
    ca_range_add(name, reinterpret_cast<void *>(address), bytes, 0);
    module->variables[name] = std::move(v);
    return address;
}
uint64_t ca_module_find_variable(ca_module *module, const char *name, uint64_t *bytes) {
    auto found = module->variables.find(name);
    if (found == module->variables.end()) return 0;
    if (bytes) *bytes = found->second.bytes;
    return found->second.address;
}
static void read_slots(std::vector<Slot> &to, const int32_t *slots, uint32_t count) {
    for (uint32_t k = 0; k < count; ++k) to.push_back({slots[2 * k], slots[2 * k + 1]});
}
int ca_module_function(ca_module *module, const char *name, int is_kernel, const ca_instruction *code, uint32_t count,
                       const void *constants, uint32_t constant_bytes, uint32_t frame_bytes, uint32_t local_bytes,
                       uint32_t static_shared_bytes, const ca_parameters *parameters, const int32_t *slots,
                       uint32_t parameter_slots, uint32_t return_slots, const char *unsupported) {
    module->functions.emplace_back();
    Function &f = module->functions.back();
    f.name = name;
    f.is_kernel = is_kernel != 0;
    f.unsupported = unsupported ? unsupported : "";
    f.code.resize(count);
    for (uint32_t k = 0; k < count; ++k) {
        const ca_instruction &from = code[k];
        Instruction &to = f.code[k];
        to.op = from.op;
        to.run = operations()[static_cast<size_t>(from.op)].run;
        to.guard = from.guard;
        to.guard_negated = from.guard_negated != 0;
        to.file = static_cast<int16_t>(from.file);
        to.line = from.line;
        std::copy(from.operand, from.operand + 16, to.o);
        to.imm[0] = from.immediate[0];
        to.imm[1] = from.immediate[1];
    }
    f.constants.assign(static_cast<const char *>(constants), static_cast<const char *>(constants) + constant_bytes);
    f.frame_bytes = frame_bytes;
    f.local_bytes = (local_bytes + 15) & ~15u;
    f.static_shared_bytes = static_shared_bytes;
    if (parameters) f.parameters = *parameters;
    read_slots(f.parameter_slots, slots, parameter_slots);
    read_slots(f.return_slots, slots + 2 * parameter_slots, return_slots);
    return static_cast<int>(module->functions.size()) - 1;
}
void ca_module_call(ca_module *module, int function, int target, const int32_t *slots, uint32_t arguments,
                    uint32_t results) {
    CallSite site;
    site.target = target;
    read_slots(site.arguments, slots, arguments);
    read_slots(site.results, slots + 2 * arguments, results);
    module->functions[static_cast<size_t>(function)].calls.push_back(std::move(site));
}
void ca_module_list(ca_module *module, int function, const int32_t *numbers, uint32_t count) {
    module->functions[static_cast<size_t>(function)].lists.emplace_back(numbers, numbers + count);
}
void ca_module_limit_threads(ca_module *module, int function, uint32_t threads) {
    module->functions[static_cast<size_t>(function)].most_threads = std::min<uint32_t>(1024, threads);
}
int ca_module_find_kernel(ca_module *module, const char *name) {
    for (size_t k = 0; k < module->functions.size(); ++k)
        if (module->functions[k].is_kernel && module->functions[k].name == name) return static_cast<int>(k);
    return -1;
}
static Function &function_of(ca_module *module, int kernel) { return module->functions[static_cast<size_t>(kernel)]; }
const ca_parameters *ca_kernel_parameters(ca_module *module, int kernel) { return &function_of(module, kernel).parameters; }
uint32_t ca_kernel_static_shared(ca_module *module, int kernel) { return function_of(module, kernel).static_shared_bytes; }
uint32_t ca_kernel_most_threads(ca_module *module, int kernel) { return function_of(module, kernel).most_threads; }
uint32_t ca_kernel_local_bytes(ca_module *module, int kernel) { return function_of(module, kernel).local_bytes; }
const char *ca_kernel_unsupported(ca_module *module, int kernel) {
    const Function &f = function_of(module, kernel);
    return f.unsupported.empty() ? nullptr : f.unsupported.c_str();
}

int ca_launch(ca_module *module, int kernel, const uint32_t grid[3], const uint32_t block[3], const void *parameters,
              uint32_t dynamic_shared_bytes, int cooperative) {
    const Function &f = function_of(module, kernel);
    if (!f.unsupported.empty()) {
        ca_set_fault(CA_UNSUPPORTED, f.name.c_str(), f.unsupported.c_str());
        return CA_UNSUPPORTED;
    }
    ++launches;
    if (idle_device) return CA_OK;
    Launch l;
    l.module = module;
    l.kernel = &f;
    l.blocks = 1;
    for (int k = 0; k < 3; ++k) {
        l.grid[k] = grid[k];
        l.block[k] = block[k];
        l.blocks *= grid[k];
    }
    l.parameters.assign(static_cast<const char *>(parameters), static_cast<const char *>(parameters) + f.parameters.bytes);
    l.dynamic_shared = dynamic_shared_bytes;
    l.schedule = schedule_seed;
    l.cooperative = cooperative != 0;
    l.deadline = time_limit > 0 ? now() + time_limit : 0;
    std::vector<uint64_t> workspace(64, 0);
    l.grid_workspace = reinterpret_cast<uint64_t>(workspace.data());
    ca_range_add("grid barrier", workspace.data(), workspace.size() * 8, 0);
    ca_range_add("kernel parameters", l.parameters.data(), l.parameters.size(), 1);
    ca_range_forget_removed();
    last_fault = ca_fault{};
    if (cooperative) {
        run_cooperative(l);
    } else {
        int cores = thread_setting > 0 ? thread_setting : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        uint64_t threads = l.blocks * block[0] * block[1] * block[2];
        static thread_local Block mine;
        if (cores == 1 || l.blocks == 1 || threads < 2048) {
            run_blocks(l, mine);
        } else {
            if (!pool || pool_threads != cores - 1) {
                delete pool;
                pool = new Pool(cores - 1);
                pool_threads = cores - 1;
            }
            pool->run([&l] {
                static thread_local Block own;
                run_blocks(l, own);
            });
        }
    }
    instructions += l.instructions;
    ca_range_remove(workspace.data());
    ca_range_remove(l.parameters.data());
    return last_fault.kind;
}

const ca_fault *ca_last_fault(void) { return last_fault.kind ? &last_fault : nullptr; }
void ca_clear_fault(void) { last_fault = ca_fault{}; }
void ca_set_fault(int kind, const char *kernel, const char *message) {
    last_fault = ca_fault{};
    last_fault.kind = kind;
    copy_text(last_fault.kernel, sizeof last_fault.kernel, kernel);
    copy_text(last_fault.message, sizeof last_fault.message, message);
}
void ca_set_schedule(uint64_t seed) { schedule_seed = seed; }
void ca_set_threads(int threads) { thread_setting = threads; }
void ca_set_time_limit(double seconds) { time_limit = seconds; }
void ca_set_idle(int idle) { idle_device = idle != 0; }
uint64_t ca_counter_launches(void) { return launches; }
uint64_t ca_counter_instructions(void) { return instructions; }

// Memory: valid ranges and their faults, loads, stores and asynchronous copies.
#include "machine.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

namespace ca {

namespace {

// Sorted by base. Ranges live until the next launch after their removal, because running warps cache pointers to them.
struct Ranges {
    std::vector<std::unique_ptr<Range>> sorted;
    std::vector<std::unique_ptr<Range>> removed;
    std::shared_mutex mutex;
};

Ranges &ranges() {
    static auto *all = new Ranges;
    return *all;
}

auto position(Ranges &r, uint64_t base) {
    return std::lower_bound(r.sorted.begin(), r.sorted.end(), base,
                            [](const std::unique_ptr<Range> &x, uint64_t b) { return x->base < b; });
}

void remove_locked(Ranges &r, uint64_t base) {
    auto at = position(r, base);
    if (at == r.sorted.end() || (*at)->base != base) return;
    (*at)->base = (*at)->end = 0;
    r.removed.push_back(std::move(*at));
    r.sorted.erase(at);
}

}  // namespace

const Range *find_range(uint64_t address, uint64_t bytes, bool write) {
    Ranges &r = ranges();
    std::shared_lock<std::shared_mutex> lock(r.mutex);
    auto at = std::upper_bound(r.sorted.begin(), r.sorted.end(), address,
                               [](uint64_t a, const std::unique_ptr<Range> &x) { return a < x->base; });
    // Ranges may nest (a view registered beside its storage): look a few back.
    const Range *found = nullptr;
    for (int k = 0; k < 16 && at != r.sorted.begin(); ++k) {
        --at;
        if (address < (*at)->base || address + bytes > (*at)->end) continue;
        if (!write || !(*at)->read_only) return at->get();
        found = at->get();
    }
    return found;
}

static std::string access(uint32_t bytes, bool write) {
    return std::string(write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes@";
}

void bad_global(const Context &, uint64_t address, uint32_t bytes, bool write, int lane) {
    Ranges &r = ranges();
    std::string what = "out-of-bounds global " + access(bytes, write) + ": ";
    if (address < 4096) throw Fault{CA_OUT_OF_BOUNDS_GLOBAL, what + "a null pointer plus " + std::to_string(address) + " bytes", lane, address, bytes};
    if (address > ~uint64_t{4095}) throw Fault{CA_OUT_OF_BOUNDS_GLOBAL, what + "a null pointer minus " + std::to_string(-address) + " bytes", lane, address, bytes};
    std::shared_lock<std::shared_mutex> lock(r.mutex);
    const Range *near = nullptr;
    uint64_t best = ~0ull;
    bool before = false;
    for (auto &x : r.sorted) {
        if (x->name == "kernel parameters" || x->name == "grid barrier") continue;
        if (address >= x->base && address < x->end) {
            near = x.get();
            best = 0;
            before = false;
            break;
        }
        uint64_t distance = address >= x->end ? address - x->end : x->base - address;
        if (distance < best) best = distance, near = x.get(), before = address < x->base;
    }
    if (near && best < (1ull << 40)) {
        uint64_t size = near->end - near->base;
        if (best == 0 && address < near->end)
            what += std::to_string(address + bytes - near->end) + " of them past the end of '" + near->name + "'";
        else if (before)
            what += std::to_string(near->base - address) + " bytes before the start of '" + near->name + "'";
        else
            what += std::to_string(best) + " bytes past the end of '" + near->name + "'";
        what += " (" + std::to_string(size) + " bytes)";
    } else {
        what += "the address belongs to no tensor or allocation";
    }
    throw Fault{CA_OUT_OF_BOUNDS_GLOBAL, what, lane, address, bytes};
}

void misaligned(uint64_t address, uint32_t bytes, bool write, const char *space, int lane) {
    throw Fault{CA_MISALIGNED,
                std::string("misaligned ") + space + " " + access(bytes, write) + ": the address must be a multiple of " +
                    std::to_string(bytes) + ", it is " + std::to_string(address % bytes) + " bytes beyond one",
                lane, address, bytes};
}

static void write_to_read_only(const Range &r, uint64_t address, uint32_t bytes, int lane) {
    throw Fault{CA_READ_ONLY, "global " + access(bytes, true) + ": '" + r.name + "' is passed as a const pointer, so it must not be written",
                lane, address, bytes};
}

char *shared_at(const Context &c, uint64_t offset, uint32_t bytes, bool write, int lane) {
    if (offset + bytes > c.block->shared_bytes || offset + bytes < offset) {
        // 32-bit addresses wrap: an offset just below 2^32 is one before the start.
        int64_t shown = offset >> 31 == 1 ? static_cast<int32_t>(offset) : static_cast<int64_t>(offset);
        throw Fault{CA_OUT_OF_BOUNDS_SHARED,
                    "out-of-bounds shared " + access(bytes, write) + ": offset " + std::to_string(shown) + ", the block has " + std::to_string(c.block->shared_bytes) + " bytes of shared memory",
                    lane, offset, bytes};
    }
    if (offset % bytes) misaligned(offset, bytes, write, "shared", lane);
    return c.block->shared + offset;
}

char *local_at(const Context &c, uint64_t offset, uint32_t bytes, bool write, int lane) {
    uint64_t top = c.frame->local_base + c.frame->function->local_bytes;
    if (offset + bytes > top || offset < 16 || offset + bytes < offset)
        throw Fault{CA_OUT_OF_BOUNDS_LOCAL,
                    "out-of-bounds local " + access(bytes, write) + ": beyond the thread's own variables (an array index is out of range)",
                    lane, offset, bytes};
    if (offset % bytes) misaligned(offset, bytes, write, "local", lane);
    return c.warp->local.get() + static_cast<size_t>(lane) * kLocalStackBytes + offset;
}

// A pointer that has run off either end of shared or local memory still belongs to it.
static bool tagged(uint64_t address, uint64_t tag) { return address - tag + (1ull << 32) < (1ull << 33); }

char *generic_at(const Context &c, uint64_t address, uint32_t bytes, bool write, int lane) {
    if (tagged(address, kSharedTag)) return shared_at(c, address - kSharedTag, bytes, write, lane);
    if (tagged(address, kLocalTag)) return local_at(c, address - kLocalTag, bytes, write, lane);
    const Range *r = find_range(address, bytes, write);
    if (!r) bad_global(c, address, bytes, write, lane);
    if (write && r->read_only) write_to_read_only(*r, address, bytes, lane);
    if (address % bytes) misaligned(address, bytes, write, "global", lane);
    return reinterpret_cast<char *>(address);
}

namespace {

// Check all lanes' accesses; on return every active lane may touch its bytes in global memory.
// Returns false when some address is tagged, so that lanes must be served one by one.
inline bool check_global(Context &c, const Instruction &i, const uint64_t *address, int64_t shift, uint32_t bytes, bool write) {
    uint64_t low = ~0ull, high = 0, all = 0;
    if (c.mask == kFull) {
        for (int k = 0; k < kLanes; ++k) {
            uint64_t a = address[k] + static_cast<uint64_t>(shift);
            low = a < low ? a : low;
            high = a > high ? a : high;
            all |= a;
        }
    } else {
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            uint64_t a = address[k] + static_cast<uint64_t>(shift);
            low = a < low ? a : low;
            high = a > high ? a : high;
            all |= a;
        }
    }
    if (all & kTagMask) return false;
    const Range *&cached = c.range_cache[(reinterpret_cast<uintptr_t>(&i) / sizeof(Instruction)) & 63];
    const Range *r = cached;
    if (!(r && low >= r->base && high + bytes <= r->end)) {
        r = find_range(low, high - low + bytes, write);
        if (r) cached = r;
    }
    if (!r || (write && r->read_only) || (all & (bytes - 1))) {
        for (int k = 0; k < kLanes; ++k)
            if ((c.mask >> k) & 1) generic_at(c, address[k] + static_cast<uint64_t>(shift), bytes, write, k);
    }
    return true;
}

inline bool consecutive(const uint64_t *address, uint64_t stride) {
    uint64_t bad = 0;
    for (int k = 0; k < kLanes; ++k) bad |= address[k] ^ (address[0] + static_cast<uint64_t>(k) * stride);
    return bad == 0;
}

template <class M, class R> inline R widen(M v) { return static_cast<R>(static_cast<std::conditional_t<std::is_signed_v<M>, std::make_signed_t<R>, R>>(v)); }

template <class M, class R, int V> void load_global(Context &c, const Instruction &i) {
    const uint64_t *address = c.at<uint64_t>(i.o[8]);
    int64_t shift = i.imm[0];
    constexpr uint32_t bytes = sizeof(M) * V;
    if (check_global(c, i, address, shift, bytes, false)) {
        if (c.mask == kFull && consecutive(address, bytes)) {
            const char *from = reinterpret_cast<const char *>(address[0] + static_cast<uint64_t>(shift));
            if constexpr (V == 1 && sizeof(M) == sizeof(R)) {
                std::memcpy(c.at<R>(i.o[0]), from, sizeof(R) * kLanes);
            } else {
                for (int v = 0; v < V; ++v) {
                    R r[kLanes];
                    for (int k = 0; k < kLanes; ++k) {
                        M m;
                        std::memcpy(&m, from + (static_cast<size_t>(k) * V + static_cast<size_t>(v)) * sizeof(M), sizeof(M));
                        r[k] = widen<M, R>(m);
                    }
                    if (i.o[v] >= 0) std::memcpy(c.at<R>(i.o[v]), r, sizeof r);
                }
            }
            return;
        }
        // Read all components before writing any: the address register may be one of the destinations.
        R r[V][kLanes];
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            const char *from = reinterpret_cast<const char *>(address[k] + static_cast<uint64_t>(shift));
            for (int v = 0; v < V; ++v) {
                M m;
                std::memcpy(&m, from + static_cast<size_t>(v) * sizeof(M), sizeof(M));
                r[v][k] = widen<M, R>(m);
            }
        }
        for (int v = 0; v < V; ++v)
            if (i.o[v] >= 0) blend(c.at<R>(i.o[v]), r[v], c.mask);
        return;
    }
    R r[V][kLanes];
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        const char *from = generic_at(c, address[k] + static_cast<uint64_t>(shift), bytes, false, k);
        for (int v = 0; v < V; ++v) {
            M m;
            std::memcpy(&m, from + static_cast<size_t>(v) * sizeof(M), sizeof(M));
            r[v][k] = widen<M, R>(m);
        }
    }
    for (int v = 0; v < V; ++v)
        if (i.o[v] >= 0) blend(c.at<R>(i.o[v]), r[v], c.mask);
}

template <class M, class R, int V> void store_global(Context &c, const Instruction &i) {
    const uint64_t *address = c.at<uint64_t>(i.o[8]);
    int64_t shift = i.imm[0];
    constexpr uint32_t bytes = sizeof(M) * V;
    bool direct = check_global(c, i, address, shift, bytes, true);
    if (direct && c.mask == kFull && consecutive(address, bytes)) {
        char *to = reinterpret_cast<char *>(address[0] + static_cast<uint64_t>(shift));
        if constexpr (V == 1 && sizeof(M) == sizeof(R)) {
            std::memcpy(to, c.at<R>(i.o[0]), sizeof(R) * kLanes);
        } else {
            for (int v = 0; v < V; ++v) {
                const R *from = c.at<R>(i.o[v]);
                for (int k = 0; k < kLanes; ++k) {
                    M m = static_cast<M>(from[k]);
                    std::memcpy(to + (static_cast<size_t>(k) * V + static_cast<size_t>(v)) * sizeof(M), &m, sizeof(M));
                }
            }
        }
        return;
    }
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint64_t a = address[k] + static_cast<uint64_t>(shift);
        char *to = direct ? reinterpret_cast<char *>(a) : generic_at(c, a, bytes, true, k);
        for (int v = 0; v < V; ++v) {
            M m = static_cast<M>(c.at<R>(i.o[v])[k]);
            std::memcpy(to + static_cast<size_t>(v) * sizeof(M), &m, sizeof(M));
        }
    }
}

// Shared addresses come as 32- or 64-bit registers (A); o[8] is -1 for an absolute address.
template <class A> inline void shared_offsets(const Context &c, const Instruction &i, uint64_t *out) {
    if (i.o[8] < 0) {
        for (int k = 0; k < kLanes; ++k) out[k] = static_cast<uint64_t>(i.imm[0]);
    } else {
        const A *a = c.at<A>(i.o[8]);
        for (int k = 0; k < kLanes; ++k) out[k] = (static_cast<uint64_t>(a[k]) + static_cast<uint64_t>(i.imm[0])) & (sizeof(A) == 4 ? 0xffffffffull : ~0ull);
    }
}

inline void check_shared(const Context &c, const uint64_t *offset, uint32_t bytes, bool write) {
    uint64_t high = 0, all = 0;
    for (int k = 0; k < kLanes; ++k) {
        uint64_t a = (c.mask >> k) & 1 ? offset[k] : 0;
        high = a > high ? a : high;
        all |= a;
    }
    if (high + bytes > c.block->shared_bytes || (all & (bytes - 1)) || high + bytes < high)
        for (int k = 0; k < kLanes; ++k)
            if ((c.mask >> k) & 1) shared_at(c, offset[k], bytes, write, k);
}

template <class M, class R, int V, class A> void load_shared(Context &c, const Instruction &i) {
    uint64_t offset[kLanes];
    shared_offsets<A>(c, i, offset);
    check_shared(c, offset, sizeof(M) * V, false);
    R r[V][kLanes];
    const char *base = c.block->shared;
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        for (int v = 0; v < V; ++v) {
            M m;
            std::memcpy(&m, base + offset[k] + static_cast<size_t>(v) * sizeof(M), sizeof(M));
            r[v][k] = widen<M, R>(m);
        }
    }
    for (int v = 0; v < V; ++v)
        if (i.o[v] >= 0) blend(c.at<R>(i.o[v]), r[v], c.mask);
}

template <class M, class R, int V, class A> void store_shared(Context &c, const Instruction &i) {
    uint64_t offset[kLanes];
    shared_offsets<A>(c, i, offset);
    check_shared(c, offset, sizeof(M) * V, true);
    char *base = c.block->shared;
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        for (int v = 0; v < V; ++v) {
            M m = static_cast<M>(c.at<R>(i.o[v])[k]);
            std::memcpy(base + offset[k] + static_cast<size_t>(v) * sizeof(M), &m, sizeof(M));
        }
    }
}

// Local memory: o[8] is an address register, or -1 with o[9] an offset in the frame's own local variables.
template <class A> inline uint64_t local_offset(const Context &c, const Instruction &i, int lane) {
    if (i.o[8] < 0) return c.frame->local_base + static_cast<uint64_t>(i.imm[0]);
    return (static_cast<uint64_t>(c.at<A>(i.o[8])[lane]) + static_cast<uint64_t>(i.imm[0])) & (sizeof(A) == 4 ? 0xffffffffull : ~0ull);
}

template <class M, class R, int V, class A> void load_local(Context &c, const Instruction &i) {
    R r[V][kLanes];
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        const char *from = local_at(c, local_offset<A>(c, i, k), sizeof(M) * V, false, k);
        for (int v = 0; v < V; ++v) {
            M m;
            std::memcpy(&m, from + static_cast<size_t>(v) * sizeof(M), sizeof(M));
            r[v][k] = widen<M, R>(m);
        }
    }
    for (int v = 0; v < V; ++v)
        if (i.o[v] >= 0) blend(c.at<R>(i.o[v]), r[v], c.mask);
}

template <class M, class R, int V, class A> void store_local(Context &c, const Instruction &i) {
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        char *to = local_at(c, local_offset<A>(c, i, k), sizeof(M) * V, true, k);
        for (int v = 0; v < V; ++v) {
            M m = static_cast<M>(c.at<R>(i.o[v])[k]);
            std::memcpy(to + static_cast<size_t>(v) * sizeof(M), &m, sizeof(M));
        }
    }
}

// Kernel parameters are the same for all lanes.
template <class M, class R, int V> void load_parameter(Context &c, const Instruction &i) {
    const auto &p = c.launch->parameters;
    uint64_t offset = static_cast<uint64_t>(i.imm[0]);
    if (offset + sizeof(M) * V > p.size()) throw Fault{CA_ILLEGAL, "kernel parameter read beyond the parameters", __builtin_ctz(c.mask)};
    for (int v = 0; v < V; ++v) {
        if (i.o[v] < 0) continue;
        M m;
        std::memcpy(&m, p.data() + offset + static_cast<size_t>(v) * sizeof(M), sizeof(M));
        R r[kLanes];
        for (int k = 0; k < kLanes; ++k) r[k] = widen<M, R>(m);
        blend(c.at<R>(i.o[v]), r, c.mask);
    }
}

// Parameter slots of device functions and call sites lie in the frame, one piece a lane: o[8] start, o[9] bytes a lane.
template <class M, class R, int V> void load_slot(Context &c, const Instruction &i) {
    for (int v = 0; v < V; ++v)
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1) || i.o[v] < 0) continue;
            M m;
            std::memcpy(&m, c.registers + i.o[8] + static_cast<ptrdiff_t>(k) * i.o[9] + i.imm[0] + v * static_cast<int>(sizeof(M)), sizeof(M));
            c.at<R>(i.o[v])[k] = widen<M, R>(m);
        }
}

template <class M, class R, int V> void store_slot(Context &c, const Instruction &i) {
    for (int v = 0; v < V; ++v)
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            M m = static_cast<M>(c.at<R>(i.o[v])[k]);
            std::memcpy(c.registers + i.o[8] + static_cast<ptrdiff_t>(k) * i.o[9] + i.imm[0] + v * static_cast<int>(sizeof(M)), &m, sizeof(M));
        }
}

template <class M, class R, int V> void add_accesses(const std::string &type, const std::string &reg) {
    std::string tail = "." + type + "." + reg + ".v" + std::to_string(V);
    add_operation("ld.global" + tail, load_global<M, R, V>);
    add_operation("ld.shared.a32" + tail, load_shared<M, R, V, uint32_t>);
    add_operation("ld.shared.a64" + tail, load_shared<M, R, V, uint64_t>);
    add_operation("ld.local.a32" + tail, load_local<M, R, V, uint32_t>);
    add_operation("ld.local.a64" + tail, load_local<M, R, V, uint64_t>);
    add_operation("ld.param" + tail, load_parameter<M, R, V>);
    add_operation("ld.slot" + tail, load_slot<M, R, V>);
    if constexpr (!std::is_signed_v<M>) {
        add_operation("st.global" + tail, store_global<M, R, V>);
        add_operation("st.shared.a32" + tail, store_shared<M, R, V, uint32_t>);
        add_operation("st.shared.a64" + tail, store_shared<M, R, V, uint64_t>);
        add_operation("st.local.a32" + tail, store_local<M, R, V, uint32_t>);
        add_operation("st.local.a64" + tail, store_local<M, R, V, uint64_t>);
        add_operation("st.slot" + tail, store_slot<M, R, V>);
    }
}

template <class M, class R> void add_vectors(const std::string &type, const std::string &reg) {
    add_accesses<M, R, 1>(type, reg);
    add_accesses<M, R, 2>(type, reg);
    if constexpr (sizeof(M) <= 4) add_accesses<M, R, 4>(type, reg);
}

// cp.async: o0 shared address (A), o1 global address, o2 source bytes or -1; imm0 bytes, imm1 = shared displacement.
template <class A> void cp_async(Context &c, const Instruction &i) {
    const A *to = c.at<A>(i.o[0]);
    const uint64_t *from = c.at<uint64_t>(i.o[1]);
    uint32_t bytes = static_cast<uint32_t>(i.imm[0]);
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint32_t filled = i.o[2] >= 0 ? c.at<uint32_t>(i.o[2])[k] : bytes;
        if (filled > bytes) filled = bytes;
        uint64_t shared = static_cast<uint64_t>(to[k]) + static_cast<uint64_t>(i.imm[1]);
        uint64_t source = from[k] + static_cast<uint64_t>(static_cast<int64_t>(i.o[3]));
        shared_at(c, shared, bytes, true, k);
        if (filled == bytes) {
            generic_at(c, source, bytes, false, k);
        } else if (filled) {
            for (uint32_t b = 0; b < filled; ++b) generic_at(c, source + b, 1, false, k);
        }
        c.warp->open_copies.push_back({static_cast<uint32_t>(shared), source, bytes, filled});
    }
}

void cp_async_commit(Context &c, const Instruction &) {
    c.warp->committed_copies.push_back(std::move(c.warp->open_copies));
    c.warp->open_copies.clear();
}

void run_copies(Context &c, std::vector<AsyncCopy> &copies) {
    for (auto &x : copies) {
        std::memcpy(c.block->shared + x.shared, reinterpret_cast<void *>(x.source), x.filled);
        if (x.filled < x.bytes) std::memset(c.block->shared + x.shared + x.filled, 0, x.bytes - x.filled);
    }
    copies.clear();
}

// imm0: groups that may stay pending; -1 waits for everything, also what is not committed.
void cp_async_wait(Context &c, const Instruction &i) {
    if (i.imm[0] < 0) {
        finish_async_copies(c, 0);
        return;
    }
    auto &groups = c.warp->committed_copies;
    while (groups.size() > static_cast<size_t>(i.imm[0])) {
        run_copies(c, groups.front());
        groups.erase(groups.begin());
    }
}

}  // namespace

// Copies become visible only when waited for, so that a missing wait shows.
void finish_async_copies(Context &c, size_t keep_groups) {
    auto &groups = c.warp->committed_copies;
    while (groups.size() > keep_groups) {
        run_copies(c, groups.front());
        groups.erase(groups.begin());
    }
    if (keep_groups == 0) run_copies(c, c.warp->open_copies);
}

void add_memory_operations() {
    add_vectors<uint8_t, uint16_t>("u8", "r16");
    add_vectors<uint8_t, uint32_t>("u8", "r32");
    add_vectors<uint8_t, uint64_t>("u8", "r64");
    add_vectors<int8_t, uint16_t>("s8", "r16");
    add_vectors<int8_t, uint32_t>("s8", "r32");
    add_vectors<int8_t, uint64_t>("s8", "r64");
    add_vectors<uint16_t, uint16_t>("u16", "r16");
    add_vectors<uint16_t, uint32_t>("u16", "r32");
    add_vectors<uint16_t, uint64_t>("u16", "r64");
    add_vectors<int16_t, uint32_t>("s16", "r32");
    add_vectors<int16_t, uint64_t>("s16", "r64");
    add_vectors<uint32_t, uint32_t>("u32", "r32");
    add_vectors<uint32_t, uint64_t>("u32", "r64");
    add_vectors<int32_t, uint64_t>("s32", "r64");
    add_vectors<uint64_t, uint64_t>("u64", "r64");
    add_operation("cp.async.a32", cp_async<uint32_t>);
    add_operation("cp.async.a64", cp_async<uint64_t>);
    add_operation("cp.async.commit", cp_async_commit);
    add_operation("cp.async.wait", cp_async_wait);
}

}  // namespace ca

using namespace ca;

void ca_range_add(const char *name, const void *base, uint64_t bytes, int read_only) {
    Ranges &r = ranges();
    std::unique_lock<std::shared_mutex> lock(r.mutex);
    auto address = reinterpret_cast<uint64_t>(base);
    if (bytes == 0) return;
    auto at = position(r, address);
    if (at != r.sorted.end() && (*at)->base == address) {
        // The same tensor passed twice: what one argument may do, the address may.
        (*at)->end = std::max((*at)->end, address + bytes);
        (*at)->read_only = (*at)->read_only && read_only != 0;
        return;
    }
    r.sorted.insert(at, std::make_unique<Range>(Range{address, address + bytes, read_only != 0, name}));
}
void ca_range_remove(const void *base) {
    Ranges &r = ranges();
    std::unique_lock<std::shared_mutex> lock(r.mutex);
    remove_locked(r, reinterpret_cast<uint64_t>(base));
}
void ca_range_forget_removed(void) {
    Ranges &r = ranges();
    std::unique_lock<std::shared_mutex> lock(r.mutex);
    r.removed.clear();
}
int ca_range_contains(const void *base, uint64_t bytes) {
    return find_range(reinterpret_cast<uint64_t>(base), bytes) != nullptr;
}

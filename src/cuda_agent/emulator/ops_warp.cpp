// Operations between the lanes of a warp, and special registers.
#include <algorithm>
#include <chrono>

#include "machine.h"

namespace ca {
namespace {

constexpr uint32_t kPoison = 0xFEFEFEFEu;  // what a shuffle reads from a lane that takes no part

uint64_t now_ns() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Run `body` for every group of lanes that name the same mask, once all live lanes of that mask are here; the
// others wait. `masks` is the operand that holds the member mask of each lane.
template <class F> void together(Context &c, const Instruction &i, const uint32_t *masks, F body) {
    uint32_t left = c.mask;
    while (left) {
        int lane = __builtin_ctz(left);
        uint32_t members = masks[lane], group = 0;
        for (int k = 0; k < kLanes; ++k)
            if ((left >> k) & 1 && masks[k] == members) group |= 1u << k;
        left &= ~group;
        if (group & ~members)
            throw Fault{CA_ILLEGAL, "a lane runs a warp-level operation whose member mask does not name it; it does so", __builtin_ctz(group & ~members)};
        uint32_t needed = members & c.warp->live;
        c.mask = group;
        if (needed & ~group) {
            split_parked(c, State::AtWarpSync, 0, needed, c.pc, i);
        } else {
            body(members);
        }
    }
}

// o0 result, o1 predicate or -1, o2 source, o3 offset, o4 clamp and segment, o5 members. Mode 0 up, 1 down, 2 bfly, 3 idx.
template <int Mode> void shuffle(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[5]), [&](uint32_t) {
        const uint32_t *a = c.at<uint32_t>(i.o[2]), *b = c.at<uint32_t>(i.o[3]), *x = c.at<uint32_t>(i.o[4]);
        uint32_t r[kLanes], p = 0;
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            int lane = k, offset = static_cast<int>(b[k] & 31), clamp = static_cast<int>(x[k] & 31), segment = static_cast<int>((x[k] >> 8) & 31);
            int top = (lane & segment) | (clamp & ~segment), bottom = lane & segment;
            int from = Mode == 0 ? lane - offset : Mode == 1 ? lane + offset : Mode == 2 ? lane ^ offset : bottom | (offset & ~segment);
            bool valid = Mode == 0 ? from >= top : from <= top;
            if (!valid) from = lane;
            r[k] = (c.mask >> from) & 1 ? a[from] : kPoison;
            p |= static_cast<uint32_t>(valid) << k;
        }
        blend(c.at<uint32_t>(i.o[0]), r, c.mask);
        if (i.o[1] >= 0) c.predicate(i.o[1]) = (c.predicate(i.o[1]) & ~c.mask) | (p & c.mask);
    });
}

// o0 result, o1 predicate, o2 members; imm0 negates the predicate. Mode 0 all, 1 any, 2 uni, 3 ballot.
template <int Mode> void vote(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[2]), [&](uint32_t) {
        uint32_t p = c.predicate(i.o[1]);
        if (i.imm[0]) p = ~p;
        uint32_t set = p & c.mask;
        if (Mode == 3) {
            uint32_t r[kLanes];
            std::fill(r, r + kLanes, set);
            blend(c.at<uint32_t>(i.o[0]), r, c.mask);
            return;
        }
        bool v = Mode == 0 ? set == c.mask : Mode == 1 ? set != 0 : set == 0 || set == c.mask;
        c.predicate(i.o[0]) = v ? c.predicate(i.o[0]) | c.mask : c.predicate(i.o[0]) & ~c.mask;
    });
}

// o0 result, o1 predicate or -1, o2 value, o3 members; imm0: 1 for match.all.
template <class T> void match(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[3]), [&](uint32_t) {
        const T *a = c.at<T>(i.o[2]);
        uint32_t r[kLanes] = {}, p = 0;
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            for (int j = 0; j < kLanes; ++j)
                if ((c.mask >> j) & 1 && a[j] == a[k]) r[k] |= 1u << j;
            if (i.imm[0]) {
                if (r[k] == c.mask) p |= 1u << k;
                else r[k] = 0;
            }
        }
        blend(c.at<uint32_t>(i.o[0]), r, c.mask);
        if (i.o[1] >= 0) c.predicate(i.o[1]) = (c.predicate(i.o[1]) & ~c.mask) | p;
    });
}

// o0 result, o1 value, o2 members. imm0: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor.
template <class T> void redux(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[2]), [&](uint32_t) {
        const T *a = c.at<T>(i.o[1]);
        T v = a[__builtin_ctz(c.mask)];
        bool first = true;
        for (int k = 0; k < kLanes; ++k) {
            if (!((c.mask >> k) & 1)) continue;
            if (first) {
                v = a[k];
                first = false;
                continue;
            }
            switch (i.imm[0]) {
                case 0: v = static_cast<T>(static_cast<uint32_t>(v) + static_cast<uint32_t>(a[k])); break;
                case 1: v = std::min(v, a[k]); break;
                case 2: v = std::max(v, a[k]); break;
                case 3: v &= a[k]; break;
                case 4: v |= a[k]; break;
                default: v ^= a[k]; break;
            }
        }
        T r[kLanes];
        std::fill(r, r + kLanes, v);
        blend(c.at<T>(i.o[0]), r, c.mask);
    });
}

void warp_sync(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[0]), [](uint32_t) {});
}

// elect.sync d|p, members: the lowest lane leads.
void elect(Context &c, const Instruction &i) {
    together(c, i, c.at<uint32_t>(i.o[2]), [&](uint32_t) {
        uint32_t leader = static_cast<uint32_t>(__builtin_ctz(c.mask)), r[kLanes];
        std::fill(r, r + kLanes, leader);
        if (i.o[0] >= 0) blend(c.at<uint32_t>(i.o[0]), r, c.mask);
        c.predicate(i.o[1]) = (c.predicate(i.o[1]) & ~c.mask) | (1u << leader);
    });
}

void active_mask(Context &c, const Instruction &i) {
    uint32_t r[kLanes];
    std::fill(r, r + kLanes, c.mask);
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}

// Special registers by number (assemble.py has the same list); imm0 the register, imm1 a component.
enum Special { Tid, Ntid, Ctaid, Nctaid, LaneId, WarpId, NWarpId, LanemaskEq, LanemaskLe, LanemaskLt, LanemaskGe, LanemaskGt,
               SmId, NSmId, GridId, DynamicShared, TotalShared, Clock, Envreg, ClusterOne, ClusterZero, Unused, DynamicBase };

uint64_t special(const Context &c, int64_t which, int64_t part, int lane) {
    const Launch &l = *c.launch;
    uint32_t bit = 1u << lane;
    switch (which) {
        case Tid: return c.warp->tid[part][lane];
        case Ntid: return l.block[part];
        case Ctaid: return c.block->index[part];
        case Nctaid: return l.grid[part];
        case LaneId: return static_cast<uint64_t>(lane);
        case WarpId: return static_cast<uint64_t>(c.warp->index);
        case NWarpId: return c.block->warps.size();
        case LanemaskEq: return bit;
        case LanemaskLe: return bit | (bit - 1);
        case LanemaskLt: return bit - 1;
        case LanemaskGe: return ~(bit - 1);
        case LanemaskGt: return ~(bit | (bit - 1)) & kFull;
        case SmId: return c.block->linear % 132;
        case NSmId: return 132;
        case GridId: return 1;
        case DynamicShared: return l.dynamic_shared;
        case TotalShared: return c.block->shared_bytes;
        case Clock: return part == 2 ? now_ns() : c.warp->ticks * 4096 + static_cast<uint64_t>(c.pc);
        // Registers 1 and 2 hold the grid barrier's workspace for cooperative launches.
        case Envreg: return part == 1 ? l.grid_workspace >> 32 : part == 2 ? l.grid_workspace & 0xffffffffu : 0;
        case ClusterOne: return 1;
        case DynamicBase: return (l.kernel->static_shared_bytes + 15) & ~15u;
        default: return 0;
    }
}
template <class T> void read_special(Context &c, const Instruction &i) {
    T r[kLanes];
    if (i.imm[0] == Tid) {
        for (int k = 0; k < kLanes; ++k) r[k] = static_cast<T>(c.warp->tid[i.imm[1]][k]);
    } else {
        for (int k = 0; k < kLanes; ++k) r[k] = static_cast<T>(special(c, i.imm[0], i.imm[1], k));
    }
    blend(c.at<T>(i.o[0]), r, c.mask);
}

// Addresses: o0 result, o1 source.
void local_address(Context &c, const Instruction &i) {  // imm0 offset in the frame's local variables; imm1: tagged
    uint64_t r[kLanes];
    std::fill(r, r + kLanes, (c.frame->local_base + static_cast<uint64_t>(i.imm[0])) | (i.imm[1] ? kLocalTag : 0));
    blend(c.at<uint64_t>(i.o[0]), r, c.mask);
}
void local_address32(Context &c, const Instruction &i) {
    uint32_t r[kLanes];
    std::fill(r, r + kLanes, c.frame->local_base + static_cast<uint32_t>(i.imm[0]));
    blend(c.at<uint32_t>(i.o[0]), r, c.mask);
}
void parameter_address(Context &c, const Instruction &i) {
    uint64_t r[kLanes];
    std::fill(r, r + kLanes, reinterpret_cast<uint64_t>(c.launch->parameters.data()) + static_cast<uint64_t>(i.imm[0]));
    blend(c.at<uint64_t>(i.o[0]), r, c.mask);
}
void tag(Context &c, const Instruction &i) {
    const uint64_t *a = c.at<uint64_t>(i.o[1]);
    uint64_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = static_cast<uint64_t>(a[k]) | static_cast<uint64_t>(i.imm[0]);
    blend(c.at<uint64_t>(i.o[0]), r, c.mask);
}
void untag(Context &c, const Instruction &i) {
    const uint64_t *a = c.at<uint64_t>(i.o[1]);
    uint64_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) r[k] = a[k] & ~kTagMask;
    blend(c.at<uint64_t>(i.o[0]), r, c.mask);
}
// isspacep: imm0 0 global, 1 shared, 2 local, 3 other.
void is_space(Context &c, const Instruction &i) {
    const uint64_t *a = c.at<uint64_t>(i.o[1]);
    uint8_t r[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        uint64_t t = a[k] & kTagMask;
        r[k] = i.imm[0] == 0 ? t == 0 : i.imm[0] == 1 ? t == kSharedTag : i.imm[0] == 2 ? t == kLocalTag : false;
    }
    c.predicate(i.o[0]) = (c.predicate(i.o[0]) & ~c.mask) | (pack(r) & c.mask);
}

// mbarrier in shared memory: 64 bits as pending (20), expected (20), phase (1), bytes under way (23, signed).
uint64_t *mbarrier_at(Context &c, const Instruction &i, int operand, int lane) {
    uint64_t a = static_cast<uint64_t>(i.imm[0]);
    if (i.o[operand] >= 0) a += i.imm[1] == 32 ? c.at<uint32_t>(i.o[operand])[lane] : c.at<uint64_t>(i.o[operand])[lane] & ~kTagMask;
    return reinterpret_cast<uint64_t *>(shared_at(c, a, 8, true, lane));
}
constexpr uint64_t kCount = (1 << 20) - 1;
// Take arrivals and bytes off what the phase waits for; with the last of both the next phase begins.
void settle(uint64_t *b, uint64_t arrivals, uint64_t expected, int64_t more_bytes, int lane) {
    uint64_t state = *b, pending = state & kCount, phase = (state >> 40) & 1;
    int64_t bytes = (static_cast<int64_t>(state) >> 41) + more_bytes;
    if (arrivals > pending) throw Fault{CA_ILLEGAL, "more arrivals at an mbarrier than it expects", lane};
    pending -= arrivals;
    if (pending == 0 && bytes == 0) pending = expected, phase ^= 1;
    *b = pending | (expected << 20) | (phase << 40) | (static_cast<uint64_t>(bytes) << 41);
}
void mbarrier_init(Context &c, const Instruction &i) {
    const uint32_t *n = c.at<uint32_t>(i.o[1]);
    for (int k = 0; k < kLanes; ++k)
        if ((c.mask >> k) & 1) *mbarrier_at(c, i, 0, k) = n[k] | (static_cast<uint64_t>(n[k]) << 20);
}
// o0 state or -1, o1 address, o2 count or -1; o3: 1 drops; o4 bytes to expect or -1.
void mbarrier_arrive(Context &c, const Instruction &i) {
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint64_t *b = mbarrier_at(c, i, 1, k), state = *b, expected = (state >> 20) & kCount;
        uint64_t n = i.o[2] >= 0 ? c.at<uint32_t>(i.o[2])[k] : 1;
        if (i.o[0] >= 0) c.at<uint64_t>(i.o[0])[k] = state;
        settle(b, n, i.o[3] == 1 ? expected - n : expected, i.o[4] >= 0 ? c.at<uint32_t>(i.o[4])[k] : 0, k);
    }
}
// o1 address, o2 bytes; o3: 1 expects them, else they have come.
void mbarrier_bytes(Context &c, const Instruction &i) {
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint64_t *b = mbarrier_at(c, i, 1, k);
        int64_t n = c.at<uint32_t>(i.o[2])[k];
        if (i.o[3] == 1) *b += static_cast<uint64_t>(n) << 41;
        else settle(b, 0, (*b >> 20) & kCount, -n, k);
    }
}
// Bulk copies are done at once. o0 shared address (32 bits), o1 global address, o2 bytes, o3 shared address of the
// mbarrier that is told, or -1; o4: 1 from shared to global.
void copy_bulk(Context &c, const Instruction &i) {
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint32_t at = c.at<uint32_t>(i.o[0])[k], bytes = c.at<uint32_t>(i.o[2])[k];
        uint64_t there = c.at<uint64_t>(i.o[1])[k];
        bool out = i.o[4] == 1;
        if (bytes % 16) throw Fault{CA_MISALIGNED, "a bulk copy of " + std::to_string(bytes) + " bytes, which is no multiple of 16", k};
        for (uint32_t b = 0; b < bytes; b += 16) {
            char *shared = shared_at(c, uint64_t{at} + b, 16, !out, k), *global = generic_at(c, there + b, 16, out, k);
            std::memcpy(out ? global : shared, out ? shared : global, 16);
        }
        if (i.o[3] < 0) continue;
        auto *barrier = reinterpret_cast<uint64_t *>(shared_at(c, c.at<uint32_t>(i.o[3])[k], 8, true, k));
        settle(barrier, 0, (*barrier >> 20) & kCount, -static_cast<int64_t>(bytes), k);
    }
}
void mbarrier_test(Context &c, const Instruction &i) {  // o0 predicate, o1 address, o2 state or parity; o3: 1 parity
    uint32_t p = 0;
    for (int k = 0; k < kLanes; ++k) {
        if (!((c.mask >> k) & 1)) continue;
        uint64_t phase = (*mbarrier_at(c, i, 1, k) >> 40) & 1;
        uint64_t asked = i.o[3] == 1 ? c.at<uint32_t>(i.o[2])[k] & 1 : (c.at<uint64_t>(i.o[2])[k] >> 40) & 1;
        p |= static_cast<uint32_t>(phase != asked) << k;
    }
    c.predicate(i.o[0]) = (c.predicate(i.o[0]) & ~c.mask) | p;
    c.repick = true;  // others may have to arrive first
}

}  // namespace

void add_warp_operations() {
    add_operation("shfl.up", shuffle<0>);
    add_operation("shfl.down", shuffle<1>);
    add_operation("shfl.bfly", shuffle<2>);
    add_operation("shfl.idx", shuffle<3>);
    add_operation("vote.all", vote<0>);
    add_operation("vote.any", vote<1>);
    add_operation("vote.uni", vote<2>);
    add_operation("vote.ballot", vote<3>);
    add_operation("match.b32", match<uint32_t>);
    add_operation("match.b64", match<uint64_t>);
    add_operation("redux.u32", redux<uint32_t>);
    add_operation("redux.s32", redux<int32_t>);
    add_operation("bar.warp.sync", warp_sync);
    add_operation("elect", elect);
    add_operation("activemask", active_mask);
    add_operation("special.r32", read_special<uint32_t>);
    add_operation("special.r64", read_special<uint64_t>);
    add_operation("special.r16", read_special<uint16_t>);
    add_operation("address.local", local_address);
    add_operation("address.local32", local_address32);
    add_operation("address.param", parameter_address);
    add_operation("tag.r64", tag);
    add_operation("untag.r64", untag);
    add_operation("isspacep", is_space);
    add_operation("mbarrier.init", mbarrier_init);
    add_operation("mbarrier.arrive", mbarrier_arrive);
    add_operation("mbarrier.test", mbarrier_test);
    add_operation("mbarrier.bytes", mbarrier_bytes);
    add_operation("cp.async.bulk", copy_bulk);
}

}  // namespace ca

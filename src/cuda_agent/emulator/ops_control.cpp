// Branches, exits, calls and barriers.
#include "machine.h"

#include <cstdio>

namespace ca {

void drop_lanes(Warp &w, Frame *frame, uint32_t mask);

namespace {

// Send the lanes of c.mask to `target`; the others go on.
void branch_to(Context &c, int32_t target) {
    if (c.mask == c.fragment->mask) {
        c.next = target;
        if (c.warp->fragments.size() > 1) c.repick = true;
        return;
    }
    Fragment taken = *c.fragment;
    taken.mask = c.mask;
    taken.pc = target;
    taken.state = State::Ready;
    taken.parked_at = nullptr;
    c.fragment->mask &= ~c.mask;
    c.fragment->pc = c.next;
    Warp &w = *c.warp;
    size_t self = static_cast<size_t>(c.fragment - w.fragments.data());
    w.fragments.push_back(taken);
    c.fragment = &w.fragments[self];
    c.repick = true;
}

void bra(Context &c, const Instruction &i) { branch_to(c, i.o[0]); }

void brx(Context &c, const Instruction &i) {
    const auto &list = c.frame->function->lists[static_cast<size_t>(i.o[1])];
    const uint32_t *index = c.at<uint32_t>(i.o[0]);
    uint32_t mask = c.mask, first = index[__builtin_ctz(mask)];
    if (first >= list.size()) throw Fault{CA_ILLEGAL, "indirect branch beyond its table", __builtin_ctz(mask)};
    uint32_t same = 0;
    for (int k = 0; k < kLanes; ++k)
        if ((mask >> k) & 1 && index[k] == first) same |= 1u << k;
    c.mask = same;
    if (same != c.fragment->mask) {
        // The others run this instruction again, for their own target.
        int32_t again = c.pc;
        branch_to(c, list[first]);
        c.next = again;
        c.fragment->pc = again;
        return;
    }
    branch_to(c, list[first]);
}

void exit_lanes(Context &c, const Instruction &) {
    if (!c.warp->open_copies.empty() || !c.warp->committed_copies.empty()) finish_async_copies(c, 0);
    leave_lanes(c, c.mask);
}

void copy_slot(char *to, const Slot &t, const char *from, const Slot &f, uint32_t mask) {
    int32_t bytes = t.bytes < f.bytes ? t.bytes : f.bytes;
    for (int k = 0; k < kLanes; ++k)
        if ((mask >> k) & 1)
            std::memcpy(to + t.offset + static_cast<ptrdiff_t>(k) * t.bytes, from + f.offset + static_cast<ptrdiff_t>(k) * f.bytes,
                        static_cast<size_t>(bytes));
}

void ret(Context &c, const Instruction &i) {
    Frame *frame = c.frame;
    if (!frame->parent) {
        exit_lanes(c, i);
        return;
    }
    const Function &f = *frame->function;
    for (size_t k = 0; k < frame->site->results.size() && k < f.return_slots.size(); ++k)
        copy_slot(frame->parent->registers, frame->site->results[k], frame->registers, f.return_slots[k], c.mask);
    Fragment back;
    back.pc = frame->return_pc;
    back.mask = c.mask;
    back.frame = frame->parent;
    Warp &w = *c.warp;
    c.fragment->mask &= ~c.mask;
    c.fragment->pc = c.next;
    size_t self = static_cast<size_t>(c.fragment - w.fragments.data());
    w.fragments.push_back(back);
    c.fragment = &w.fragments[self];
    drop_lanes(w, frame, back.mask);
    c.repick = true;
}

void enter(Context &c, const CallSite &site, const Function &f) {
    Warp &w = *c.warp;
    Frame *frame = enter_frame(w, &f, c.frame, c.mask);
    frame->return_pc = c.pc + 1;
    frame->site = &site;
    for (size_t k = 0; k < site.arguments.size() && k < f.parameter_slots.size(); ++k)
        copy_slot(frame->registers, f.parameter_slots[k], c.registers, site.arguments[k], c.mask);
    Fragment inside;
    inside.pc = 0;
    inside.mask = c.mask;
    inside.frame = frame;
    c.fragment->mask &= ~c.mask;
    c.fragment->pc = c.next;
    size_t self = static_cast<size_t>(c.fragment - w.fragments.data());
    w.fragments.push_back(inside);
    c.fragment = &w.fragments[self];
    c.repick = true;
}

void call(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    enter(c, site, c.launch->module->functions[static_cast<size_t>(site.target)]);
}

void call_indirect(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    const uint64_t *target = c.at<uint64_t>(i.o[1]);
    int lane = __builtin_ctz(c.mask);
    uint64_t first = target[lane];
    if (!(first & kFunctionTag) || (first & ~kTagMask) >= c.launch->module->functions.size())
        throw Fault{CA_ILLEGAL, "call through a function pointer that is not one", lane, first, 8};
    uint32_t same = 0;
    for (int k = 0; k < kLanes; ++k)
        if ((c.mask >> k) & 1 && target[k] == first) same |= 1u << k;
    bool others = same != c.mask;
    c.mask = same;
    // Lanes with another target run this instruction again.
    if (others || same != c.fragment->mask) {
        int32_t again = others ? c.pc : c.next;
        enter(c, site, c.launch->module->functions[first & ~kTagMask]);
        c.next = again;
        c.fragment->pc = again;
        return;
    }
    enter(c, site, c.launch->module->functions[first & ~kTagMask]);
}

uint64_t slot_u64(const Context &c, const Slot &s, int lane) {
    uint64_t v = 0;
    std::memcpy(&v, c.registers + s.offset + static_cast<ptrdiff_t>(lane) * s.bytes, s.bytes < 8 ? static_cast<size_t>(s.bytes) : 8);
    return v;
}

std::string read_text(const Context &c, uint64_t address, int lane) {
    std::string text;
    for (;; ++address) {
        char ch = *generic_at(c, address, 1, false, lane);
        if (!ch) return text;
        text += ch;
        if (text.size() > 4096) return text;
    }
}

// printf as CUDA passes it: a format and a packed buffer of promoted arguments.
int print_lane(const Context &c, uint64_t format_at, uint64_t buffer, int lane) {
    std::string format = read_text(c, format_at, lane), out;
    uint64_t offset = 0;
    int arguments = 0;
    auto next = [&](uint32_t bytes) {
        offset = (offset + bytes - 1) / bytes * bytes;
        uint64_t v = 0;
        std::memcpy(&v, generic_at(c, buffer + offset, bytes, false, lane), bytes);
        offset += bytes;
        ++arguments;
        return v;
    };
    for (size_t k = 0; k < format.size();) {
        if (format[k] != '%') {
            out += format[k++];
            continue;
        }
        if (k + 1 < format.size() && format[k + 1] == '%') {
            out += '%';
            k += 2;
            continue;
        }
        std::string spec = "%";
        int longs = 0;
        for (++k; k < format.size() && std::string("diouxXcsaAeEfFgGp").find(format[k]) == std::string::npos; ++k) {
            if (format[k] == 'l' || format[k] == 'j' || format[k] == 'z' || format[k] == 't') {
                ++longs;
            } else if (format[k] == '*') {
                spec += std::to_string(static_cast<int>(next(4)));
            } else if (format[k] != 'h') {
                spec += format[k];
            }
        }
        if (k >= format.size()) break;
        char kind = format[k++], text[512];
        if (std::string("aAeEfFgG").find(kind) != std::string::npos) {
            uint64_t bits = next(8);
            double v;
            std::memcpy(&v, &bits, 8);
            std::snprintf(text, sizeof text, (spec + kind).c_str(), v);
            out += text;
        } else if (kind == 's') {
            std::string s = read_text(c, next(8), lane);
            std::snprintf(text, sizeof text, (spec + kind).c_str(), s.c_str());
            out += text;
        } else if (kind == 'p') {
            std::snprintf(text, sizeof text, (spec + kind).c_str(), reinterpret_cast<void *>(next(8)));
            out += text;
        } else if (kind == 'c') {
            std::snprintf(text, sizeof text, (spec + kind).c_str(), static_cast<int>(next(4)));
            out += text;
        } else if (longs) {
            std::snprintf(text, sizeof text, (spec + "ll" + kind).c_str(), static_cast<long long>(next(8)));
            out += text;
        } else {
            std::snprintf(text, sizeof text, (spec + kind).c_str(), static_cast<int>(next(4)));
            out += text;
        }
    }
    std::fwrite(out.data(), 1, out.size(), stdout);
    return arguments;
}

void set_result(Context &c, const CallSite &site, int lane, uint64_t value) {
    if (site.results.empty()) return;
    const Slot &s = site.results[0];
    std::memcpy(c.registers + s.offset + static_cast<ptrdiff_t>(lane) * s.bytes, &value, static_cast<size_t>(s.bytes < 8 ? s.bytes : 8));
}

void call_vprintf(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    for (int k = 0; k < kLanes; ++k)
        if ((c.mask >> k) & 1) {
            int n = print_lane(c, slot_u64(c, site.arguments[0], k), slot_u64(c, site.arguments[1], k), k);
            set_result(c, site, k, static_cast<uint64_t>(n));
        }
    std::fflush(stdout);
}

void call_assertfail(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    int lane = __builtin_ctz(c.mask);
    std::string text = read_text(c, slot_u64(c, site.arguments[0], lane), lane);
    throw Fault{CA_ASSERT, "assertion `" + text + "` failed", lane};
}

void call_malloc(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    for (int k = 0; k < kLanes; ++k)
        if ((c.mask >> k) & 1) {
            uint64_t bytes = slot_u64(c, site.arguments[0], k);
            void *p = bytes && bytes < (1ull << 30) ? std::malloc(bytes) : nullptr;
            if (p) {
                std::memset(p, 0xFE, bytes);
                ca_range_add("device malloc", p, bytes, 0);
            }
            set_result(c, site, k, reinterpret_cast<uint64_t>(p));
        }
}

void call_free(Context &c, const Instruction &i) {
    const CallSite &site = c.frame->function->calls[static_cast<size_t>(i.o[0])];
    for (int k = 0; k < kLanes; ++k)
        if ((c.mask >> k) & 1) {
            void *p = reinterpret_cast<void *>(slot_u64(c, site.arguments[0], k));
            if (!p) continue;
            ca_range_remove(p);
            std::free(p);
        }
}

// bar.sync id[, count]: o0 id, o1 count (or -1), o2 result, o3 source predicate; imm[1] the reduction.
void bar_sync(Context &c, const Instruction &i) {
    int lane = __builtin_ctz(c.mask);
    uint32_t id = c.at<uint32_t>(i.o[0])[lane];
    uint32_t count = i.o[1] >= 0 ? c.at<uint32_t>(i.o[1])[lane] : 0;
    if (id > 15) throw Fault{CA_ILLEGAL, "barrier number " + std::to_string(id) + " is beyond 15", lane};
    if (i.imm[1]) {
        Barrier &bar = c.block->barriers[id];
        uint32_t p = c.predicate(i.o[3]);
        if (i.imm[0]) p = ~p;
        bar.accumulated += static_cast<uint32_t>(__builtin_popcount(p & c.mask));
        bar.any |= (p & c.mask) != 0;
        bar.all &= (~p & c.mask) == 0;
    }
    arrive_at_barrier(c, i, static_cast<int>(id), count, c.pc + 1);
}

// bar.arrive counts a thread but does not make it wait.
void bar_arrive(Context &c, const Instruction &i) {
    int lane = __builtin_ctz(c.mask);
    uint32_t id = c.at<uint32_t>(i.o[0])[lane];
    uint32_t count = c.at<uint32_t>(i.o[1])[lane];
    if (id > 15) throw Fault{CA_ILLEGAL, "barrier number " + std::to_string(id) + " is beyond 15", lane};
    Barrier &bar = c.block->barriers[id];
    bar.arrived += static_cast<uint32_t>(__builtin_popcount(c.mask));
    bar.expected = count;
    uint32_t none = 0;
    std::swap(none, c.mask);
    leave_lanes(c, 0);  // checks all barriers
}

void trap(Context &c, const Instruction &) { throw Fault{CA_TRAP, "trap instruction reached", __builtin_ctz(c.mask)}; }
void nop(Context &, const Instruction &) {}
// A hint to wait: let other fragments and warps run.
void yield_turn(Context &c, const Instruction &) { c.repick = true; }

void illegal(Context &c, const Instruction &) {
    throw Fault{CA_UNSUPPORTED, "an instruction that is not supported on the emulated device was reached", __builtin_ctz(c.mask)};
}

}  // namespace

void add_control_operations() {
    add_operation("bra", bra);
    add_operation("brx", brx);
    add_operation("exit", exit_lanes);
    add_operation("ret", ret);
    add_operation("call", call);
    add_operation("call.indirect", call_indirect);
    add_operation("call.vprintf", call_vprintf);
    add_operation("call.assertfail", call_assertfail);
    add_operation("call.malloc", call_malloc);
    add_operation("call.free", call_free);
    add_operation("bar.sync", bar_sync);
    add_operation("bar.arrive", bar_arrive);
    add_operation("trap", trap);
    add_operation("nop", nop);
    add_operation("yield", yield_turn);
    add_operation("unsupported", illegal);
}

}  // namespace ca

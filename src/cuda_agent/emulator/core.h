/* C interface of the emulated device's core: modules, launches, memory ranges, faults.
 *
 * A module is assembled by Python (assemble.py) and handed over here once; cudart.cpp launches its kernels. Addresses
 * of global memory are host addresses. One launch runs at a time; calls are not thread safe among themselves. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* One assembled instruction as Python lays it out (a numpy structured array). */
typedef struct {
    int32_t op;            /* index from ca_op() */
    int32_t guard;         /* byte offset of the guarding predicate in the frame, or -1 */
    int32_t guard_negated; /* 1 for @!p */
    int32_t file;          /* index into the module's file table, or -1 */
    int32_t line;          /* 1-based source line, 0 unknown */
    int32_t operand[16];   /* byte offsets in the frame, or plain numbers, as the operation defines */
    int64_t immediate[2];
} ca_instruction;

typedef enum {
    CA_OK = 0,
    CA_OUT_OF_BOUNDS_GLOBAL = 1,
    CA_OUT_OF_BOUNDS_SHARED = 2,
    CA_OUT_OF_BOUNDS_LOCAL = 3,
    CA_MISALIGNED = 4,
    CA_READ_ONLY = 5,
    CA_DEADLOCK = 6,
    CA_TIMEOUT = 7,
    CA_UNSUPPORTED = 8,
    CA_ASSERT = 9,
    CA_TRAP = 10,
    CA_ILLEGAL = 11
} ca_fault_kind;

typedef struct {
    int32_t kind;
    int32_t line;
    int32_t block[3];
    int32_t thread[3];
    uint64_t address;
    uint32_t bytes;
    char kernel[256];
    char file[512];
    char message[1536];
} ca_fault;

typedef struct {
    uint32_t bytes;        /* of the whole parameter buffer */
    uint32_t count;        /* number of parameters */
    uint32_t offset[512];
    uint32_t size[512];
} ca_parameters;

/* Operations: the assembler asks by name; -1 means the core has no such operation. */
int ca_op(const char *name);
int ca_op_count(void);
const char *ca_op_name(int op);

/* Modules. Functions get ids in the order in which they are declared, from 0. */
typedef struct ca_module ca_module;
ca_module *ca_module_new(void);
void ca_module_free(ca_module *module);
int ca_module_file(ca_module *module, const char *name);
/* Allocate a __device__ or __constant__ variable; returns its address. `init` may be NULL for zeros. */
uint64_t ca_module_variable(ca_module *module, const char *name, const void *init, uint64_t bytes, uint64_t align,
                            int read_only);
/* Find a variable; returns its address or 0, and its size. */
uint64_t ca_module_find_variable(ca_module *module, const char *name, uint64_t *bytes);
/* Add a function. `frame_bytes` includes `constants`, which are copied to the frame's start. `parameters` are the
 * kernel's parameters; for device functions slots[2*i], slots[2*i+1] are frame offset and bytes a lane of parameter i,
 * followed by `returns` result slots. */
int ca_module_function(ca_module *module, const char *name, int is_kernel, const ca_instruction *code, uint32_t count,
                       const void *constants, uint32_t constant_bytes, uint32_t frame_bytes, uint32_t local_bytes,
                       uint32_t static_shared_bytes, const ca_parameters *parameters, const int32_t *slots,
                       uint32_t parameter_slots, uint32_t return_slots, const char *unsupported);
/* Describe call site `site` of function `function`: target id (or -1 for indirect, -2 - b for builtin b), argument and
 * result slots as (frame offset, bytes a lane) pairs. */
void ca_module_call(ca_module *module, int function, int target, const int32_t *slots, uint32_t arguments,
                    uint32_t results);
/* Add a list of numbers to `function`: branch targets of brx.idx, registers of a matrix operation. Numbered from 0. */
void ca_module_list(ca_module *module, int function, const int32_t *numbers, uint32_t count);
/* Blocks of `function` may have no more threads than this (1024 when never called). */
void ca_module_limit_threads(ca_module *module, int function, uint32_t threads);
int ca_module_find_kernel(ca_module *module, const char *name);
const ca_parameters *ca_kernel_parameters(ca_module *module, int kernel);
uint32_t ca_kernel_static_shared(ca_module *module, int kernel);
uint32_t ca_kernel_most_threads(ca_module *module, int kernel);
uint32_t ca_kernel_local_bytes(ca_module *module, int kernel);
const char *ca_kernel_unsupported(ca_module *module, int kernel); /* NULL when everything is supported */

/* Run a kernel to its end. Returns a ca_fault_kind; details in ca_last_fault(). */
int ca_launch(ca_module *module, int kernel, const uint32_t grid[3], const uint32_t block[3], const void *parameters,
              uint32_t dynamic_shared_bytes, int cooperative);

/* Global memory that kernels may touch. Registering a base again widens the range; it is read-only only if all are. */
void ca_range_add(const char *name, const void *base, uint64_t bytes, int read_only);
void ca_range_remove(const void *base);
void ca_range_forget_removed(void); /* between launches: drop what running warps might have cached */
int ca_range_contains(const void *base, uint64_t bytes);

const ca_fault *ca_last_fault(void);
void ca_clear_fault(void);
/* Record a fault found by the runtime stand-in, such as an unsupported API call. */
void ca_set_fault(int kind, const char *kernel, const char *message);

/* Settings and counters. */
void ca_set_schedule(uint64_t seed);     /* warps of a block run ascending (0), descending (1), else pseudo-random */
void ca_set_threads(int threads);        /* worker threads over blocks; 0: one per core */
void ca_set_time_limit(double seconds);  /* per launch */
void ca_set_idle(int idle);              /* launches are checked and counted, and do nothing */
uint64_t ca_counter_launches(void);
uint64_t ca_counter_instructions(void);  /* warp instructions */
#ifdef __cplusplus
}
#endif

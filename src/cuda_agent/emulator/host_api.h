/* What a generated binding and the Python side call on the emulated device, besides the CUDA runtime itself.
 *
 * A binding brackets each launcher call: begin, one register per tensor argument, the launcher, end. Kernels may
 * touch registered tensors and memory from the stand-in's cudaMalloc family; anything else is out of bounds. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
/* Start a launcher call; forgets the tensors of the previous one. */
void cuda_agent_begin_call(const char *launcher);
/* Announce one tensor argument: `bytes` from `data`; `read_only` when the C parameter is a const pointer. */
void cuda_agent_register_tensor(const char *name, const void *data, unsigned long long bytes, int read_only);
/* Finish; NULL, or the text of the first fault of the call (out of bounds, unsupported instruction, deadlock, ...),
 * valid until the next begin. A fault stays: as on a device, later CUDA calls fail until cuda_agent_reset. */
const char *cuda_agent_end_call(void);
/* Forget a fault and start afresh. */
void cuda_agent_reset(void);
/* Give the function that turns PTX text into a module of the core (see core.h); NULL on failure. */
typedef void *(*cuda_agent_loader)(const char *text, unsigned long long bytes);
void cuda_agent_set_loader(cuda_agent_loader loader);
#ifdef __cplusplus
}
#endif

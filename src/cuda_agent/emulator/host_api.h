/* What a generated binding calls on the emulated device, besides the CUDA runtime itself.
 *
 * A binding brackets each launcher call: begin, one register per tensor argument, the launcher, end. Kernels may
 * touch registered tensors and memory from the stand-in's cudaMalloc family; anything else is out of bounds. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
/* Start a launcher call; forgets tensors and the fault of the previous one. */
void cuda_agent_begin_call(const char *launcher);
/* Announce one tensor argument: `bytes` readable from `data`; `read_only` when the C parameter is a const pointer. */
void cuda_agent_register_tensor(const char *name, const void *data, unsigned long long bytes, int read_only);
/* Finish; NULL, or the text of the first fault (out of bounds, unsupported instruction, deadlock, ...), valid until the next begin. */
const char *cuda_agent_end_call(void);
#ifdef __cplusplus
}
#endif

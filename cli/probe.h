/* probe.h - what this machine can do at most: FMA from registers, and reading memory. Measured beside every benchmark,
 * because the machine's clock and neighbours change from minute to minute. */
#ifndef CLI_PROBE_H
#define CLI_PROBE_H

#include <stddef.h>

/* f32 GFLOP/s of `threads` threads that do nothing but fused multiply-adds, for about `seconds`. */
double probe_fma(int threads, double seconds);
/* GB/s of `threads` threads that sum a buffer; it must be much larger than the caches, and written before. */
double probe_read(int threads, const void *buffer, size_t bytes);
/* A buffer for it, written: 512 MiB. free() it. */
void *probe_read_buffer(size_t *bytes);

#endif

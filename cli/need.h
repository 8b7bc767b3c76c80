/* need.h - memory for the command: it is there, or the process ends with exit code 3 and says how much was missing.
 * The library never does such a thing; a command may, because nobody else lives in its process. */
#ifndef CLI_NEED_H
#define CLI_NEED_H

#include <stddef.h>

void *need_bytes(size_t bytes); /* zeroed, aligned to 64 bytes; free() */
/* count * size with both checked, for arrays whose sizes come from the user. */
void *need_array(size_t count, size_t size);
/* The same, not written: for tensors, whose pages the threads that fill them touch first. */
void *need_raw(size_t count, size_t size);

#endif

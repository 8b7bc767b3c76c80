/* error.c - knows the last error of each thread, the names of statuses and the version.
 * One idea: a sentence lives in a fixed thread-local buffer, so that failing can never itself fail or allocate.
 * Does not decide what an error is. */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT(x) #x
#define NUMBER_TEXT(x) TEXT(x)

enum { SENTENCE_BYTES = 512 };

static _Thread_local char sentence[SENTENCE_BYTES];

burst_status base_fail(burst_status status, const char *format, ...) {
    /* Formatted aside: an argument may be the present sentence. */
    char text[SENTENCE_BYTES];
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length < 0) text[0] = '\0';
    memcpy(sentence, text, strlen(text) + 1);
    return status;
}

burst_status base_check_struct(const char *name, size_t given, size_t known) {
    if (given == known) return BURST_OK;
    if (given == 0) return base_fail(BURST_INVALID, "struct_size of %s is 0: start from its _INIT", name);
    if (given > known)
        return base_fail(BURST_UNSUPPORTED,
                         "struct_size %zu of %s is larger than this library knows (%zu): built against a newer burst.h",
                         given, name, known);
    return base_fail(BURST_INVALID, "struct_size %zu of %s is no size that %s ever had: expected %zu", given, name,
                     name, known);
}

const char *burst_last_error(void) { return sentence; }

const char *burst_status_name(burst_status status) {
    switch (status) {
#define STATUS_CASE(name, number, meaning)                                                                             \
    case BURST_##name:                                                                                                 \
        return "BURST_" #name;
        BURST_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *burst_version(void) {
    return NUMBER_TEXT(BURST_VERSION_MAJOR) "." NUMBER_TEXT(BURST_VERSION_MINOR) "." NUMBER_TEXT(BURST_VERSION_PATCH);
}

/* progress.c - the progress line: on a terminal it overwrites itself, in a pipe there is none. */
#include "command.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int progress_visible(void) { return isatty(STDERR_FILENO); }

void progress_show(const char *format, ...) {
    if (!progress_visible()) return;
    va_list args;
    fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fflush(stderr);
}

void progress_clear(void) {
    if (progress_visible()) fputs("\r\033[K", stderr), fflush(stderr);
}

void progress_report(void *user, double done) {
    static double last;
    const progress_label *label = user;
    double now = check_now();
    if (now - last < 0.1 && done < 1) return; /* ten times a second is enough for eyes */
    last = now;
    int filled = (int)(done * 30 + 0.5);
    progress_show("%-10s [%.*s%.*s] %3.0f %%", label->what, filled, "##############################", 30 - filled,
                  "..............................", 100 * done);
}

/* threads.c - an attention over ranks that are threads of this process.
 * Build: cc threads.c $(pkg-config --cflags --libs burst) -lm       Run: ./threads [RANKS] */
#include "attend.h"

static burst_status body(burst_transport *transport, void *user) {
    (void)user;
    return attend(transport);
}

int main(int count, char **arguments) {
    const int ranks = count > 1 ? atoi(arguments[1]) : 4;
    const burst_status status = burst_threads_run(ranks, body, NULL);
    printf("%d ranks: %s\n", ranks, status == BURST_OK ? "ok" : burst_last_error());
    return status != BURST_OK;
}

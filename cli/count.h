/* count.h - bytes that this thread holds, counted at the allocator: every malloc that the command and the archives it
 * is linked with make goes through count.c (the linker's --wrap). A rank is a thread, so this is a rank's memory. */
#ifndef CLI_COUNT_H
#define CLI_COUNT_H

void count_mark(void);   /* the peak begins here */
double count_peak(void); /* the most held since the mark, less what was held then */

#endif

/* kernel_set.h - the bodies in their order, and the table they fill. Included once by every kernel_*.c, behind its
 * vocabulary. */
#include "body_math.h"

#ifdef SIMD_TILES
#include "body_tiles.h"
#else
#include "body_products.h"
#endif

#include "body_pack.h"

#include "body_softmax.h"

#include "body_forward.h"

#include "body_few.h"

#include "body_one.h"

#include "body_backward.h"

#define KERNEL_SET                                                                                                     \
    {                                                                                                                  \
        .name = ISA_NAME, .lanes = LANES, .forward_bytes = forward_bytes, .backward_bytes = backward_bytes,            \
        .forward_partial = forward_partial, .backward_partial = backward_partial, .sums_bytes = sums_bytes,            \
        .packed_bytes = packed_bytes, .forward = forward_task, .forward_merge = forward_merge,                         \
        .backward = backward_task, .backward_merge = backward_merge, .backward_keys = backward_keys, .exp_of = exp_of, \
        .tanh_of = tanh_of, .state_fold = state_fold, .state_finish = state_finish, .backward_dots = backward_dots,    \
        .rows_store = rows_store, .rows_add = rows_add,                                                                \
    }

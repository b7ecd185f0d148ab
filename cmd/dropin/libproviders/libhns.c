// libhns.so.1 on a machine without a HiSilicon adapter; see libmlx5.c.
#include "absent.h"

PUBLIC bool hnsdv_is_supported(void) { return false; }
PUBLIC int hnsdv_query_device(void) { return fail(EOPNOTSUPP); }
PUBLIC void *hnsdv_create_qp(void) { return fail_null(EOPNOTSUPP); }

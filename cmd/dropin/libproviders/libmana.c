// libmana.so.1 on a machine without a Microsoft adapter; see libmlx5.c.
#include "absent.h"

PUBLIC int manadv_init_obj(void) { return fail(EOPNOTSUPP); }
PUBLIC int manadv_set_context_attr(void) { return fail(EOPNOTSUPP); }
PUBLIC void *manadv_alloc_pd(void) { return fail_null(EOPNOTSUPP); }

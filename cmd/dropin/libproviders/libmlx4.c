// libmlx4.so.1 on a machine without a mlx4 adapter; see libmlx5.c.
#include "absent.h"

#define F(name) PUBLIC int name(void) { return fail(EOPNOTSUPP); }
F(mlx4dv_init_obj)
F(mlx4dv_query_device)
F(mlx4dv_set_context_attr)
#undef F

PUBLIC void *mlx4dv_create_qp(void) { return fail_null(EOPNOTSUPP); }

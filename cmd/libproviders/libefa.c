// libefa.so.1 on a machine without an EFA adapter; see libmlx5.c.
#include "absent.h"

#define F(name) PUBLIC int name(void) { return fail(EOPNOTSUPP); }
F(efadv_query_ah)
F(efadv_query_device)
#undef F

#define F(name) PUBLIC void *name(void) { return fail_null(EOPNOTSUPP); }
F(efadv_cq_from_ibv_cq_ex)
F(efadv_create_cq)
F(efadv_create_driver_qp)
F(efadv_create_qp_ex)
#undef F

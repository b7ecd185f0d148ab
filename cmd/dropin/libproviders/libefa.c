// libefa.so.1 on a machine without an EFA adapter; see libmlx5.c.
#include "absent.h"

#define F(name) PUBLIC int name(void) { return fail(EOPNOTSUPP); }
F(efadv_query_ah)
F(efadv_query_cq)
F(efadv_query_device)
F(efadv_query_mr)
F(efadv_query_qp_wqs)
#undef F

#define F(name) PUBLIC int name(void) { return fail_minus(EOPNOTSUPP); }
F(efadv_get_max_rq_depth)
F(efadv_get_max_sq_depth)
#undef F

#define F(name) PUBLIC void *name(void) { return fail_null(EOPNOTSUPP); }
F(efadv_cq_from_ibv_cq_ex)
F(efadv_create_cq)
F(efadv_create_comp_cntr)
F(efadv_create_driver_qp)
F(efadv_create_qp_ex)
F(efadv_qp_from_ibv_qp_ex)
#undef F

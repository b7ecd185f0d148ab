// Functions of releases newer than the installed headers, and functions that no device here
// supports. They fail as their manual pages document for a device without support.
#include "front.h"

PUBLIC void *ibv_alloc_dmah(void) { return fail_null(EOPNOTSUPP); }
PUBLIC void *ibv_create_comp_cntr(void) { return fail_null(EOPNOTSUPP); }
PUBLIC int ibv_dealloc_dmah(void) { return fail(EOPNOTSUPP); }
PUBLIC int _ibv_query_comp_cntr_caps(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_destroy_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_inc_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_inc_err_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_qp_attach_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_read_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_read_err_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_set_comp_cntr(void) { return fail(EOPNOTSUPP); }
PUBLIC int ibv_set_err_comp_cntr(void) { return fail(EOPNOTSUPP); }

PUBLIC int ibv_dm_export_dmabuf_fd(void) { return minus_one(EOPNOTSUPP); }

// The engine resolves neighbours when it needs them.
PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr, uint8_t mac[6], uint16_t *vid)
{
	(void)c; (void)attr; (void)mac; (void)vid;
	return minus_one(EOPNOTSUPP);
}

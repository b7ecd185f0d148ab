// Functions of releases newer than the installed headers, and functions that no device here
// supports. They fail as their manual pages document for a device without support.
#include "front.h"

#define F(name) \
	PUBLIC void *null_##name(void) EXPORTED(name); \
	void *null_##name(void) { return fail_null(EOPNOTSUPP); }
F(ibv_alloc_dmah)
#undef F

#define F(name) \
	PUBLIC int errno_##name(void) EXPORTED(name); \
	int errno_##name(void) { return fail(EOPNOTSUPP); }
F(ibv_dealloc_dmah)
#undef F

#define F(name) \
	PUBLIC int minus_##name(void) EXPORTED(name); \
	int minus_##name(void) { return minus_one(EOPNOTSUPP); }
F(ibv_dm_export_dmabuf_fd)
#undef F

// The engine resolves neighbours when it needs them.
PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr, uint8_t mac[6], uint16_t *vid)
{
	(void)c; (void)attr; (void)mac; (void)vid;
	return minus_one(EOPNOTSUPP);
}

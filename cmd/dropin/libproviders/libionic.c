// libionic.so.1 on a machine without a Pensando adapter; see libmlx5.c. For another device the
// numbers of DMA engines are 0, and changes are not permitted.
#include "absent.h"
#include <stdint.h>

#define F(name) PUBLIC uint8_t name(void) { return 0; }
F(ionic_dv_ctx_get_udma_count)
F(ionic_dv_ctx_get_udma_mask)
F(ionic_dv_pd_get_udma_mask)
#undef F

#define F(name) PUBLIC int name(void) { return fail(EPERM); }
F(ionic_dv_pd_set_rqcmb)
F(ionic_dv_pd_set_sqcmb)
F(ionic_dv_pd_set_udma_mask)
#undef F

// Device memory.
#include "front.h"
#include <limits.h>

#define NO_USERS (INT_MIN / 2) // the value of users while the memory is freed

// in reports whether a range is in device memory and consists of whole words of 4 bytes. Devices
// with such memory require that.
static int in(struct dm *dm, uint64_t offset, size_t length)
{
	return offset % 4 == 0 && length % 4 == 0 && offset <= dm->length && length <= dm->length - offset;
}

static int memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length)
{
	struct dm *d = (struct dm *)dm;
	if (!in(d, offset, length))
		return fail(EINVAL);
	memcpy(d->memory + offset, from, length);
	return 0;
}

static int memcpy_from_dm(void *to, struct ibv_dm *dm, uint64_t offset, size_t length)
{
	struct dm *d = (struct dm *)dm;
	if (!in(d, offset, length))
		return fail(EINVAL);
	memcpy(to, d->memory + offset, length);
	return 0;
}

struct ibv_dm *alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr)
{
	if (attr->comp_mask || !attr->length || attr->length > MAX_DM_SIZE || attr->log_align_req > 18)
		return fail_null(EINVAL);
	struct dm *d = calloc(1, sizeof *d);
	size_t align = (size_t)1 << (attr->log_align_req < 6 ? 6 : attr->log_align_req);
	if (!d || !(d->memory = aligned_alloc(align, (attr->length + align - 1) / align * align))) {
		free(d);
		return fail_null(ENOMEM);
	}
	d->dev = to_context(c)->dev;
	d->length = attr->length;
	if (__atomic_add_fetch(&devices[d->dev].dm_used, d->length, __ATOMIC_RELAXED) > MAX_DM_SIZE) {
		__atomic_sub_fetch(&devices[d->dev].dm_used, d->length, __ATOMIC_RELAXED);
		free(d->memory);
		free(d);
		return fail_null(ENOMEM);
	}
	memset(d->memory, 0, d->length);
	d->ibv.context = c;
	d->ibv.memcpy_to_dm = memcpy_to_dm;
	d->ibv.memcpy_from_dm = memcpy_from_dm;
	publish(&d->life);
	return &d->ibv;
}

int free_dm(struct ibv_dm *dm)
{
	struct dm *d = (struct dm *)dm;
	int none = 0, err = begin_destroy(&d->life);
	if (err)
		return fail(err);
	if (!__atomic_compare_exchange_n(&d->users, &none, NO_USERS, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return fail(undo_destroy(&d->life, EBUSY));
	__atomic_sub_fetch(&devices[d->dev].dm_used, d->length, __ATOMIC_RELAXED);
	free(d->memory);
	end_destroy(&d->life, d);
	return 0;
}

struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct dm *d = (struct dm *)dm;
	if (!(access & IBV_ACCESS_ZERO_BASED) || offset > d->length || length > d->length - offset)
		return fail_null(EINVAL);
	struct ibv_mr *mr = NULL;
	// This comes first, so that another thread does not free the memory.
	if (__atomic_add_fetch(&d->users, 1, __ATOMIC_RELAXED) <= 0)
		errno = EINVAL;
	else
		mr = reg_mr(pd, d->memory + offset, length, 0, access);
	if (!mr) {
		__atomic_sub_fetch(&d->users, 1, __ATOMIC_RELAXED);
		return NULL;
	}
	mr->addr = NULL;
	((struct mr *)mr)->dm = d;
	return mr;
}

// Completion counters. The structures are declared here, because the installed headers may be of a
// release before 65. The functions have names of their own, as those of buffer.c.
#include "front.h"

// struct comp_cntr begins like struct ibv_comp_cntr. The engine adds to the values.
struct comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
	struct ibv_context *made_by;
	struct life life;
	uint64_t count, errors;
};

// struct comp_cntr_caps is struct ibv_comp_cntr_caps.
struct comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters, ops;
};

// struct comp_cntr_init_attr is struct ibv_comp_cntr_init_attr, and struct attach_attr struct
// ibv_qp_attach_comp_cntr_attr.
struct comp_cntr_init_attr {
	uint32_t comp_mask, type, flags;
};

struct attach_attr {
	uint32_t comp_mask, ops;
};

PUBLIC int query_comp_cntr_caps(struct ibv_context *c, struct comp_cntr_caps *caps, size_t size) EXPORTED(_ibv_query_comp_cntr_caps);
PUBLIC struct comp_cntr *create_comp_cntr(struct ibv_context *c, struct comp_cntr_init_attr *attr) EXPORTED(ibv_create_comp_cntr);
PUBLIC int destroy_comp_cntr(struct comp_cntr *cntr) EXPORTED(ibv_destroy_comp_cntr);
PUBLIC int set_comp_cntr(struct comp_cntr *cntr, uint64_t value) EXPORTED(ibv_set_comp_cntr);
PUBLIC int set_err_comp_cntr(struct comp_cntr *cntr, uint64_t value) EXPORTED(ibv_set_err_comp_cntr);
PUBLIC int inc_comp_cntr(struct comp_cntr *cntr, uint64_t amount) EXPORTED(ibv_inc_comp_cntr);
PUBLIC int inc_err_comp_cntr(struct comp_cntr *cntr, uint64_t amount) EXPORTED(ibv_inc_err_comp_cntr);
PUBLIC int read_comp_cntr(struct comp_cntr *cntr, uint64_t *value) EXPORTED(ibv_read_comp_cntr);
PUBLIC int read_err_comp_cntr(struct comp_cntr *cntr, uint64_t *value) EXPORTED(ibv_read_err_comp_cntr);
PUBLIC int attach_comp_cntr(struct ibv_qp *qp, struct comp_cntr *cntr, struct attach_attr *attr) EXPORTED(ibv_qp_attach_comp_cntr);

int query_comp_cntr_caps(struct ibv_context *c, struct comp_cntr_caps *caps, size_t size)
{
	struct comp_cntr_caps all;
	int err = engine->query_comp_cntr_caps(to_context(c)->dev, &all.max_value, &all.max_counters, &all.ops);
	if (err)
		return fail(err);
	memset(caps, 0, size);
	memcpy(caps, &all, size < sizeof all ? size : sizeof all);
	return 0;
}

struct comp_cntr *create_comp_cntr(struct ibv_context *c, struct comp_cntr_init_attr *attr)
{
	if (attr->comp_mask || attr->flags)
		return fail_null(EOPNOTSUPP);
	struct comp_cntr *cntr = calloc(1, sizeof *cntr);
	if (!cntr)
		return NULL;
	int err = engine->create_comp_cntr(to_context(c)->handle, attr->type, &cntr->count, &cntr->errors, &cntr->handle);
	if (err) {
		free(cntr);
		return fail_null(err);
	}
	cntr->context = cntr->made_by = c;
	publish(&cntr->life);
	return cntr;
}

int destroy_comp_cntr(struct comp_cntr *cntr)
{
	int err = FOREIGN(comp_cntr, cntr) ? ENOENT : begin_destroy(&cntr->life);
	if (err)
		return fail(err);
	if ((err = engine->destroy_comp_cntr(cntr->handle)))
		return fail(undo_destroy(&cntr->life, err));
	cntr->handle = 0;
	end_destroy(&cntr->life, cntr);
	return 0;
}

// change sets a value of a counter, or adds to it.
static int change(struct comp_cntr *cntr, uint64_t *value, uint64_t n, int add)
{
	if (inherited(&cntr->life))
		return fail(ENODEV);
	if (add)
		__atomic_add_fetch(value, n, __ATOMIC_SEQ_CST);
	else
		__atomic_store_n(value, n, __ATOMIC_SEQ_CST);
	return 0;
}

int set_comp_cntr(struct comp_cntr *cntr, uint64_t value) { return change(cntr, &cntr->count, value, 0); }
int set_err_comp_cntr(struct comp_cntr *cntr, uint64_t value) { return change(cntr, &cntr->errors, value, 0); }
int inc_comp_cntr(struct comp_cntr *cntr, uint64_t amount) { return change(cntr, &cntr->count, amount, 1); }
int inc_err_comp_cntr(struct comp_cntr *cntr, uint64_t amount) { return change(cntr, &cntr->errors, amount, 1); }

int read_comp_cntr(struct comp_cntr *cntr, uint64_t *value)
{
	*value = __atomic_load_n(&cntr->count, __ATOMIC_ACQUIRE);
	return 0;
}

int read_err_comp_cntr(struct comp_cntr *cntr, uint64_t *value)
{
	*value = __atomic_load_n(&cntr->errors, __ATOMIC_ACQUIRE);
	return 0;
}

int attach_comp_cntr(struct ibv_qp *qp, struct comp_cntr *cntr, struct attach_attr *attr)
{
	if (attr->comp_mask)
		return fail(EOPNOTSUPP);
	return fail(engine->attach_comp_cntr(qp->handle, cntr->handle, attr->ops));
}

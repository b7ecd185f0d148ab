// Protection domains, memory regions and windows, address handles.
#include "front.h"

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct parent_domain *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	int err = engine->alloc_pd(to_context(c)->handle, &p->ibv.handle);
	if (err) {
		free(p);
		return fail_null(err);
	}
	p->ibv.context = p->made_by = c;
	publish(&p->life);
	return &p->ibv;
}

PUBLIC int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct parent_domain *p = (struct parent_domain *)pd;
	int err = FOREIGN(parent_domain, pd) ? ENOENT : begin_destroy(&p->life);
	if (err)
		return fail(err);
	if (p->of) {
		__atomic_sub_fetch(&((struct parent_domain *)p->of)->users, 1, __ATOMIC_RELAXED);
		if (p->td)
			__atomic_sub_fetch(&((struct td *)p->td)->users, 1, __ATOMIC_RELAXED);
	} else if ((err = __atomic_load_n(&p->users, __ATOMIC_RELAXED) ? EBUSY : engine->dealloc_pd(pd->handle))) {
		return fail(undo_destroy(&p->life, err));
	}
	pd->handle = 0;
	end_destroy(&p->life, p);
	return 0;
}

// A thread domain promises that only one thread uses its objects. The library does not use this
// promise.
struct ibv_td *alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr)
{
	if (attr->comp_mask)
		return fail_null(EINVAL);
	if (inherited(&to_context(c)->life))
		return fail_null(ENODEV);
	struct td *td = calloc(1, sizeof *td);
	if (!td)
		return NULL;
	td->ibv.context = c;
	publish(&td->life);
	return &td->ibv;
}

int dealloc_td(struct ibv_td *v)
{
	struct td *td = (struct td *)v;
	int err = begin_destroy(&td->life);
	if (err)
		return fail(err);
	if (__atomic_load_n(&td->users, __ATOMIC_RELAXED))
		return fail(undo_destroy(&td->life, EBUSY));
	end_destroy(&td->life, td);
	return 0;
}

struct ibv_pd *alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr)
{
	// The program's allocators are not used, because no queues are in its memory. The device is part
	// of the program and accesses all memory, even memory that confidential computing protects from
	// devices.
	// IBV_PARENT_DOMAIN_INIT_ATTR_…, of a later release.
	const uint32_t allow_cc_unprotected_alloc = 1 << 2;
	uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | allow_cc_unprotected_alloc;
	if (!attr->pd || attr->comp_mask & ~known)
		return fail_null(EINVAL);
	if (inherited(&to_context(c)->life) || inherited(&((struct parent_domain *)attr->pd)->life))
		return fail_null(ENODEV);
	struct parent_domain *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	struct ibv_pd *of = attr->pd;
	if (((struct parent_domain *)of)->of)
		of = ((struct parent_domain *)of)->of;
	p->ibv.context = p->made_by = c;
	p->ibv.handle = of->handle;
	p->of = of;
	p->td = attr->td;
	__atomic_add_fetch(&((struct parent_domain *)of)->users, 1, __ATOMIC_RELAXED);
	if (p->td)
		__atomic_add_fetch(&((struct td *)p->td)->users, 1, __ATOMIC_RELAXED);
	publish(&p->life);
	return &p->ibv;
}

// The range of an implicit region, which covers all memory of a program.
#define LOWEST ((char *)0x10000)
#define HIGHEST ((char *)0x7fffffff0000)

struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(struct mr));
	if (!mr)
		return NULL;
	if (!addr && !iova && length == SIZE_MAX && access & IBV_ACCESS_ON_DEMAND && !(access & IBV_ACCESS_ZERO_BASED)) {
		mr->length = length; // an implicit region covers all memory, even if it is mapped later
		addr = LOWEST;
		iova = (uintptr_t)addr;
		length = HIGHEST - LOWEST;
	}
	int err = engine->reg_mr(pd->handle, addr, length, iova, access, &mr->handle, &mr->lkey, &mr->rkey);
	if (err) {
		free(mr);
		return fail_null(err);
	}
	mr->context = ((struct mr *)mr)->made_by = pd->context;
	mr->pd = pd;
	publish(&((struct mr *)mr)->life);
	if (!mr->length) {
		mr->addr = addr;
		mr->length = length;
	}
	return mr;
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return reg_mr(pd, addr, length, iova, access);
}

PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(struct mr));
	if (!mr)
		return NULL;
	int err = engine->reg_dmabuf_mr(pd->handle, offset, length, iova, fd, access, &mr->handle, &mr->lkey, &mr->rkey);
	if (err) {
		free(mr);
		return fail_null(err);
	}
	mr->context = ((struct mr *)mr)->made_by = pd->context;
	mr->pd = pd;
	mr->addr = (void *)offset; // as in rdma-core
	mr->length = length;
	publish(&((struct mr *)mr)->life);
	return mr;
}

PUBLIC int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	int code = IBV_REREG_MR_ERR_INPUT;
	int no_memory = flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!length || !addr);
	int no_pd = flags & IBV_REREG_MR_CHANGE_PD && !pd;
	if (!flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || no_memory || no_pd) {
		errno = EINVAL;
		return code;
	}
	if (FOREIGN(mr, mr) || (flags & IBV_REREG_MR_CHANGE_PD && pd->context != mr->context)) {
		errno = ENOENT;
		return code;
	}
	int err = engine->rereg_mr(mr->handle, flags, pd ? pd->handle : 0, addr, length, access, &mr->lkey, &mr->rkey, &code);
	if (err) {
		errno = err;
		return code;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		mr->pd = pd;
	}
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	return 0;
}

PUBLIC int ibv_dereg_mr(struct ibv_mr *v)
{
	struct mr *mr = (struct mr *)v;
	int err = FOREIGN(mr, v) ? ENOENT : begin_destroy(&mr->life);
	if (err)
		return fail(err);
	if ((err = engine->dereg_mr(v->handle)))
		return fail(undo_destroy(&mr->life, err));
	v->handle = 0;
	if (mr->dm)
		__atomic_sub_fetch(&mr->dm->users, 1, __ATOMIC_RELAXED);
	end_destroy(&mr->life, mr);
	return 0;
}

struct ibv_mr *alloc_null_mr(struct ibv_pd *pd)
{
	struct ibv_mr *mr = calloc(1, sizeof(struct mr));
	if (!mr)
		return NULL;
	int err = engine->alloc_null_mr(pd->handle, &mr->handle, &mr->lkey);
	if (err) {
		free(mr);
		return fail_null(err);
	}
	mr->context = ((struct mr *)mr)->made_by = pd->context;
	mr->pd = pd;
	publish(&((struct mr *)mr)->life);
	mr->length = SIZE_MAX;
	return mr;
}

// advise_mr only checks the list. Memory is never pinned, so there is nothing to prefetch.
int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t n)
{
	if (!n || !list || flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
		return EINVAL;
	if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return EOPNOTSUPP;
	return engine->advise_mr(pd->handle, advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, (struct sr_sge *)list, n);
}

struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof(struct mw));
	if (!mw)
		return NULL;
	int err = engine->alloc_mw(pd->handle, type, &mw->handle, &mw->rkey);
	if (err) {
		free(mw);
		return fail_null(err);
	}
	mw->context = ((struct mw *)mw)->made_by = pd->context;
	mw->pd = pd;
	mw->type = type;
	publish(&((struct mw *)mw)->life);
	return mw;
}

int dealloc_mw(struct ibv_mw *v)
{
	struct mw *mw = (struct mw *)v;
	int err = FOREIGN(mw, v) ? ENOENT : begin_destroy(&mw->life);
	if (err)
		return fail(err);
	if ((err = engine->dealloc_mw(v->handle)))
		return fail(undo_destroy(&mw->life, err));
	v->handle = 0;
	end_destroy(&mw->life, mw);
	return 0;
}

int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *b)
{
	if (mw->type != IBV_MW_TYPE_1)
		return fail(EINVAL);
	struct ibv_mw_bind_info *i = &b->bind_info;
	return fail(engine->bind_mw(qp->handle, mw, b->wr_id, b->send_flags, i->mr, i->addr, i->length, i->mw_access_flags, &mw->rkey));
}

PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof(struct ah));
	if (!ah)
		return NULL;
	int err = engine->create_ah(pd->handle, (struct sr_ah_attr *)attr, &ah->handle);
	if (err) {
		free(ah);
		return fail_null(err);
	}
	ah->context = ((struct ah *)ah)->made_by = pd->context;
	((struct ah *)ah)->handle = ah->handle;
	ah->pd = pd;
	publish(&((struct ah *)ah)->life);
	return ah;
}

PUBLIC int ibv_destroy_ah(struct ibv_ah *v)
{
	struct ah *ah = (struct ah *)v;
	int err = FOREIGN(ah, v) ? ENOENT : begin_destroy(&ah->life);
	if (err)
		return fail(err);
	if ((err = engine->destroy_ah(v->handle)))
		return fail(undo_destroy(&ah->life, err));
	v->handle = 0;
	end_destroy(&ah->life, ah);
	return 0;
}

PUBLIC int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	if (!grh)
		return minus_one(EINVAL);
	int err = engine->init_ah(to_context(c)->dev, port, (struct sr_wc *)wc, grh, (struct sr_ah_attr *)attr);
	if (!err)
		return 0;
	return minus_one(err);
}

PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;
	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}

// Objects cannot be imported, because there is no uverbs descriptor to import them from.
PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle) { (void)pd; (void)handle; return fail_null(EOPNOTSUPP); }
PUBLIC void ibv_unimport_mr(struct ibv_mr *mr) { (void)mr; }
PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t handle) { (void)c; (void)handle; return fail_null(EOPNOTSUPP); }
PUBLIC void ibv_unimport_pd(struct ibv_pd *pd) { (void)pd; }
PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t handle) { (void)c; (void)handle; return fail_null(EOPNOTSUPP); }
PUBLIC void ibv_unimport_dm(struct ibv_dm *dm) { (void)dm; }

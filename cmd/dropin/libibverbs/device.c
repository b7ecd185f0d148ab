// Devices, their contexts, queries and asynchronous events.
#include "front.h"
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/eventfd.h>

PUBLIC struct ibv_device **ibv_get_device_list(int *num)
{
	if (num)
		*num = 0;
	int err = front_load();
	if (err)
		return fail_null(err);
	struct ibv_device **list = calloc(device_count + 1, sizeof *list);
	if (!list)
		return NULL;
	for (int i = 0; i < device_count; i++)
		list[i] = &devices[i].ibv;
	if (num)
		*num = device_count;
	return list;
}

PUBLIC void ibv_free_device_list(struct ibv_device **list) { free(list); }
PUBLIC const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
PUBLIC __be64 ibv_get_device_guid(struct ibv_device *d) { return ((struct device *)d)->sr.guid; }
PUBLIC int ibv_get_device_index(struct ibv_device *d) { return ((struct device *)d)->index; }

// describe_device stores a device's attributes, which do not change. After fork, a child can
// query them in a context of its parent.
static int describe_device(struct device *d)
{
	if (__atomic_load_n(&d->described, __ATOMIC_ACQUIRE))
		return 0;
	struct sr_device_attr attr;
	struct sr_device_attr_ex ex;
	int err = engine->query_device(d->index, &attr, &ex);
	if (err)
		return err;
	d->attr = attr; // other threads write the same
	d->ex = ex;
	__atomic_store_n(&d->described, 1, __ATOMIC_RELEASE);
	return 0;
}

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct context *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	struct ibv_context *v = &c->ex.context;
	c->dev = ((struct device *)d)->index;
	int err = front_load(); // a child may have the parent's list of devices
	if (!err)
		err = describe_device((struct device *)d);
	if (!err)
		err = engine->open_context(c->dev, &c->handle, &v->async_fd);
	// Programs may read its flags or poll it. It is never readable.
	if (!err && (v->cmd_fd = eventfd(0, EFD_CLOEXEC)) < 0) {
		err = errno;
		engine->close_context(c->handle);
	}
	if (err) {
		free(c);
		return fail_null(err);
	}
	v->device = d;
	v->num_comp_vectors = 1;
	v->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&v->mutex, NULL);
	c->ex.sz = sizeof c->ex;
	context_ops(c);
	publish(&c->life);
	return v;
}

PUBLIC int ibv_close_device(struct ibv_context *v)
{
	struct context *c = to_context(v);
	if (inherited(&c->life)) {
		close_copy(&v->cmd_fd);
		close_copy(&v->async_fd);
		return 0;
	}
	int err = begin_destroy(&c->life);
	if (err)
		return minus_one(err);
	if ((err = engine->close_context(c->handle)))
		return minus_one(undo_destroy(&c->life, err));
	int fd = v->cmd_fd, before = forbid_cancel();
	v->cmd_fd = v->async_fd = -1;
	c->handle = 0;
	close(fd);
	allow_cancel(before);
	end_destroy(&c->life, c);
	return 0;
}

PUBLIC struct ibv_context *ibv_import_device(int cmd_fd)
{
	(void)cmd_fd;
	return fail_null(EOPNOTSUPP); // objects cannot be shared with another process
}

PUBLIC int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *attr)
{
	struct device *d = (struct device *)c->device;
	memcpy(attr, &d->attr, sizeof d->attr);
	return 0;
}

#define ODP_RC (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | \
	IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV)

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *attr, size_t size)
{
	if (in && in->comp_mask)
		return EINVAL;
	if (size < sizeof attr->orig_attr)
		return EINVAL;
	struct ibv_device_attr_ex a;
	struct sr_device_attr_ex ex = ((struct device *)c->device)->ex;
	memset(&a, 0, sizeof a);
	ibv_query_device(c, &a.orig_attr);
	int iwarp = c->device->transport_type == IBV_TRANSPORT_IWARP;
	a.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	a.max_dm_size = MAX_DM_SIZE;
	a.odp_caps.per_transport_caps.rc_odp_caps = ODP_RC;
	if (!iwarp) {
		a.odp_caps.per_transport_caps.rc_odp_caps |= ODP_SUPPORT_FLUSH | ODP_SUPPORT_ATOMIC_WRITE;
		a.odp_caps.per_transport_caps.uc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
		a.odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
		a.xrc_odp_caps = ODP_RC;
	}
	a.completion_timestamp_mask = ex.completion_timestamp_mask;
	a.hca_core_clock = ex.hca_core_clock;
	a.device_cap_flags_ex = ex.device_cap_flags;
	a.packet_pacing_caps.qp_rate_limit_min = ex.rate_limit_min;
	a.packet_pacing_caps.qp_rate_limit_max = ex.rate_limit_max;
	a.packet_pacing_caps.supported_qpts = ex.rate_limit_qpts;
	a.cq_mod_caps.max_cq_count = ex.max_cq_count;
	a.cq_mod_caps.max_cq_period = ex.max_cq_period;
	a.phys_port_cnt_ex = a.orig_attr.phys_port_cnt;
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof a ? size : sizeof a);
	return 0;
}

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct sr_port_attr a;
	int err = engine->query_port(to_context(c)->dev, port, &a);
	if (err)
		return err;
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof a ? size : sizeof a);
	return 0;
}

// ibv_query_port_speed returns the speed of a port in units of 100 Mbit/s: the number of lanes
// times the speed of a lane.
PUBLIC int ibv_query_port_speed(struct ibv_context *c, uint32_t port, uint64_t *speed)
{
	struct sr_port_attr a;
	int err = port > UINT8_MAX ? EINVAL : engine->query_port(to_context(c)->dev, port, &a);
	if (err)
		return fail(err);
	static const uint16_t lanes[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};
	static const uint16_t lane[] = {[1] = 25, [2] = 50, [4] = 100, [8] = 100, [16] = 140, [32] = 250, [64] = 500, [128] = 1000,
		[256] = 2000};
	if (a.active_width >= sizeof lanes / sizeof *lanes || a.active_speed_ex >= sizeof lane / sizeof *lane)
		return fail(EINVAL);
	*speed = (uint64_t)lanes[a.active_width] * lane[a.active_speed_ex];
	return 0;
}

PUBLIC int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return query_port(c, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

PUBLIC int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	struct sr_gid_entry e;
	int err = engine->query_gid(to_context(c)->dev, port, index, &e);
	if (err == ENODATA) { // an empty entry is returned as a GID of zeros
		memset(gid, 0, sizeof *gid);
		return 0;
	}
	if (err)
		return minus_one(err);
	memcpy(gid, e.gid, sizeof *gid);
	return 0;
}

// query_gid_type returns an enum ibv_gid_type_sysfs, which does not distinguish IB from RoCE v1.
// ibv_devinfo and pyverbs use it.
int query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, int *type)
{
	struct sr_gid_entry e;
	int err = engine->query_gid(to_context(c)->dev, port, index, &e);
	if (err && err != ENODATA)
		return minus_one(err);
	*type = !err && e.type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}

PUBLIC int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct sr_gid_entry e;
	if (flags)
		return EINVAL;
	int err = engine->query_gid(to_context(c)->dev, port, index, &e);
	if (err)
		return err;
	memset(entry, 0, size);
	memcpy(entry, &e, size < sizeof e ? size : sizeof e);
	return 0;
}

PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags, size_t size)
{
	struct sr_port_attr a;
	size_t n = 0;
	if (flags)
		return -EINVAL;
	for (int port = 1; !engine->query_port(to_context(c)->dev, port, &a); port++)
		for (int i = 0; i < a.gid_tbl_len; i++) {
			struct sr_gid_entry e;
			if (engine->query_gid(to_context(c)->dev, port, i, &e))
				continue;
			if (n == max)
				return -EINVAL;
			char *to = (char *)entries + n++ * size;
			memset(to, 0, size);
			memcpy(to, &e, size < sizeof e ? size : sizeof e);
		}
	return n;
}

PUBLIC int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	int err = engine->query_pkey(to_context(c)->dev, port, index, pkey);
	if (!err)
		return 0;
	return minus_one(err);
}

PUBLIC int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	__be16 k;
	for (int i = 0; !engine->query_pkey(to_context(c)->dev, port, i, &k); i++)
		if (k == pkey)
			return i;
	return minus_one(EINVAL);
}

static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	uint32_t want = v->comp_mask;
	uint64_t ns;
	v->comp_mask = 0;
	if (want & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	int err = engine->query_clock(to_context(c)->dev, &ns);
	if (!err && want) {
		v->raw_clock.tv_sec = ns / 1000000000;
		v->raw_clock.tv_nsec = ns % 1000000000;
		v->comp_mask = want;
	}
	return err;
}

PUBLIC int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	for (;;) {
		struct sr_async_event e;
		if (inherited(&to_context(c)->life))
			return minus_one(ENODEV);
		if (read_event(c->async_fd))
			return -1;
		int err = engine->get_async_event(to_context(c)->handle, &e);
		if (err == EAGAIN) // the event's object was destroyed
			continue;
		if (err)
			return minus_one(err);
		memset(event, 0, sizeof *event);
		event->event_type = e.type;
		if (!e.of) {
			event->element.port_num = e.port;
			return 0;
		}
		switch (e.type) {
		case IBV_EVENT_CQ_ERR:
			event->element.cq = (struct ibv_cq *)((char *)e.of - offsetof(struct cq, events));
			acquire(&((struct cq *)event->element.cq)->life);
			break;
		case IBV_EVENT_SRQ_ERR:
		case IBV_EVENT_SRQ_LIMIT_REACHED:
			event->element.srq = (struct ibv_srq *)((char *)e.of - offsetof(struct srq, events));
			acquire(&((struct srq *)event->element.srq)->life);
			break;
		default:
			event->element.qp = (struct ibv_qp *)((char *)e.of - offsetof(struct qp, events));
			acquire(&((struct qp *)event->element.qp)->life);
		}
		return 0;
	}
}

void count_ack(const struct life *life, pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *count, unsigned int n)
{
	if (inherited(life)) // no thread waits
		return;
	pthread_mutex_lock(m);
	*count += n;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(m);
}

struct wait {
	struct life *life;
	pthread_mutex_t *m;
};

static void stop_waiting(void *v)
{
	struct wait *w = v;
	pthread_mutex_unlock(w->m);
	undo_destroy(w->life, 0);
}

void wait_acked(struct life *life, pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *acknowledged, uint32_t *given)
{
	struct wait w = {life, m};
	pthread_mutex_lock(m);
	pthread_cleanup_push(stop_waiting, &w);
	while (*acknowledged != __atomic_load_n(given, __ATOMIC_RELAXED))
		pthread_cond_wait(cond, m);
	pthread_cleanup_pop(0);
	pthread_mutex_unlock(m);
}

PUBLIC void ibv_ack_async_event(struct ibv_async_event *e)
{
	switch (e->event_type) {
	case IBV_EVENT_CQ_ERR: {
		struct ibv_cq *cq = e->element.cq;
		count_ack(&((struct cq *)cq)->life, &cq->mutex, &cq->cond, &cq->async_events_completed, 1);
		break;
	}
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: {
		struct ibv_srq *srq = e->element.srq;
		count_ack(&((struct srq *)srq)->life, &srq->mutex, &srq->cond, &srq->events_completed, 1);
		break;
	}
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: {
		struct ibv_qp *qp = e->element.qp;
		count_ack(&((struct qp *)qp)->life, &qp->mutex, &qp->cond, &qp->events_completed, 1);
		break;
	}
	default:; // an event of a port or the device
	}
}

// number reads digits, and returns what follows them; NULL without digits, or with too many. The
// headers of glibc 2.38 and later replace strtol and sscanf by functions that older ones lack.
static const char *number(const char *s, int *n)
{
	const char *first = s;
	for (*n = 0; *s >= '0' && *s <= '9' && s - first < 9; s++)
		*n = 10 * *n + (*s - '0');
	return s > first ? s : NULL;
}

// gid_file says whether a file is that of an entry of a port's GID table.
static int gid_file(const char *file, int *port, int *index)
{
	static const char ports[] = "ports/", gids[] = "/gids/";
	if (strncmp(file, ports, sizeof ports - 1) || !(file = number(file + sizeof ports - 1, port)))
		return 0;
	if (strncmp(file, gids, sizeof gids - 1) || !(file = number(file + sizeof gids - 1, index)))
		return 0;
	return !*file;
}

// ibv_read_sysfs_file returns the files that programs read in a device's directory. In other
// directories it reads the file.
PUBLIC int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	struct device *d = NULL;
	int port, index, n;
	char text[128];
	for (int i = 0; i < device_count; i++)
		if (!strcmp(dir, devices[i].ibv.ibdev_path) || !strcmp(dir, devices[i].ibv.dev_path))
			d = &devices[i];
	if (!d) {
		char path[4096];
		if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
			return minus_one(ENAMETOOLONG);
		int before = forbid_cancel();
		FILE *f = fopen(path, "re");
		n = f ? (int)fread(buf, 1, size, f) : -1;
		if (f)
			fclose(f);
		allow_cancel(before);
		if (!f)
			return -1;
		if (n > 0 && buf[n - 1] == '\n')
			buf[--n] = 0;
		else if (n < (int)size)
			buf[n] = 0;
		return n;
	}
	if (!strcmp(file, "board_id")) {
		strcpy(text, d->sr.board_id);
	} else if (!strcmp(file, "hca_type")) {
		strcpy(text, d->sr.hca_type);
	} else if (!strcmp(file, "node_type")) {
		strcpy(text, d->ibv.node_type == IBV_NODE_RNIC ? "4: RNIC" : "1: CA");
	} else if (!strcmp(file, "node_guid") || !strcmp(file, "fw_ver")) {
		struct sr_device_attr a;
		struct sr_device_attr_ex ex;
		int err = engine->query_device(d->index, &a, &ex);
		if (err)
			return minus_one(err);
		uint8_t *g = (uint8_t *)&a.node_guid;
		if (file[0] == 'f')
			memcpy(text, a.fw_ver, sizeof a.fw_ver);
		else
			sprintf(text, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
	} else if (gid_file(file, &port, &index)) {
		struct sr_gid_entry e;
		int err = engine->query_gid(d->index, port, index, &e);
		if (err == ENODATA) {
			memset(&e, 0, sizeof e);
		} else if (err) {
			return minus_one(err);
		}
		for (int k = 0, o = 0; k < 16; k += 2)
			o += sprintf(text + o, k ? ":%02x%02x" : "%02x%02x", e.gid[k], e.gid[k + 1]);
	} else {
		return minus_one(ENOENT);
	}
	n = snprintf(buf, size, "%s", text);
	return n < (int)size ? n : (int)size;
}

PUBLIC const char *ibv_get_sysfs_path(void) { return "/sys"; }

// Nothing needs to be done for fork. Memory is accessed by its address in this process and is not
// pinned, and a child has its own copy.
PUBLIC int ibv_fork_init(void) { return 0; }
PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
PUBLIC int ibv_dontfork_range(void *base, size_t size) { (void)base; (void)size; return 0; }
PUBLIC int ibv_dofork_range(void *base, size_t size) { (void)base; (void)size; return 0; }

void context_ops(struct context *c)
{
	struct ibv_context_ops *o = &c->ex.context.ops;
	o->alloc_mw = alloc_mw;
	o->bind_mw = bind_mw;
	o->dealloc_mw = dealloc_mw;
	o->poll_cq = poll_cq;
	o->req_notify_cq = req_notify_cq;
	o->post_srq_recv = post_srq_recv;
	o->post_send = post_send;
	o->post_recv = post_recv;
	// For functions that are NULL, verbs.h returns EOPNOTSUPP.
	struct verbs_context *x = &c->ex;
	x->query_port = query_port;
	x->query_device_ex = query_device_ex;
	x->query_rt_values = query_rt_values;
	x->alloc_null_mr = alloc_null_mr;
	x->advise_mr = advise_mr;
	x->alloc_dm = alloc_dm;
	x->free_dm = free_dm;
	x->reg_dm_mr = reg_dm_mr;
	x->alloc_td = alloc_td;
	x->dealloc_td = dealloc_td;
	x->alloc_parent_domain = alloc_parent_domain;
	x->create_cq_ex = create_cq_ex;
	x->modify_cq = modify_cq;
	x->create_qp_ex = create_qp_ex;
	x->open_qp = open_qp;
	x->modify_qp_rate_limit = modify_qp_rate_limit;
	x->ibv_create_flow = create_flow;
	x->ibv_destroy_flow = destroy_flow;
	x->create_srq_ex = create_srq_ex;
	x->get_srq_num = get_srq_num;
	x->open_xrcd = open_xrcd;
	x->close_xrcd = close_xrcd;
}

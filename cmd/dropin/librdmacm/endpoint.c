// Endpoints: resolution of names, and IDs that are ready for use.
#include "cm.h"
#include <netdb.h>

static int copy_addr(struct sockaddr **to, socklen_t *to_len, const struct sockaddr *from, socklen_t len)
{
	if (!(*to = malloc(len)))
		return ENOMEM;
	memcpy(*to, from, len);
	*to_len = len;
	return 0;
}

static void free_addrinfo(void *r) { rdma_freeaddrinfo(r); }

// look_up calls getaddrinfo and fills in one address. It returns the result of getaddrinfo. If the
// thread is cancelled meanwhile, r is freed.
static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo *r)
{
	int space = hints->ai_port_space, type = hints->ai_qp_type, passive = hints->ai_flags & RAI_PASSIVE;
	int datagrams = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB || (space != RDMA_PS_TCP && type == IBV_QPT_UD);
	struct addrinfo *ai, h = {
		.ai_flags = (passive ? AI_PASSIVE : 0) | (hints->ai_flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0),
		.ai_family = hints->ai_family == AF_IB ? AF_UNSPEC : hints->ai_family, // whatever RAI_FAMILY says, as in rdma-core
		.ai_socktype = datagrams ? SOCK_DGRAM : SOCK_STREAM,
	};
	int err;
	pthread_cleanup_push(free_addrinfo, r);
	err = getaddrinfo(node, service, &h, &ai);
	pthread_cleanup_pop(0);
	if (err)
		return err;
	r->ai_flags = passive;
	r->ai_family = ai->ai_family;
	r->ai_qp_type = type ? type : datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	r->ai_port_space = space ? space : datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
	if (passive)
		err = copy_addr(&r->ai_src_addr, &r->ai_src_len, ai->ai_addr, ai->ai_addrlen);
	else
		err = copy_addr(&r->ai_dst_addr, &r->ai_dst_len, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(ai);
	return err ? EAI_MEMORY : 0;
}

// subnet_administrator returns the errno of a query of InfiniBand's service records, which Ethernet
// ports do not have.
static int subnet_administrator(const char *node, const char *service, int flags)
{
	if (node || flags & ADDRINFO_DNS)
		return EOPNOTSUPP;
	return service ? ENOENT : EINVAL;
}

// rdma_getaddrinfo returns an error of getaddrinfo unchanged, for gai_strerror.
PUBLIC int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	if (!node && !service && !hints)
		return result(EINVAL);
	int err = front_load();
	if (!err && hints && hints->ai_flags & ADDRINFO_SA)
		err = subnet_administrator(node, service, hints->ai_flags);
	if (err)
		return result(err);
	if (!hints)
		hints = &none;
	struct rdma_addrinfo *r = calloc(1, sizeof *r);
	if (!r)
		return -1;
	if (node || service) {
		err = look_up(node, service, hints, r);
	} else {
		r->ai_flags = hints->ai_flags;
		r->ai_family = hints->ai_family;
		r->ai_qp_type = hints->ai_qp_type;
		r->ai_port_space = hints->ai_port_space;
		if (hints->ai_dst_len && copy_addr(&r->ai_dst_addr, &r->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len))
			err = EAI_MEMORY;
	}
	if (!err && !r->ai_src_len && hints->ai_src_len && copy_addr(&r->ai_src_addr, &r->ai_src_len, hints->ai_src_addr, hints->ai_src_len))
		err = EAI_MEMORY;
	if (err) {
		rdma_freeaddrinfo(r);
		return err;
	}
	*res = r;
	return 0;
}

PUBLIC void rdma_freeaddrinfo(struct rdma_addrinfo *r)
{
	while (r) {
		struct rdma_addrinfo *next = r->ai_next;
		free(r->ai_src_addr);
		free(r->ai_dst_addr);
		free(r->ai_src_canonname);
		free(r->ai_dst_canonname);
		free(r->ai_route);
		free(r->ai_connect);
		free(r);
		r = next;
	}
}

// resolve looks names up for an ID, and reports that as an event. It returns an errno. As in
// rdma-core, this is negative if it is an error of getaddrinfo, and the lookup is not in the
// background.
static int resolve(struct cm_id *s, const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *r;
	int err;
	if (hints && hints->ai_flags & ADDRINFO_SA) {
		err = subnet_administrator(node, service, hints->ai_flags);
		// The kernel's errors: the ID has no device, or one that is not InfiniBand's.
		return err == ENOENT ? s->id.verbs ? EOPNOTSUPP : EINVAL : err;
	}
	if ((err = rdma_getaddrinfo(node, service, hints, &r)))
		return err == -1 ? errno : err;
	pthread_mutex_lock(&s->mutex); // until the event is written, so that it is there when its result is
	err = engine->cm_write_event(s->handle, EVENT_ADDRINFO_RESOLVED, 0, 0);
	if (!err)
		s->resolved = r;
	pthread_mutex_unlock(&s->mutex);
	if (err)
		rdma_freeaddrinfo(r);
	return err;
}

// claim begins a resolution, if none has begun whose result is not taken yet.
static int claim(struct cm_id *s)
{
	pthread_mutex_lock(&s->mutex);
	int busy = s->resolving;
	s->resolving = 1;
	pthread_mutex_unlock(&s->mutex);
	return busy ? EBUSY : 0;
}

static void unclaim(void *v)
{
	struct cm_id *s = v;
	pthread_mutex_lock(&s->mutex);
	s->resolving = 0;
	pthread_mutex_unlock(&s->mutex);
}

PUBLIC int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	if (!id)
		return result(EINVAL);
	struct cm_id *s = to_id(id);
	if (inherited(&s->life))
		return result(ENODEV);
	int err = claim(s);
	if (err)
		return result(err);
	pthread_cleanup_push(unclaim, s);
	err = resolve(s, node, service, hints);
	pthread_cleanup_pop(err);
	return complete(s, err);
}

PUBLIC int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info)
{
	if (!id || !info)
		return result(EINVAL);
	struct cm_id *s = to_id(id);
	if (inherited(&s->life))
		return result(ENODEV);
	pthread_mutex_lock(&s->mutex);
	struct rdma_addrinfo *r = s->resolved;
	if (r) {
		*info = r;
		s->resolved = NULL;
		s->resolving = 0;
	}
	pthread_mutex_unlock(&s->mutex);
	return result(r ? 0 : ENOENT);
}

// How long rdma_create_ep waits for an address, and for a route, in ms.
#define RESOLVE_TIMEOUT 2000

static int prepare_passive(struct rdma_cm_id *id, struct rdma_addrinfo *r, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	if (rdma_bind_addr(id, r->ai_src_addr))
		return -1;
	if (pd && id->verbs && pd->context != id->verbs)
		return result(EINVAL);
	if (pd)
		id->pd = pd;
	if (!a)
		return 0;
	struct ibv_qp_init_attr *copy = malloc(sizeof *copy);
	if (!copy)
		return -1;
	*copy = *a;
	copy->qp_type = r->ai_qp_type;
	to_id(id)->qp_init_attr = copy;
	return 0;
}

static int prepare_active(struct rdma_cm_id *id, struct rdma_addrinfo *r, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	if (rdma_resolve_addr(id, r->ai_src_addr, r->ai_dst_addr, RESOLVE_TIMEOUT))
		return -1;
	if (rdma_resolve_route(id, RESOLVE_TIMEOUT))
		return -1;
	if (!a)
		return 0;
	a->qp_type = r->ai_qp_type;
	return rdma_create_qp(id, pd, a);
}

static void destroy_ep(void *id) { rdma_destroy_ep(id); }

PUBLIC int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *r, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct rdma_cm_id *id;
	int failed;
	if (create_id(NULL, &id, NULL, r->ai_port_space, r->ai_qp_type))
		return -1;
	pthread_cleanup_push(destroy_ep, id);
	failed = r->ai_flags & RAI_PASSIVE ? prepare_passive(id, r, pd, a) : prepare_active(id, r, pd, a);
	pthread_cleanup_pop(0);
	if (failed) {
		int err = errno;
		rdma_destroy_ep(id);
		return result(err);
	}
	*out = id;
	return 0;
}

PUBLIC void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

PUBLIC int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct cm_id *l = to_id(listen);
	struct rdma_cm_event *ev;
	if (!l->sync)
		return result(EINVAL);
	ack_own_event(listen);
	if (rdma_get_cm_event(listen->channel, &ev))
		return -1;
	int err = 0;
	if (ev->status)
		err = ev->status < 0 ? -ev->status : ev->status;
	else if (ev->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		err = EINVAL;
	if (!err && l->qp_init_attr) {
		struct ibv_qp_init_attr a = *l->qp_init_attr;
		// The listener's default PD belongs to the device that the listener is bound to. The request may
		// belong to another device.
		struct ibv_pd *pd = listen->pd && listen->pd->context == ev->id->verbs ? listen->pd : NULL;
		if (rdma_create_qp(ev->id, pd, &a))
			err = errno;
	}
	if (err) {
		listen->event = ev;
		return result(err);
	}
	ev->id->event = ev;
	*id = ev->id;
	return 0;
}

// Connections, and multicast groups.
#include "cm.h"

// param copies parameters for the engine. If the ID has a QP, its number is used. param returns
// NULL for NULL.
static struct sr_cm_param *param(struct sr_cm_param *to, struct rdma_cm_id *id, struct rdma_conn_param *from)
{
	if (!from)
		return NULL;
	memcpy(to, from, sizeof *to);
	if (id->qp) {
		to->qp_num = id->qp->qp_num;
		to->srq = id->qp->srq != NULL;
	}
	return to;
}

PUBLIC int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
	struct sr_cm_param c;
	return complete(to_id(id), engine->cm_connect(to_id(id)->handle, qp_handle(id), param(&c, id, p)));
}

PUBLIC int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	int err = engine->cm_listen(to_id(id)->handle, backlog);
	if (!err)
		err = refresh(to_id(id));
	return result(err);
}

PUBLIC int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
	struct sr_cm_param c;
	int err = engine->cm_accept(to_id(id)->handle, qp_handle(id), param(&c, id, p));
	if (err)
		return result(err);
	if (id->qp_type == IBV_QPT_UD) // no event follows
		return 0;
	if (id->qp)
		id->qp->state = IBV_QPS_RTS;
	return complete(to_id(id), 0);
}

PUBLIC int rdma_establish(struct rdma_cm_id *id)
{
	if (id->qp) // the library has moved the QP to RTS
		return result(EINVAL);
	return result(engine->cm_establish(to_id(id)->handle));
}

PUBLIC int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	return result(engine->cm_reject(to_id(id)->handle, (void *)data, data ? length : 0));
}

// The engine supports only the reason "rejected by the application". The peer does not learn that
// ECE is the reason.
PUBLIC int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t length) { return rdma_reject(id, data, length); }

PUBLIC int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
	if (event != IBV_EVENT_COMM_EST)
		return result(EINVAL);
	return result(engine->cm_notify(to_id(id)->handle));
}

PUBLIC int rdma_disconnect(struct rdma_cm_id *id)
{
	int known = id->event && id->event->event == RDMA_CM_EVENT_DISCONNECTED;
	int err = engine->cm_disconnect(to_id(id)->handle);
	if (!err && id->qp)
		id->qp->state = IBV_QPS_ERR;
	if (!err && known) // a synchronous ID already has the event
		return 0;
	return complete(to_id(id), err);
}

// Enhanced connection establishment (ECE) lets two adapters of one vendor negotiate extensions.
// These devices have no extensions and no vendor ID.
PUBLIC int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!id || id->qp || !ece || !ece->vendor_id || ece->comp_mask)
		return result(EINVAL);
	return result(EOPNOTSUPP);
}

PUBLIC int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!id || id->qp || !ece)
		return result(EINVAL);
	memset(ece, 0, sizeof *ece);
	return 0;
}

// get_group copies a group's address in the form that events have: without a port, and IPv4 as
// AF_INET.
static int get_group(struct sr_cm_addr *to, const struct sockaddr *from)
{
	struct sr_cm_addr a;
	int err = get_addr(&a, from);
	if (err)
		return err;
	memset(to, 0, sizeof *to);
	struct sockaddr_in *to4 = (struct sockaddr_in *)to->bytes, *from4 = (struct sockaddr_in *)a.bytes;
	struct sockaddr_in6 *to6 = (struct sockaddr_in6 *)to->bytes, *from6 = (struct sockaddr_in6 *)a.bytes;
	if (from4->sin_family == AF_INET) {
		to4->sin_family = AF_INET;
		to4->sin_addr = from4->sin_addr;
	} else if (IN6_IS_ADDR_V4MAPPED(&from6->sin6_addr)) {
		to4->sin_family = AF_INET;
		memcpy(&to4->sin_addr, &from6->sin6_addr.s6_addr[12], 4);
	} else {
		to6->sin6_family = AF_INET6;
		to6->sin6_addr = from6->sin6_addr;
	}
	return 0;
}

// leave_group returns the group with an address, and marks it so that no other thread finds it. If
// there is none, it returns NULL.
static struct group *leave_group(struct cm_id *s, struct sr_cm_addr *addr)
{
	lock(&s->life, &s->mutex);
	struct group *g = s->groups;
	while (g && (g->left || memcmp(&g->addr, addr, sizeof *addr)))
		g = g->next;
	if (g)
		g->left = 1;
	unlock(&s->life, &s->mutex);
	return g;
}

static void unlock_mutex(void *m) { pthread_mutex_unlock(m); }

// free_group frees a group that the ID has left, once its events are acknowledged. If the thread is
// cancelled meanwhile, the group is freed with the ID.
static void free_group(struct cm_id *s, struct group *g)
{
	if (inherited(&s->life))
		return;
	pthread_mutex_lock(&s->mutex);
	pthread_cleanup_push(unlock_mutex, &s->mutex);
	g->left = 1;
	while (g->completed != g->reported)
		pthread_cond_wait(&s->acked, &s->mutex);
	for (struct group **at = &s->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	pthread_cleanup_pop(1);
	free(g);
}

static int join(struct rdma_cm_id *id, struct sockaddr *addr, int send_only, void *context)
{
	struct cm_id *s = to_id(id);
	struct sr_cm_addr a;
	int err = get_group(&a, addr);
	if (err)
		return result(err);
	struct group *g = calloc(1, sizeof *g);
	if (!g)
		return -1;
	g->addr = a;
	g->context = context;
	lock(&s->life, &s->mutex);
	g->next = s->groups;
	s->groups = g;
	unlock(&s->life, &s->mutex);
	if ((err = engine->cm_join(s->handle, &a, send_only)))
		free_group(s, g);
	return complete(s, err);
}

PUBLIC int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	return join(id, addr, 0, context);
}

PUBLIC int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	uint32_t both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return result(ENOTSUP);
	if ((attr->comp_mask & both) != both || attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return result(EINVAL);
	return join(id, attr->addr, attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

PUBLIC int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct cm_id *s = to_id(id);
	struct sr_cm_addr a;
	int err = get_group(&a, addr);
	if (err)
		return result(err);
	struct group *g = leave_group(s, &a);
	if (!g)
		return result(EADDRNOTAVAIL);
	err = engine->cm_leave(s->handle, &a);
	free_group(s, g);
	return result(err);
}

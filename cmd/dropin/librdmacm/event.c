// Event channels and their events.
#include "cm.h"

PUBLIC struct rdma_event_channel *rdma_create_event_channel(void)
{
	int err = front_load();
	struct channel *ch = err ? NULL : calloc(1, sizeof *ch);
	if (!ch) {
		if (err)
			errno = err;
		return NULL;
	}
	if ((err = engine->cm_create_channel(&ch->handle, &ch->ch.fd))) {
		free(ch);
		errno = err;
		return NULL;
	}
	publish(&ch->life);
	return &ch->ch;
}

PUBLIC void rdma_destroy_event_channel(struct rdma_event_channel *v)
{
	struct channel *ch = to_channel(v);
	if (inherited(&ch->life))
		close_copy(&v->fd);
	if (begin_destroy(&ch->life))
		return;
	v->fd = -1;
	engine->cm_destroy_channel(ch->handle);
	ch->handle = 0;
	struct cm_id *spare = __atomic_exchange_n(&ch->spare, NULL, __ATOMIC_ACQ_REL);
	if (spare)
		free_id(spare);
	end_destroy(&ch->life, ch);
}

// The time, in seconds, that a thread waits if another thread has destroyed the channel of which it
// takes an event.
#define DESTROYED_CHANNEL_WAIT 1

// channel_error returns the errno for a thread that could not read a channel's descriptor or take
// its event. If another thread has destroyed the channel, the caller first waits. On a kernel
// device such a thread waits in the kernel until the process ends. Most programs end soon, and
// should not exit with the status for this error.
static int channel_error(struct channel *ch)
{
	int err = errno;
	if (ch->ch.fd < 0)
		sleep(DESTROYED_CHANNEL_WAIT);
	return err;
}

// take_spare returns a structure for the ID of a connection request, which the next event may be.
static struct cm_id *take_spare(struct channel *ch)
{
	struct cm_id *s = __atomic_exchange_n(&ch->spare, NULL, __ATOMIC_ACQ_REL);
	return s ? s : alloc_id(&ch->ch, NULL, 0, IBV_QPT_RC);
}

static void keep_spare(struct channel *ch, struct cm_id *s)
{
	struct cm_id *none = NULL;
	if (!__atomic_compare_exchange_n(&ch->spare, &none, s, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		free_id(s);
}

// acknowledge counts an acknowledged event of an ID, and of a group if g is not NULL.
static void acknowledge(struct cm_id *s, struct group *g)
{
	if (inherited(&s->life)) // no thread waits
		return;
	pthread_mutex_lock(&s->mutex);
	s->completed++;
	if (g)
		g->completed++;
	pthread_cond_broadcast(&s->acked);
	pthread_mutex_unlock(&s->mutex);
}

// find_group returns the group of an event and counts the event. It returns NULL if the ID has left
// the group.
static struct group *find_group(struct cm_id *s, struct sr_cm_addr *addr)
{
	pthread_mutex_lock(&s->mutex);
	struct group *g = s->groups;
	while (g && (g->left || memcmp(&g->addr, addr, sizeof *addr)))
		g = g->next;
	if (g)
		g->reported++;
	pthread_mutex_unlock(&s->mutex);
	return g;
}

static void set_conn(struct rdma_cm_event *ev, struct sr_cm_event *e, void *data)
{
	memcpy(&ev->param.conn, &e->conn, sizeof ev->param.conn);
	ev->param.conn.private_data = e->data_len ? data : NULL;
	ev->param.conn.private_data_len = e->data_len;
}

static void set_ud(struct rdma_cm_event *ev, struct sr_cm_event *e, void *data)
{
	memcpy(&ev->param.ud, &e->ud, sizeof ev->param.ud);
	ev->param.ud.private_data = e->data_len ? data : NULL;
	ev->param.ud.private_data_len = e->data_len;
}

// init_request_id makes a spare structure the ID of a connection request.
static int init_request_id(struct cm_id *s, struct cm_id *listener, struct sr_cm_event *e)
{
	s->handle = e->handle;
	s->id.channel = listener->id.channel;
	s->id.context = listener->id.context;
	s->id.ps = listener->id.ps;
	s->id.qp_type = listener->id.qp_type;
	if (listener->sync && rdma_migrate_id(&s->id, NULL))
		return errno;
	return refresh(s);
}

// fill_event converts an event of the engine for the program. If there is nothing to report, it
// returns 0.
static int fill_event(struct event *out, struct sr_cm_event *e)
{
	struct rdma_cm_event *ev = &out->ev;
	struct cm_id *s = (struct cm_id *)(uintptr_t)e->id;
	int err;
	memset(ev, 0, sizeof *ev);
	out->group = NULL;
	memcpy(out->data, e->data, sizeof out->data);
	acquire(&s->life);
	ev->id = &s->id;
	ev->event = e->type;
	ev->status = e->status;
	switch (e->type) {
	case EVENT_USER:
	case EVENT_ADDRINFO_RESOLVED:
		memcpy(&ev->param, &e->arg, sizeof e->arg); // param.arg, which older headers lack
		return 1;
	case RDMA_CM_EVENT_CONNECT_REQUEST: {
		struct cm_id *listener = (struct cm_id *)(uintptr_t)e->listen_id;
		ev->listen_id = &listener->id;
		if (init_request_id(s, listener, e)) {
			rdma_destroy_id(&s->id); // this rejects the request
			acknowledge(listener, NULL);
			return 0;
		}
		break;
	}
	case RDMA_CM_EVENT_MULTICAST_JOIN:
	case RDMA_CM_EVENT_MULTICAST_ERROR:
		if (!(out->group = find_group(s, &e->group))) {
			acknowledge(s, NULL);
			return 0;
		}
		set_ud(ev, e, NULL);
		ev->param.ud.private_data = out->group->context;
		return 1;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		// As in rdma-core, an event of a device that cannot be opened reports an error.
		if ((err = refresh(s))) {
			ev->event = RDMA_CM_EVENT_ADDR_ERROR;
			ev->status = -err;
		}
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if ((err = refresh(s))) {
			ev->event = RDMA_CM_EVENT_ROUTE_ERROR;
			ev->status = -err;
		} else {
			set_path(s);
		}
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (s->id.qp)
			s->id.qp->state = IBV_QPS_RTS;
		break;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		if (s->id.qp)
			s->id.qp->state = IBV_QPS_ERR;
		break;
	}
	if (s->id.qp_type == IBV_QPT_UD)
		set_ud(ev, e, out->data);
	else
		set_conn(ev, e, out->data);
	return 1;
}

// The resources that a call of rdma_get_cm_event holds until it returns an event.
struct getting {
	struct channel *ch;
	struct event *out;
	struct cm_id *spare;
};

static void stop_getting(void *v)
{
	struct getting *g = v;
	if (g->spare)
		keep_spare(g->ch, g->spare);
	free(g->out);
}

// get_event waits for an event. It returns 0 or an errno.
static int get_event(struct getting *g)
{
	while (g->out && (g->spare || (g->spare = take_spare(g->ch)))) {
		struct sr_cm_event e;
		if (read_event(g->ch->ch.fd))
			return channel_error(g->ch);
		int err = engine->cm_get_event(g->ch->handle, (uintptr_t)g->spare, &e);
		if (err == EAGAIN) // the event's ID was destroyed
			continue;
		if (err) {
			errno = err;
			return channel_error(g->ch);
		}
		if (e.listen_id)
			g->spare = NULL;
		if (fill_event(g->out, &e))
			return 0;
	}
	return ENOMEM;
}

PUBLIC int rdma_get_cm_event(struct rdma_event_channel *v, struct rdma_cm_event **event)
{
	if (!event)
		return result(EINVAL);
	if (inherited(&to_channel(v)->life))
		return result(ENODEV);
	struct getting g = {.ch = to_channel(v), .out = malloc(sizeof *g.out)};
	int err;
	pthread_cleanup_push(stop_getting, &g);
	if (!(err = get_event(&g))) {
		*event = &g.out->ev;
		g.out = NULL;
	}
	pthread_cleanup_pop(1);
	return result(err);
}

PUBLIC int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	if (!ev)
		return result(EINVAL);
	struct event *e = (struct event *)ev;
	acknowledge(to_id(ev->listen_id ? ev->listen_id : ev->id), e->group);
	free(e);
	return 0;
}

PUBLIC int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg)
{
	if ((unsigned int)event != EVENT_USER)
		return result(EINVAL);
	return result(engine->cm_write_event(to_id(id)->handle, event, status, arg));
}

PUBLIC const char *rdma_event_str(enum rdma_cm_event_type event)
{
#define NAME(e) [e] = #e
	static const char *const names[] = {
		NAME(RDMA_CM_EVENT_ADDR_RESOLVED),
		NAME(RDMA_CM_EVENT_ADDR_ERROR),
		NAME(RDMA_CM_EVENT_ROUTE_RESOLVED),
		NAME(RDMA_CM_EVENT_ROUTE_ERROR),
		NAME(RDMA_CM_EVENT_CONNECT_REQUEST),
		NAME(RDMA_CM_EVENT_CONNECT_RESPONSE),
		NAME(RDMA_CM_EVENT_CONNECT_ERROR),
		NAME(RDMA_CM_EVENT_UNREACHABLE),
		NAME(RDMA_CM_EVENT_REJECTED),
		NAME(RDMA_CM_EVENT_ESTABLISHED),
		NAME(RDMA_CM_EVENT_DISCONNECTED),
		NAME(RDMA_CM_EVENT_DEVICE_REMOVAL),
		NAME(RDMA_CM_EVENT_MULTICAST_JOIN),
		NAME(RDMA_CM_EVENT_MULTICAST_ERROR),
		NAME(RDMA_CM_EVENT_ADDR_CHANGE),
		NAME(RDMA_CM_EVENT_TIMEWAIT_EXIT),
		// These two are not in the headers of rdma-core 44. rdma-core has no name for USER.
		[EVENT_ADDRINFO_RESOLVED] = "RDMA_CM_EVENT_ADDRINFO_RESOLVED", "RDMA_CM_EVENT_ADDRINFO_ERROR",
	};
#undef NAME
	return (unsigned int)event < sizeof names / sizeof *names ? names[event] : "UNKNOWN EVENT";
}

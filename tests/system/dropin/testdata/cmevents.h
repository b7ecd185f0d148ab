// Events of rdma_cm, and a peer's memory.
#pragma once
#include <rdma/rdma_cma.h>
#include "loopback.h"

// struct target is memory of a server: the private data of its answer.
struct target {
	uint64_t addr;
	uint32_t rkey;
};

static struct rdma_event_channel *channel;

// take takes the next event, which must be of the given type.
static struct rdma_cm_event *take(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(channel, &e));
	if (e->event != type)
		printf("%s, status %d, in place of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
	CHECK(e->event == type);
	return e;
}

// resolve resolves an address and the route to it.
static inline void resolve(struct rdma_cm_id **id, struct sockaddr *addr)
{
	CHECK(!rdma_create_id(channel, id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(*id, NULL, addr, 10000));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(*id, 10000));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ROUTE_RESOLVED));
}

// Flows, which select the frames that a raw packet QP receives.
#include "front.h"

// MAX_SPECS is more than any flow needs: each header once, and a few actions.
#define MAX_SPECS 16

// FILTERS copies the two filters of a spec. It returns EINVAL if the spec is shorter than its type
// requires.
#define FILTERS(to, from, size, kind) \
	((size) < sizeof(struct kind) ? EINVAL : \
	(memcpy((to)->val, &((struct kind *)(from))->val, sizeof ((struct kind *)0)->val), \
	memcpy((to)->mask, &((struct kind *)(from))->mask, sizeof ((struct kind *)0)->mask), 0))

static int copy_spec(struct sr_flow_spec *to, struct ibv_flow_spec *from)
{
	uint16_t size = from->hdr.size;
	to->type = from->hdr.type;
	switch ((uint32_t)from->hdr.type) {
	case IBV_FLOW_SPEC_ETH:
		return FILTERS(to, from, size, ibv_flow_spec_eth);
	case IBV_FLOW_SPEC_IPV4:
		return FILTERS(to, from, size, ibv_flow_spec_ipv4);
	case IBV_FLOW_SPEC_IPV4_EXT:
		return FILTERS(to, from, size, ibv_flow_spec_ipv4_ext);
	case IBV_FLOW_SPEC_IPV6:
		return FILTERS(to, from, size, ibv_flow_spec_ipv6);
	case IBV_FLOW_SPEC_TCP:
	case IBV_FLOW_SPEC_UDP:
		return FILTERS(to, from, size, ibv_flow_spec_tcp_udp);
	case IBV_FLOW_SPEC_ACTION_TAG:
		to->tag = from->flow_tag.tag_id;
		return size < sizeof from->flow_tag ? EINVAL : 0;
	case IBV_FLOW_SPEC_ACTION_DROP:
		return size < sizeof from->drop ? EINVAL : 0;
	default: // tunnels, ESP, actions and counters: no device here supports them
		return EOPNOTSUPP;
	}
}

struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *a)
{
	struct sr_flow_spec specs[MAX_SPECS];
	if (a->comp_mask || a->num_of_specs > MAX_SPECS || a->type > IBV_FLOW_ATTR_SNIFFER)
		return fail_null(EINVAL);
	struct sr_flow_attr attr = {
		.type = a->type, .priority = a->priority, .port = a->port, .flags = a->flags, .n = a->num_of_specs, .specs = specs,
	};
	memset(specs, 0, sizeof specs);
	char *spec = (char *)(a + 1);
	for (int i = 0; i < a->num_of_specs; i++) {
		int err = copy_spec(&specs[i], (struct ibv_flow_spec *)spec);
		if (err)
			return fail_null(err);
		spec += ((struct ibv_flow_spec *)spec)->hdr.size;
	}
	struct ibv_flow *f = calloc(1, sizeof(struct flow));
	if (!f)
		return NULL;
	int err = engine->create_flow(qp->handle, &attr, &f->handle);
	if (err) {
		free(f);
		return fail_null(err);
	}
	f->context = ((struct flow *)f)->made_by = qp->context;
	publish(&((struct flow *)f)->life);
	return f;
}

int destroy_flow(struct ibv_flow *v)
{
	struct flow *flow = (struct flow *)v;
	int err = FOREIGN(flow, v) ? ENOENT : begin_destroy(&flow->life);
	if (err)
		return fail(err);
	if ((err = engine->destroy_flow(v->handle)))
		return fail(undo_destroy(&flow->life, err));
	v->handle = 0;
	end_destroy(&flow->life, flow);
	return 0;
}

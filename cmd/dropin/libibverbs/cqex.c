// ibv_start_poll and the functions that follow it. wc[at] is the current completion until next_poll
// or end_poll.
#include "cq.h"

static int current(struct cq *q, enum idle_action *p)
{
	if (q->at == q->n) {
		int err = inherited(&q->life) ? ENODEV : refill(q, p);
		if (err)
			return err;
		if (q->at == q->n)
			return ENOENT;
	}
	q->ibv.wr_id = q->wc[q->at].wr_id;
	q->ibv.status = q->wc[q->at].status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct cq *q = (struct cq *)cq;
	enum idle_action p = NONE;
	if (attr->comp_mask)
		return EINVAL;
	if (nothing_to_poll(q))
		return ENOENT;
	lock(&q->life, &q->lock);
	int err = current(q, &p);
	if (err) {
		unlock(&q->life, &q->lock);
		idle(q, p);
	}
	return err;
}

static void step(struct cq *q) { __atomic_store_n(&q->at, q->at + 1, __ATOMIC_RELAXED); }

static int next_poll(struct ibv_cq_ex *cq)
{
	struct cq *q = (struct cq *)cq;
	enum idle_action ignored; // the lock is held until end_poll
	if (q->at == q->n)
		return current(q, &ignored); // the last next_poll found none, and one may have arrived since
	step(q);
	if (q->at == q->n && !__atomic_load_n(&q->ready, __ATOMIC_ACQUIRE))
		return ENOENT;
	return current(q, &ignored);
}

static void end_poll(struct ibv_cq_ex *cq)
{
	struct cq *q = (struct cq *)cq;
	if (q->at < q->n)
		step(q);
	unlock(&q->life, &q->lock);
}

#define WC(cq) (&((struct cq *)(cq))->wc[((struct cq *)(cq))->at])
#define EX(cq) (&((struct cq *)(cq))->ex[((struct cq *)(cq))->at])

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return WC(cq)->opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return WC(cq)->vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return WC(cq)->byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return WC(cq)->imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return WC(cq)->qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return WC(cq)->src_qp; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return WC(cq)->wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return WC(cq)->slid; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return WC(cq)->sl; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq) { return WC(cq)->dlid_path_bits; }
static uint64_t read_completion_ts(struct ibv_cq_ex *cq) { return EX(cq)->completion_ts; }
static uint64_t read_wallclock_ns(struct ibv_cq_ex *cq) { return EX(cq)->wallclock_ns; }
static uint16_t read_cvlan(struct ibv_cq_ex *cq) { return EX(cq)->cvlan; }
static uint32_t read_flow_tag(struct ibv_cq_ex *cq) { return EX(cq)->flow_tag; }

void cq_ops(struct cq *q, uint64_t wc_flags)
{
	struct ibv_cq_ex *x = &q->ibv;
	x->start_poll = start_poll;
	x->next_poll = next_poll;
	x->end_poll = end_poll;
	x->read_opcode = read_opcode;
	x->read_vendor_err = read_vendor_err;
	x->read_byte_len = read_byte_len;
	x->read_imm_data = read_imm_data;
	x->read_qp_num = read_qp_num;
	x->read_src_qp = read_src_qp;
	x->read_wc_flags = read_wc_flags;
	x->read_slid = read_slid;
	x->read_sl = read_sl;
	x->read_dlid_path_bits = read_dlid_path_bits;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		x->read_completion_ts = read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		x->read_completion_wallclock_ns = read_wallclock_ns;
	if (wc_flags & IBV_WC_EX_WITH_CVLAN)
		x->read_cvlan = read_cvlan;
	if (wc_flags & IBV_WC_EX_WITH_FLOW_TAG)
		x->read_flow_tag = read_flow_tag;
}

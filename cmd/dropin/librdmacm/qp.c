// The QP and SRQ of an ID, and the CQs that are created for them.
#include "cm.h"

static void destroy_cqs(struct rdma_cm_id *id)
{
	if (id->qp_type == IBV_QPT_XRC_RECV && id->srq)
		return; // they belong to the SRQ
	struct ibv_cq *recv = __atomic_exchange_n(&id->recv_cq, NULL, __ATOMIC_ACQ_REL);
	struct ibv_cq *send = __atomic_exchange_n(&id->send_cq, NULL, __ATOMIC_ACQ_REL);
	struct ibv_comp_channel *recv_ch = __atomic_exchange_n(&id->recv_cq_channel, NULL, __ATOMIC_ACQ_REL);
	struct ibv_comp_channel *send_ch = __atomic_exchange_n(&id->send_cq_channel, NULL, __ATOMIC_ACQ_REL);
	if (recv)
		ibv_destroy_cq(recv);
	if (send && send != recv)
		ibv_destroy_cq(send);
	if (recv_ch)
		ibv_destroy_comp_channel(recv_ch);
	if (send_ch && send_ch != recv_ch)
		ibv_destroy_comp_channel(send_ch);
}

// create_cq creates a CQ with a channel, unless the size is 0.
static int create_cq(struct rdma_cm_id *id, uint32_t size, struct ibv_comp_channel **ch, struct ibv_cq **cq)
{
	if (!size)
		return 0;
	if (!(*ch = ibv_create_comp_channel(id->verbs)))
		return -1;
	*cq = ibv_create_cq(id->verbs, size, id, *ch, 0);
	return *cq ? 0 : -1;
}

PUBLIC int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *a)
{
	int err = engine->cm_fault(to_id(id)->handle, SR_CM_CREATE_SRQ);
	if (err)
		return result(err);
	if (!id->verbs || id->srq || !(a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE))
		return result(EINVAL);
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd) {
		a->pd = id->pd;
		a->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	if (a->srq_type == IBV_SRQT_XRC) {
		if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !a->xrcd) {
			if (!(a->xrcd = default_xrcd(to_id(id)->dev)))
				return -1;
		}
		if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !a->cq) {
			if (create_cq(id, a->attr.max_wr, &id->recv_cq_channel, &id->recv_cq))
				goto failed;
			a->cq = id->recv_cq;
		}
		a->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	}
	if (!(id->srq = ibv_create_srq_ex(id->verbs, a)))
		goto failed;
	if (!id->pd)
		id->pd = a->pd;
	return 0;
failed:
	err = errno;
	destroy_cqs(id);
	return result(err);
}

PUBLIC int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = a->srq_context,
		.attr = a->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
		.pd = pd,
	};
	if (rdma_create_srq_ex(id, &ex))
		return -1;
	a->attr = ex.attr;
	return 0;
}

PUBLIC void rdma_destroy_srq(struct rdma_cm_id *id)
{
	struct ibv_srq *srq = __atomic_load_n(&id->srq, __ATOMIC_ACQUIRE);
	if (!srq || ibv_destroy_srq(srq))
		return;
	__atomic_store_n(&id->srq, NULL, __ATOMIC_RELEASE);
	if (!id->qp)
		destroy_cqs(id);
}

PUBLIC int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *a)
{
	int err = engine->cm_fault(to_id(id)->handle, SR_CM_CREATE_QP);
	if (err)
		return result(err);
	if (!id->verbs || id->qp)
		return result(EINVAL);
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd) {
		a->comp_mask |= IBV_QP_INIT_ATTR_PD;
		a->pd = id->pd;
	} else if (a->pd->context != id->verbs) {
		return result(EINVAL);
	}
	if ((id->recv_cq && a->recv_cq && id->recv_cq != a->recv_cq) || (id->send_cq && a->send_cq && id->send_cq != a->send_cq))
		return result(EINVAL);
	if (id->qp_type == IBV_QPT_XRC_RECV && (!(a->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !a->xrcd)) {
		if (!(a->xrcd = default_xrcd(to_id(id)->dev)))
			return -1;
		a->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	}
	if (!a->recv_cq && !id->recv_cq && create_cq(id, a->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq))
		goto failed;
	if (!a->send_cq && !id->send_cq && create_cq(id, a->cap.max_send_wr, &id->send_cq_channel, &id->send_cq))
		goto failed;
	if (!a->send_cq)
		a->send_cq = id->send_cq;
	if (!a->recv_cq)
		a->recv_cq = id->recv_cq;
	if (id->srq && !a->srq)
		a->srq = id->srq;
	struct ibv_qp *qp = ibv_create_qp_ex(id->verbs, a);
	if (!qp)
		goto failed;
	err = engine->cm_use_qp(to_id(id)->handle, qp->handle);
	if (err) {
		ibv_destroy_qp(qp);
		errno = err;
		goto failed;
	}
	qp->state = a->qp_type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT;
	id->qp = qp;
	id->pd = a->pd;
	return 0;
failed:
	err = errno;
	destroy_cqs(id);
	return result(err);
}

PUBLIC int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex ex;
	memset(&ex, 0, sizeof ex);
	ex.qp_context = a->qp_context;
	ex.send_cq = a->send_cq;
	ex.recv_cq = a->recv_cq;
	ex.srq = a->srq;
	ex.cap = a->cap;
	ex.qp_type = a->qp_type;
	ex.sq_sig_all = a->sq_sig_all;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	ex.pd = pd;
	if (rdma_create_qp_ex(id, &ex))
		return -1;
	a->send_cq = ex.send_cq;
	a->recv_cq = ex.recv_cq;
	a->srq = ex.srq;
	a->cap = ex.cap;
	return 0;
}

PUBLIC void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct ibv_qp *qp = __atomic_exchange_n(&id->qp, NULL, __ATOMIC_ACQ_REL);
	if (!qp) // or another thread destroys it
		return;
	engine->cm_use_qp(to_id(id)->handle, 0); // detaches it from multicast groups
	ibv_destroy_qp(qp);
	destroy_cqs(id);
}

PUBLIC int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	return result(engine->cm_init_qp_attr(to_id(id)->handle, (struct sr_qp_attr *)attr, mask));
}

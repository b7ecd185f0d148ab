// Compile-time checks that softrnic.h has the layout of the structures of the installed
// <rdma/rdma_cma.h>.
#include "cm.h"

#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "the size of " #ours)
#define FIELD(ours, f, theirs, g) _Static_assert(offsetof(ours, f) == offsetof(theirs, g), #ours "." #f)

SIZE(struct sr_cm_param, struct rdma_conn_param);
FIELD(struct sr_cm_param, responder_resources, struct rdma_conn_param, responder_resources);
FIELD(struct sr_cm_param, flow_control, struct rdma_conn_param, flow_control);
FIELD(struct sr_cm_param, rnr_retry_count, struct rdma_conn_param, rnr_retry_count);
FIELD(struct sr_cm_param, srq, struct rdma_conn_param, srq);
FIELD(struct sr_cm_param, qp_num, struct rdma_conn_param, qp_num);

SIZE(struct sr_cm_ud_param, struct rdma_ud_param);
FIELD(struct sr_cm_ud_param, ah_attr, struct rdma_ud_param, ah_attr);
FIELD(struct sr_cm_ud_param, qp_num, struct rdma_ud_param, qp_num);
FIELD(struct sr_cm_ud_param, qkey, struct rdma_ud_param, qkey);

SIZE(struct sr_cm_addr, struct sockaddr_in6);
_Static_assert(SR_CM_TOS == RDMA_OPTION_ID_TOS && SR_CM_REUSEADDR == RDMA_OPTION_ID_REUSEADDR, "options");
_Static_assert(SR_CM_AFONLY == RDMA_OPTION_ID_AFONLY && SR_CM_ACK_TIMEOUT == RDMA_OPTION_ID_ACK_TIMEOUT, "options");

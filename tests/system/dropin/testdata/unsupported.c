// Unsupported functions fail with the errno of the manual pages. The arguments are functions that
// the installed headers do not declare: KIND:NAME[@VERSION]. KIND is the result of an error:
// "errno", "null" or "minus" for -1. An errno other than EOPNOTSUPP follows after another colon.
// The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include "loopback.h"

// NONE: the function returns NULL, and sets errno.
#define NONE(x, err) CHECK((errno = 0, !(x)) && errno == (err))
// MINUS: -1; and ERRNO: the errno itself.
#define MINUS(x, err) CHECK((errno = 0, (x) == -1) && errno == (err))
#define ERRNO(x, err) CHECK((x) == (err))

static void by_name(char *arg)
{
	char *kind = strsep(&arg, ":"), *name = strsep(&arg, ":"), *number = arg;
	char *version = name;
	int err = number ? atoi(number) : EOPNOTSUPP;
	name = strsep(&version, "@");
	void *lib = dlopen(strncmp(name, "rdma_", 5) && strncmp(name, "repoll_", 7) ? "libibverbs.so.1" : "librdmacm.so.1",
		RTLD_NOW | RTLD_NOLOAD);
	CHECK(lib);
	void *f = version ? dlvsym(lib, name, version) : dlsym(lib, name);
	if (!f)
		printf("there is no %s %s\n", name, version ? version : "");
	CHECK(f);
	long got = -2; // the expected result
	errno = 0;
	if (!strcmp(kind, "null"))
		got = (long)((void *(*)(void))f)() ? -1 : -2;
	else if (!strcmp(kind, "minus"))
		got = ((int (*)(void))f)() == -1 ? -2 : -1;
	else if (!strcmp(kind, "errno"))
		got = ((int (*)(void))f)() == err ? -2 : -1;
	else
		CHECK(!"a kind");
	if (got != -2 || errno != err)
		printf("%s %s of %s: errno %d, want %d\n", kind, name, version ? version : "its default", errno, err);
	CHECK(got == -2 && errno == err);
}

// The functions of verbs.h whose operation no device here supports, and arguments for missing
// features.
static void verbs(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = l.cq};
	NONE(ibv_create_wq(ctx, &wq_attr), EOPNOTSUPP);
	struct ibv_wq wq = {.context = ctx};
	struct ibv_wq_attr modify_wq = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	ERRNO(ibv_modify_wq(&wq, &modify_wq), EOPNOTSUPP);
	ERRNO(ibv_destroy_wq(&wq), EOPNOTSUPP);
	struct ibv_wq *table[] = {&wq};
	struct ibv_rwq_ind_table_init_attr table_attr = {.log_ind_tbl_size = 0, .ind_tbl = table};
	NONE(ibv_create_rwq_ind_table(ctx, &table_attr), EOPNOTSUPP);
	struct ibv_rwq_ind_table ind_table = {.context = ctx};
	ERRNO(ibv_destroy_rwq_ind_table(&ind_table), EOPNOTSUPP);
	struct ibv_flow_action_esp_attr esp = {0};
	NONE(ibv_create_flow_action_esp(ctx, &esp), EOPNOTSUPP);
	struct ibv_flow_action action = {.context = ctx};
	ERRNO(ibv_modify_flow_action_esp(&action, &esp), EOPNOTSUPP);
	ERRNO(ibv_destroy_flow_action(&action), EOPNOTSUPP);
	struct ibv_counters_init_attr counters_attr = {0};
	NONE(ibv_create_counters(ctx, &counters_attr), EOPNOTSUPP);
	struct ibv_counters counters = {.context = ctx};
	struct ibv_counter_attach_attr attach = {0};
	uint64_t value;
	ERRNO(ibv_attach_counters_point_flow(&counters, &attach, NULL), EOPNOTSUPP);
	ERRNO(ibv_read_counters(&counters, &value, 1, 0), EOPNOTSUPP);
	ERRNO(ibv_destroy_counters(&counters), EOPNOTSUPP);
	struct ibv_srq_init_attr srq_attr = {.attr = {1, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_ops_wr op = {.opcode = IBV_WR_TAG_SYNC}, *bad_op;
	CHECK(srq);
	ERRNO(ibv_post_srq_ops(srq, &op, &bad_op), EOPNOTSUPP);
	CHECK(!ibv_destroy_srq(srq));
	struct ibv_srq_init_attr_ex tag = {.attr = {1, 1, 0},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM, .srq_type = IBV_SRQT_TM,
		.pd = pd, .cq = l.cq, .tm_cap = {1, 1}};
	NONE(ibv_create_srq_ex(ctx, &tag), EOPNOTSUPP);

	NONE(ibv_import_device(0), EOPNOTSUPP);
	NONE(ibv_import_pd(ctx, 1), EOPNOTSUPP);
	NONE(ibv_import_mr(pd, 1), EOPNOTSUPP);
	NONE(ibv_import_dm(ctx, 1), EOPNOTSUPP);
	NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL); // no dma-buf
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
	uint8_t mac[6];
	uint16_t vid;
	MINUS(ibv_resolve_eth_l2_from_gid(ctx, &ah, mac, &vid), EOPNOTSUPP);
	struct ibv_ece ece = {.vendor_id = 1, .options = 1};
	ERRNO(ibv_query_ece(l.qp, &ece), EOPNOTSUPP);
	ERRNO(ibv_set_ece(l.qp, &ece), EOPNOTSUPP);
	struct ibv_gid_entry entry; // flags of later kernels
	ERRNO(ibv_query_gid_ex(ctx, 1, 1, &entry, 1), EINVAL);
	CHECK(ibv_query_gid_table(ctx, &entry, 1, 1) == -EINVAL);
	struct ibv_sge sge = {(uintptr_t)l.memory, 8, l.mr->lkey};
	ERRNO(ibv_advise_mr(pd, 77, 0, &sge, 1), EOPNOTSUPP);

	struct ibv_cq_init_attr_ex cq = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_TM_INFO};
	NONE(ibv_create_cq_ex(ctx, &cq), EOPNOTSUPP);
	cq = (struct ibv_cq_init_attr_ex){.cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
	NONE(ibv_create_cq_ex(ctx, &cq), EOPNOTSUPP);
	struct ibv_qp_init_attr_ex qp = {.send_cq = l.cq, .recv_cq = l.cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD};
	struct ibv_qp_init_attr_ex segmenting = qp, hashing = qp, striping = qp, own = qp, segmenting_later = qp;
	segmenting.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	segmenting.max_tso_header = 64;
	NONE(ibv_create_qp_ex(ctx, &segmenting), EOPNOTSUPP);
	hashing.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
	hashing.rwq_ind_tbl = &ind_table;
	NONE(ibv_create_qp_ex(ctx, &hashing), EOPNOTSUPP);
	striping.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	striping.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	NONE(ibv_create_qp_ex(ctx, &striping), EOPNOTSUPP);
	own.qp_type = IBV_QPT_DRIVER;
	NONE(ibv_create_qp_ex(ctx, &own), EOPNOTSUPP);
	segmenting_later.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	segmenting_later.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NONE(ibv_create_qp_ex(ctx, &segmenting_later), EOPNOTSUPP);
	loopback_close(&l);
}

static void connections(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	struct ibv_ece ece = {.vendor_id = 1};
	MINUS(rdma_set_local_ece(id, &ece), EOPNOTSUPP);
	uint8_t path[64] = {0};
	MINUS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof path), ENOSYS);
	MINUS(rdma_set_option(id, RDMA_OPTION_ID, 77, path, 4), ENOSYS);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	device_open();
	verbs();
	connections();
	for (int i = 1; i < argc; i++)
		by_name(argv[i]);
	printf("%d functions by their names\n", argc - 1);
	return 0;
}

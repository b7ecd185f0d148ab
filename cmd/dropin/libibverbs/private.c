// Functions that are not part of libibverbs' interface, but that programs refer to.
//
// libibverbs exports the functions that its providers (libmlx5 and others) call with the version
// IBVERBS_PRIVATE_n. The number changes when one of the functions changes. A program that is linked
// against such a provider is loaded only if each function exists with the provider's version. No
// provider is called here. Programs use ibv_query_gid_type and ibv_read_ibdev_sysfs_file. All
// others fail.
//
// IBVERBS_1.0 is the interface of libibverbs 1.0 (2006), whose structures differ. It lists no
// device.
#include "front.h"

// VERSIONS gives a function its name in each of the private versions.
#define VERSIONS(f, name) \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_33"); \
	__asm__(".symver " #f "," #name "@@IBVERBS_PRIVATE_34"); \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_50"); \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_57"); \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_59"); \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_64"); \
	__asm__(".symver " #f "," #name "@IBVERBS_PRIVATE_65");

// The functions that return an errno.
#define FAILING \
	F(execute_ioctl) F(ibv_cmd_advise_mr) F(ibv_cmd_alloc_dm) F(ibv_cmd_alloc_dmah) F(ibv_cmd_alloc_mw) \
	F(ibv_cmd_alloc_pd) F(ibv_cmd_attach_mcast) F(ibv_cmd_close_xrcd) F(ibv_cmd_create_ah) F(ibv_cmd_create_comp_cntr) \
	F(ibv_cmd_create_counters) F(ibv_cmd_create_cq) F(ibv_cmd_create_cq_ex) F(ibv_cmd_create_cq_ex2) \
	F(ibv_cmd_create_flow) F(ibv_cmd_create_flow_action_esp) F(ibv_cmd_create_qp) F(ibv_cmd_create_qp_ex) \
	F(ibv_cmd_create_qp_ex2) F(ibv_cmd_create_rwq_ind_table) F(ibv_cmd_create_srq) F(ibv_cmd_create_srq_ex) \
	F(ibv_cmd_create_wq) F(ibv_cmd_dealloc_mw) F(ibv_cmd_dealloc_pd) F(ibv_cmd_dereg_mr) F(ibv_cmd_destroy_ah) \
	F(ibv_cmd_destroy_comp_cntr) F(ibv_cmd_destroy_counters) F(ibv_cmd_destroy_cq) F(ibv_cmd_destroy_flow) \
	F(ibv_cmd_destroy_flow_action) F(ibv_cmd_destroy_qp) F(ibv_cmd_destroy_rwq_ind_table) F(ibv_cmd_destroy_srq) \
	F(ibv_cmd_destroy_wq) F(ibv_cmd_detach_mcast) F(ibv_cmd_export_dmabuf_fd) F(ibv_cmd_free_dm) F(ibv_cmd_free_dmah) \
	F(ibv_cmd_get_context) F(ibv_cmd_inc_comp_cntr) F(ibv_cmd_inc_err_comp_cntr) F(ibv_cmd_modify_cq) \
	F(ibv_cmd_modify_flow_action_esp) F(ibv_cmd_modify_qp) F(ibv_cmd_modify_qp_ex) F(ibv_cmd_modify_srq) \
	F(ibv_cmd_modify_wq) F(ibv_cmd_open_qp) F(ibv_cmd_open_xrcd) F(ibv_cmd_poll_cq) F(ibv_cmd_post_recv) \
	F(ibv_cmd_post_send) F(ibv_cmd_post_srq_recv) F(ibv_cmd_qp_attach_comp_cntr) F(ibv_cmd_query_comp_cntr_caps) \
	F(ibv_cmd_query_context) F(ibv_cmd_query_device_any) F(ibv_cmd_query_mr) F(ibv_cmd_query_port) \
	F(ibv_cmd_query_port_speed) F(ibv_cmd_query_qp) F(ibv_cmd_query_srq) F(ibv_cmd_read_comp_cntr) \
	F(ibv_cmd_read_counters) F(ibv_cmd_read_err_comp_cntr) F(ibv_cmd_reg_dm_mr) F(ibv_cmd_reg_dmabuf_mr) \
	F(ibv_cmd_reg_mr) F(ibv_cmd_reg_mr_ex) F(ibv_cmd_req_notify_cq) F(ibv_cmd_rereg_mr) F(ibv_cmd_resize_cq) \
	F(ibv_cmd_set_comp_cntr) F(ibv_cmd_set_err_comp_cntr) F(ibv_dmabuf_heap_alloc) F(ibv_dmabuf_heap_cc_shared_init) \
	F(ibv_dmabuf_heap_destroy) F(ibv_dmabuf_heap_free)

#define F(name) \
	PUBLIC int private_##name(void) { return fail(EOPNOTSUPP); } \
	VERSIONS(private_##name, name)
FAILING
#undef F

// The functions that return a pointer.
#define F(name) \
	PUBLIC void *private_##name(void) { return fail_null(EOPNOTSUPP); } \
	VERSIONS(private_##name, name)
F(verbs_open_device)
F(_verbs_init_and_alloc_context)
#undef F

// The functions that return nothing. The registration of a provider has no effect.
#define F(name) \
	PUBLIC void private_##name(void) {} \
	VERSIONS(private_##name, name)
F(__verbs_log)
F(verbs_set_ops)
F(verbs_uninit_context)
F(verbs_init_cq)
F(verbs_register_driver_33)
F(verbs_register_driver_34)
F(verbs_register_driver_50)
F(verbs_register_driver_57)
F(verbs_register_driver_59)
F(verbs_register_driver_64)
F(verbs_register_driver_65)
#undef F

PUBLIC unsigned int private___ioctl_final_num_attrs(unsigned int n) { return n; }
VERSIONS(private___ioctl_final_num_attrs, __ioctl_final_num_attrs)

PUBLIC char private_verbs_allow_disassociate_destroy;
VERSIONS(private_verbs_allow_disassociate_destroy, verbs_allow_disassociate_destroy)

// ibv_devinfo and pyverbs call this.
PUBLIC int private_ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, int *type)
{
	return query_gid_type(c, port, index, type);
}
VERSIONS(private_ibv_query_gid_type, ibv_query_gid_type)

// rdma-core 65 declares it in verbs.h.
PUBLIC const char *private_ibv_wr_opcode_str(enum ibv_wr_opcode opcode) { return wr_opcode_str(opcode); }
VERSIONS(private_ibv_wr_opcode_str, ibv_wr_opcode_str)

PUBLIC int private_ibv_read_ibdev_sysfs_file(char *buf, size_t size, void *sysfs_dev, const char *format, ...)
{
	(void)buf; (void)size; (void)sysfs_dev; (void)format;
	errno = ENOENT;
	return -1;
}
VERSIONS(private_ibv_read_ibdev_sysfs_file, ibv_read_ibdev_sysfs_file)

#define OLD \
	F(ibv_ack_async_event) F(ibv_ack_cq_events) F(ibv_alloc_pd) F(ibv_attach_mcast) F(ibv_close_device) F(ibv_create_ah) \
	F(ibv_create_cq) F(ibv_create_qp) F(ibv_create_srq) F(ibv_dealloc_pd) F(ibv_dereg_mr) F(ibv_destroy_ah) \
	F(ibv_destroy_cq) F(ibv_destroy_qp) F(ibv_destroy_srq) F(ibv_detach_mcast) F(ibv_free_device_list) \
	F(ibv_get_async_event) F(ibv_get_cq_event) F(ibv_get_device_guid) F(ibv_get_device_list) F(ibv_get_device_name) \
	F(ibv_modify_qp) F(ibv_modify_srq) F(ibv_open_device) F(ibv_query_device) F(ibv_query_gid) F(ibv_query_pkey) \
	F(ibv_query_port) F(ibv_query_qp) F(ibv_query_srq) F(ibv_reg_mr) F(ibv_resize_cq)

#define F(name) \
	PUBLIC void *old_##name(void) { return fail_null(ENOSYS); } \
	__asm__(".symver old_" #name "," #name "@IBVERBS_1.0");
OLD
#undef F

PUBLIC void *old_ibv_register_driver(void) { return fail_null(ENOSYS); }
__asm__(".symver old_ibv_register_driver,ibv_register_driver@IBVERBS_1.1");

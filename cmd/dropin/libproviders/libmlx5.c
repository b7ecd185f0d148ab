// libmlx5.so.1 on a machine without a mlx5 adapter. Programs that are linked against it, such as
// perftest and UCX, start, find no such adapter, and use the devices of libibverbs.so.1.
#include "absent.h"

// The functions that return an errno.
#define FAILING \
	F(_mlx5dv_mkey_check) F(_mlx5dv_query_port) F(mlx5dv_crypto_login) F(mlx5dv_crypto_login_destroy) \
	F(mlx5dv_crypto_login_query) F(mlx5dv_crypto_login_query_state) F(mlx5dv_crypto_logout) \
	F(mlx5dv_dci_stream_id_reset) F(mlx5dv_dek_destroy) F(mlx5dv_dek_query) F(mlx5dv_destroy_flow_matcher) \
	F(mlx5dv_destroy_mkey) F(mlx5dv_destroy_steering_anchor) F(mlx5dv_devx_cq_modify) F(mlx5dv_devx_cq_query) \
	F(mlx5dv_devx_destroy_eq) F(mlx5dv_devx_free_msi_vector) F(mlx5dv_devx_general_cmd) \
	F(mlx5dv_devx_get_async_cmd_comp) F(mlx5dv_devx_ind_tbl_modify) F(mlx5dv_devx_ind_tbl_query) \
	F(mlx5dv_devx_obj_destroy) F(mlx5dv_devx_obj_modify) F(mlx5dv_devx_obj_query) F(mlx5dv_devx_obj_query_async) \
	F(mlx5dv_devx_qp_modify) F(mlx5dv_devx_qp_query) F(mlx5dv_devx_query_eqn) F(mlx5dv_devx_srq_modify) \
	F(mlx5dv_devx_srq_query) F(mlx5dv_devx_subscribe_devx_event) F(mlx5dv_devx_subscribe_devx_event_fd) \
	F(mlx5dv_devx_umem_dereg) F(mlx5dv_devx_wq_modify) F(mlx5dv_devx_wq_query) F(mlx5dv_dr_action_destroy) \
	F(mlx5dv_dr_action_modify_aso) F(mlx5dv_dr_action_modify_flow_meter) F(mlx5dv_dr_aso_other_domain_link) \
	F(mlx5dv_dr_aso_other_domain_unlink) F(mlx5dv_dr_domain_destroy) F(mlx5dv_dr_domain_sync) \
	F(mlx5dv_dr_matcher_destroy) F(mlx5dv_dr_matcher_set_layout) F(mlx5dv_dr_rule_destroy) F(mlx5dv_dr_table_destroy) \
	F(mlx5dv_dump_dr_domain) F(mlx5dv_dump_dr_matcher) F(mlx5dv_dump_dr_rule) F(mlx5dv_dump_dr_table) \
	F(mlx5dv_get_clock_info) F(mlx5dv_map_ah_to_qp) F(mlx5dv_modify_qp_lag_port) F(mlx5dv_modify_qp_sched_elem) \
	F(mlx5dv_modify_qp_udp_sport) F(mlx5dv_query_device) F(mlx5dv_query_qp_lag_port) F(mlx5dv_reserved_qpn_alloc) \
	F(mlx5dv_reserved_qpn_dealloc) F(mlx5dv_sched_leaf_destroy) F(mlx5dv_sched_leaf_modify) F(mlx5dv_sched_node_destroy) \
	F(mlx5dv_sched_node_modify) F(mlx5dv_set_context_attr) F(mlx5dv_vfio_process_events) \
	F(_mlx5dv_get_export_sizes) F(mlx5dv_devx_obj_export) F(mlx5dv_devx_uar_export_dmabuf_fd) F(mlx5dv_devx_umem_export) \
	F(mlx5dv_get_data_direct_sysfs_path) F(mlx5dv_var_export)

#define F(name) PUBLIC int name(void) { return fail(EOPNOTSUPP); }
FAILING
#undef F

// The functions that return an object.
#define MAKING \
	F(mlx5dv_alloc_dm) F(mlx5dv_alloc_var) F(mlx5dv_create_cq) F(mlx5dv_create_flow) F(mlx5dv_create_flow_action_esp) \
	F(mlx5dv_create_flow_action_modify_header) F(mlx5dv_create_flow_action_packet_reformat) \
	F(mlx5dv_create_flow_matcher) F(mlx5dv_create_mkey) F(mlx5dv_create_qp) F(mlx5dv_create_steering_anchor) \
	F(mlx5dv_create_wq) F(mlx5dv_crypto_login_create) F(mlx5dv_dek_create) F(mlx5dv_devx_alloc_msi_vector) \
	F(mlx5dv_devx_alloc_uar) F(mlx5dv_devx_create_cmd_comp) F(mlx5dv_devx_create_eq) F(mlx5dv_devx_create_event_channel) \
	F(mlx5dv_devx_obj_create) F(mlx5dv_devx_umem_reg) F(mlx5dv_devx_umem_reg_ex) F(mlx5dv_dm_map_op_addr) \
	F(mlx5dv_dr_action_create_aso) F(mlx5dv_dr_action_create_default_miss) F(mlx5dv_dr_action_create_dest_array) \
	F(mlx5dv_dr_action_create_dest_devx_tir) F(mlx5dv_dr_action_create_dest_ib_port) \
	F(mlx5dv_dr_action_create_dest_ibv_qp) F(mlx5dv_dr_action_create_dest_root_table) \
	F(mlx5dv_dr_action_create_dest_table) F(mlx5dv_dr_action_create_dest_vport) F(mlx5dv_dr_action_create_drop) \
	F(mlx5dv_dr_action_create_flow_counter) F(mlx5dv_dr_action_create_flow_meter) \
	F(mlx5dv_dr_action_create_flow_sampler) F(mlx5dv_dr_action_create_modify_header) \
	F(mlx5dv_dr_action_create_packet_reformat) F(mlx5dv_dr_action_create_pop_vlan) F(mlx5dv_dr_action_create_push_vlan) \
	F(mlx5dv_dr_action_create_tag) F(mlx5dv_dr_domain_create) F(mlx5dv_dr_matcher_create) F(mlx5dv_dr_rule_create) \
	F(mlx5dv_dr_table_create) F(mlx5dv_get_vfio_device_list) F(mlx5dv_open_device) F(mlx5dv_pp_alloc) \
	F(mlx5dv_qp_ex_from_ibv_qp_ex) F(mlx5dv_sched_leaf_create) F(mlx5dv_sched_node_create) \
	F(__mlx5dv_create_flow) F(mlx5dv_devx_obj_import) F(mlx5dv_devx_umem_import) F(mlx5dv_reg_dmabuf_mr) F(mlx5dv_var_import)

#define F(name) PUBLIC void *name(void) { return fail_null(EOPNOTSUPP); }
MAKING
#undef F

// The functions that return nothing. Their objects do not exist.
#define F(name) PUBLIC void name(void) {}
F(mlx5dv_devx_destroy_cmd_comp)
F(mlx5dv_devx_destroy_event_channel)
F(mlx5dv_devx_free_uar)
F(mlx5dv_dr_domain_allow_duplicate_rules)
F(mlx5dv_dr_domain_set_reclaim_device_memory)
F(mlx5dv_devx_obj_unimport)
F(mlx5dv_devx_umem_unimport)
F(mlx5dv_free_var)
F(mlx5dv_var_unimport)
F(mlx5dv_pp_free)
#undef F

PUBLIC bool mlx5dv_is_supported(void) { return false; }
PUBLIC ssize_t mlx5dv_devx_get_event(void) { return fail_minus(EOPNOTSUPP); }
PUBLIC int mlx5dv_vfio_get_events_fd(void) { return -EOPNOTSUPP; }
PUBLIC int mlx5dv_qp_cancel_posted_send_wrs(void) { return -EOPNOTSUPP; }

PUBLIC int init_obj_0(void) { return fail(EOPNOTSUPP); }
PUBLIC int init_obj_2(void) { return fail(EOPNOTSUPP); }
__asm__(".symver init_obj_0,mlx5dv_init_obj@MLX5_1.0");
__asm__(".symver init_obj_2,mlx5dv_init_obj@@MLX5_1.2");

package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cNames has all functions, structures and enumerations of verbs.h, rdma_cma.h and rdma_verbs.h in
// rdma-core 44, and the newer FLUSH.
var cNames = strings.Fields(`
	ibv_ack_async_event ibv_ack_cq_events ibv_advise_mr ibv_ah ibv_ah_attr ibv_alloc_dm ibv_alloc_dm_attr
	ibv_alloc_mw ibv_alloc_null_mr ibv_alloc_parent_domain ibv_alloc_pd ibv_alloc_td ibv_async_event
	ibv_attach_counters_point_flow ibv_attach_mcast ibv_bind_mw ibv_close_device ibv_close_xrcd ibv_comp_channel
	ibv_context ibv_context_ops ibv_counter_attach_attr ibv_counters ibv_counters_init_attr ibv_cq ibv_cq_ex
	ibv_cq_ex_to_cq ibv_cq_init_attr_ex ibv_cq_moderation_caps ibv_create_ah ibv_create_ah_from_wc
	ibv_create_comp_channel ibv_create_counters ibv_create_cq ibv_create_cq_ex ibv_create_flow
	ibv_create_flow_action_esp ibv_create_qp ibv_create_qp_ex ibv_create_rwq_ind_table ibv_create_srq
	ibv_create_srq_ex ibv_create_wq ibv_data_buf ibv_dealloc_mw ibv_dealloc_pd ibv_dealloc_td ibv_dereg_mr
	ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_counters ibv_destroy_cq ibv_destroy_flow
	ibv_destroy_flow_action ibv_destroy_qp ibv_destroy_rwq_ind_table ibv_destroy_srq ibv_destroy_wq ibv_detach_mcast
	ibv_device ibv_device_attr ibv_device_attr_ex ibv_dm ibv_ece ibv_end_poll ibv_event_type_str ibv_flow
	ibv_flow_action ibv_flow_action_esp_attr ibv_flow_attr ibv_flow_esp_filter ibv_flow_eth_filter
	ibv_flow_gre_filter ibv_flow_ipv4_ext_filter ibv_flow_ipv4_filter ibv_flow_ipv6_filter
	ibv_flow_label_to_udp_sport ibv_flow_mpls_filter ibv_flow_spec ibv_flow_spec_action_drop
	ibv_flow_spec_action_handle ibv_flow_spec_action_tag ibv_flow_spec_counter_action ibv_flow_spec_esp
	ibv_flow_spec_eth ibv_flow_spec_gre ibv_flow_spec_ipv4 ibv_flow_spec_ipv4_ext ibv_flow_spec_ipv6
	ibv_flow_spec_mpls ibv_flow_spec_tcp_udp ibv_flow_spec_tunnel ibv_flow_tcp_udp_filter ibv_flow_tunnel_filter
	ibv_fork_init ibv_free_device_list ibv_free_dm ibv_get_async_event ibv_get_cq_event ibv_get_device_guid
	ibv_get_device_index ibv_get_device_list ibv_get_device_name ibv_get_pkey_index ibv_get_srq_num ibv_gid_entry
	ibv_global_route ibv_grh ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_inc_rkey
	ibv_init_ah_from_wc ibv_is_fork_initialized ibv_is_qpt_supported ibv_memcpy_from_dm ibv_memcpy_to_dm
	ibv_moderate_cq ibv_modify_cq ibv_modify_cq_attr ibv_modify_flow_action_esp ibv_modify_qp
	ibv_modify_qp_rate_limit ibv_modify_srq ibv_modify_wq ibv_mr ibv_mw ibv_mw_bind ibv_mw_bind_info ibv_next_poll
	ibv_node_type_str ibv_odp_caps ibv_open_device ibv_open_qp ibv_open_xrcd ibv_ops_wr ibv_packet_pacing_caps
	ibv_parent_domain_init_attr ibv_pci_atomic_caps ibv_pd ibv_poll_cq ibv_poll_cq_attr ibv_port_attr
	ibv_port_state_str ibv_post_recv ibv_post_send ibv_post_srq_ops ibv_post_srq_recv ibv_post_wq_recv ibv_qp
	ibv_qp_attr ibv_qp_cap ibv_qp_ex ibv_qp_init_attr ibv_qp_init_attr_ex ibv_qp_open_attr ibv_qp_rate_limit_attr
	ibv_qp_to_qp_ex ibv_query_device ibv_query_device_ex ibv_query_device_ex_input ibv_query_ece ibv_query_gid
	ibv_query_gid_ex ibv_query_gid_table ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_qp_data_in_order
	ibv_query_rt_values_ex ibv_query_srq ibv_rate_to_mbps ibv_rate_to_mult ibv_read_counters ibv_recv_wr
	ibv_reg_dm_mr ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_iova ibv_reg_mr_iova2 ibv_req_notify_cq ibv_rereg_mr
	ibv_resize_cq ibv_resolve_eth_l2_from_gid ibv_rss_caps ibv_rwq_ind_table ibv_rwq_ind_table_init_attr
	ibv_rx_hash_conf ibv_send_wr ibv_set_ece ibv_sge ibv_srq ibv_srq_attr ibv_srq_init_attr ibv_srq_init_attr_ex
	ibv_start_poll ibv_static_providers ibv_td ibv_td_init_attr ibv_tm_cap ibv_tm_caps ibv_tso_caps ibv_unimport_dm
	ibv_unimport_mr ibv_unimport_pd ibv_values_ex ibv_wc ibv_wc_read_byte_len ibv_wc_read_completion_ts
	ibv_wc_read_completion_wallclock_ns ibv_wc_read_cvlan ibv_wc_read_dlid_path_bits ibv_wc_read_flow_tag
	ibv_wc_read_imm_data ibv_wc_read_invalidated_rkey ibv_wc_read_opcode ibv_wc_read_qp_num ibv_wc_read_sl
	ibv_wc_read_slid ibv_wc_read_src_qp ibv_wc_read_tm_info ibv_wc_read_vendor_err ibv_wc_read_wc_flags
	ibv_wc_status_str ibv_wc_tm_info ibv_wq ibv_wq_attr ibv_wq_init_attr ibv_wr_abort ibv_wr_atomic_cmp_swp
	ibv_wr_atomic_fetch_add ibv_wr_atomic_write ibv_wr_flush ibv_wr_bind_mw ibv_wr_complete ibv_wr_local_inv ibv_wr_rdma_read
	ibv_wr_rdma_write ibv_wr_rdma_write_imm ibv_wr_send ibv_wr_send_imm ibv_wr_send_inv ibv_wr_send_tso
	ibv_wr_set_inline_data ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list ibv_wr_set_ud_addr
	ibv_wr_set_xrc_srqn ibv_wr_start ibv_xrcd ibv_xrcd_init_attr
	rdma_accept rdma_ack_cm_event rdma_addr rdma_addrinfo rdma_bind_addr rdma_cm_event rdma_cm_id
	rdma_cm_join_mc_attr_ex rdma_conn_param rdma_connect rdma_create_ep rdma_create_event_channel rdma_create_id
	rdma_create_qp rdma_create_qp_ex rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp
	rdma_disconnect rdma_establish rdma_event_channel rdma_event_str rdma_free_devices rdma_freeaddrinfo
	rdma_get_cm_event rdma_get_devices rdma_get_dst_port rdma_get_local_addr rdma_get_peer_addr rdma_get_remote_ece
	rdma_get_request rdma_get_src_port rdma_getaddrinfo rdma_ib_addr rdma_init_qp_attr rdma_join_multicast
	rdma_join_multicast_ex rdma_leave_multicast rdma_listen rdma_migrate_id rdma_notify rdma_reject rdma_reject_ece
	rdma_resolve_addr rdma_resolve_route rdma_route rdma_set_local_ece rdma_set_option rdma_ud_param
	rdma_create_srq rdma_create_srq_ex rdma_dereg_mr rdma_destroy_srq rdma_get_recv_comp rdma_get_send_comp
	rdma_post_read rdma_post_readv rdma_post_recv rdma_post_recvv rdma_post_send rdma_post_sendv rdma_post_ud_send
	rdma_post_write rdma_post_writev rdma_reg_msgs rdma_reg_read rdma_reg_write rdma_seterrno

	ibv_access_flags ibv_advise_mr_advice ibv_atomic_cap ibv_counter_description ibv_cq_attr_mask
	ibv_cq_init_attr_mask ibv_create_cq_attr_flags ibv_create_cq_wc_flags ibv_device_cap_flags ibv_dm_mask
	ibv_event_type ibv_flow_action_esp ibv_flow_action_esp_encap ibv_flow_action_esp_flags
	ibv_flow_action_esp_keymat ibv_flow_action_esp_keymat_aes_gcm ibv_flow_action_esp_keymat_aes_gcm_iv_algo
	ibv_flow_action_esp_mask ibv_flow_action_esp_replay ibv_flow_action_esp_replay_bmp ibv_flow_attr_type
	ibv_flow_flags ibv_flow_spec_type ibv_fork_status ibv_gid ibv_gid_type ibv_ind_table_init_attr_mask
	ibv_mig_state ibv_mtu ibv_mw_type ibv_node_type ibv_odp_general_caps ibv_odp_transport_cap_bits ibv_ops_flags
	ibv_ops_wr_opcode ibv_parent_domain_init_attr_mask ibv_pci_atomic_op_size ibv_placement_type ibv_port_cap_flags
	ibv_port_cap_flags2 ibv_port_state ibv_qp_attr_mask ibv_qp_create_flags ibv_qp_create_send_ops_flags
	ibv_qp_init_attr_mask ibv_qp_open_attr_mask ibv_qp_state ibv_qp_type ibv_rate ibv_raw_packet_caps
	ibv_read_counters_flags ibv_rereg_mr_err_code ibv_rereg_mr_flags ibv_rx_hash_fields ibv_rx_hash_function_flags
	ibv_selectivity_level ibv_send_flags ibv_srq_attr_mask ibv_srq_init_attr_mask ibv_srq_type ibv_tm_cap_flags
	ibv_transport_type ibv_values_mask ibv_wc_flags ibv_wc_opcode ibv_wc_status ibv_wq_attr_mask ibv_wq_flags
	ibv_wq_init_attr_mask ibv_wq_state ibv_wq_type ibv_wr_opcode ibv_xrcd_init_attr_mask rdma_cm_event_type
	rdma_cm_join_mc_attr_mask rdma_cm_mc_join_flags rdma_port_space
`)

// goNames returns every exported name of a package, as Name, Type.Method or Type.Field.
func goNames(t *testing.T, dir, prefix string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	check(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		check(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[prefix+d.Name.Name] = true
					continue
				}
				recv := d.Recv.List[0].Type
				if star, ok := recv.(*ast.StarExpr); ok {
					recv = star.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					names[prefix+id.Name+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[prefix+n.Name] = true
						}
					case *ast.TypeSpec:
						names[prefix+s.Name.Name] = true
						if st, ok := s.Type.(*ast.StructType); ok {
							for _, field := range st.Fields.List {
								for _, n := range field.Names {
									names[prefix+s.Name.Name+"."+n.Name] = true
								}
							}
						}
					}
				}
			}
		}
	}
	return names
}

// tableRow has C names and their Go counterparts.
type tableRow struct{ c, g string }

// tableOfC returns the rows of cnames.go. A row may continue in lines with the same columns.
func tableOfC(t *testing.T) (rows []tableRow) {
	t.Helper()
	text, err := os.ReadFile("cnames.go")
	check(t, err)
	const column = 52
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "//\t")
		if !ok {
			continue
		}
		c, g := line, ""
		if len(line) > column {
			c, g = strings.TrimSpace(line[:column]), strings.TrimSpace(line[column:])
		}
		continued := len(rows) > 0 && (c == "" || strings.HasSuffix(rows[len(rows)-1].c, ","))
		switch {
		case continued:
			last := &rows[len(rows)-1]
			last.c = strings.TrimSpace(last.c + " " + c)
			last.g = strings.TrimSpace(last.g + " " + g)
		case strings.HasPrefix(c, "ibv_") || strings.HasPrefix(c, "rdma_"):
			rows = append(rows, tableRow{c, g})
		}
	}
	return rows
}

// TestNamesOfC: every C name has its row, every Go name in a row exists, and a row without one has
// a reason.
func TestNamesOfC(t *testing.T) {
	exist := goNames(t, ".", "")
	for n := range goNames(t, "rdmacm", "rdmacm.") {
		exist[n] = true
	}
	named := regexp.MustCompile(`^(rdmacm\.)?[A-Z][A-Za-z0-9]*(\.[A-Z][A-Za-z0-9]*)?$`)
	seen := map[string]bool{}
	for _, row := range tableOfC(t) {
		for _, c := range strings.Split(row.c, ",") {
			if c = strings.TrimSpace(c); seen[c] {
				t.Errorf("%s has two rows", c)
			}
			seen[c] = true
		}
		if reason, none := strings.CutPrefix(row.g, "none:"); none {
			if len(strings.Fields(reason)) < 3 {
				t.Errorf("%s: %q is not a reason", row.c, reason)
			}
			continue
		}
		for _, g := range strings.Split(row.g, ",") {
			if g = strings.TrimSpace(g); !named.MatchString(g) || !exist[g] {
				t.Errorf("%s: %q does not exist", row.c, g)
			}
		}
	}
	for _, c := range cNames {
		if !seen[c] {
			t.Errorf("%s has no row", c)
		}
		delete(seen, c)
	}
	for c := range seen {
		t.Errorf("%s is not in the headers", c)
	}
}

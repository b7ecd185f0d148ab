// Package rdmatransport is SoftRNIC's provider of verbs: it opens an RDMA device on a host
// ([stack.Network]), such as one of package netstack. One device supports all wire protocols. Each
// queue pair selects one, RoCEv2 or iWARP, when it is created.
//
//	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.1/24"}}) // l is a link: a TAP device, an interface, or in memory
//	dev, err := rdmatransport.Open(host, nil)
//
// Everything else is done with the [verbs.Device] and with package rdmacm. The examples below are
// complete programs.
//
// # Counters
//
// [verbs.Device.PortCounters] has the names of Linux's ports in
// /sys/class/infiniband/*/ports/*/counters. It counts RoCE packets only, not messages that are
// moved without packets or loop back:
//
//	port_xmit_data, port_rcv_data        words of four bytes, of whole Ethernet frames without FCS
//	port_xmit_packets, port_rcv_packets  packets, of which
//	unicast_…_packets                    to one host
//	multicast_…_packets                  to a group
//	port_rcv_errors                      packets with a wrong length, checksum or source address
//	port_xmit_discards                   packets that the link refused, or that no neighbour was found for
//
// [verbs.Device.HWCounters] has the sums of these over all ports, and the hw_counters of rxe (`rdma
// statistic show`):
//
//	sent_pkts, rcvd_pkts        packets of all QPs, the connection manager's QP 1 among them; received ones that are sound
//	                            and for a QP that takes them
//	duplicate_request           request packets that had come before
//	out_of_seq_request          gaps in the sequence of request packets
//	send_rnr_err, rcvd_rnr_err  RNR NAKs
//	rcvd_seq_err                sequence NAKs
//	ack_deferred                acknowledgements that had to wait for a buffer: always 0
//	completer_retry_err         times that a QP went back, for a NAK or a timeout, but not for an RNR NAK
//	retry_exceeded_err          QPs that failed because they had gone back too often
//	retry_rnr_exceeded_err      QPs that failed because of too many RNR NAKs
//	send_err                    packets that the link could not take
//	link_downed                 times that a port lost its link
//	rdma_sends                  SENDs that completed well (rxe: or not)
//	rdma_recvs                  receive requests that completed well
//
// Those of mlx5:
//
//	np_ecn_marked_roce_packets  packets that came with Congestion Experienced
//	np_cnp_sent                 congestion notification packets sent,
//	rp_cnp_handled              received, and the QP slowed down,
//	rp_cnp_ignored              or received by a device without congestion control
//	out_of_buffer               raw frames that found no receive request
//
// Those of no other device:
//
//	direct_msgs          RoCE messages that went from memory to memory without packets
//	selective_repeats    packets (for READs, requests) that were repeated one by one
//	tail_probes          packets repeated to learn whether they had arrived
//	suspect_requests     request packets dropped because they, or others that contradict them, are not the peer's
//	malformed_packets, icrc_errors, unknown_qp, misdirected_packets, bad_pkey, qkey_viol
//	                     packets dropped: headers that do not parse; wrong ICRC, which each packet
//	                     has that has passed a NAT (iWARP passes it); no such QP; wrong source address, or a QP whose
//	                     state does not allow reception; wrong P_Key; wrong Q_Key
//	icrc_id_solved       packets whose IPv4 identification was not seen, and found from the ICRC
//	no_recv_dropped,     unreliable messages that found no receive request,
//	too_long_dropped     or one that was too short
//	cm_…                 messages of the connection manager, named as in /sys/class/infiniband_cm
//	iwarp_terminates_…   Terminate messages
//	iwarp_crc_errors     FPDUs
//	iwarp_direct_msgs    iWARP messages that went from memory to memory
//	iwarp_xmit_bytes, iwarp_rcv_bytes  FPDUs, which port_… does not count
//	iwarp_…              (all others) connections
//	raw_…                Ethernet frames of raw packet QPs
package rdmatransport
